# SPDX-License-Identifier: Apache-2.0
"""The status page of real hosts, whose guests read images from each other."""

import PIL.Image
import pytest

from tests.fakes import hosts
from tests.lab import chromium
from tests.lab import status_page

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(not chromium.is_installed(), reason="needs Chromium: run tools/install.sh"),
]

MAX_PICTURE_BYTES = 150_000


def cells(browser: chromium.Browser, table: str) -> list[list[str]]:
    rows = f"document.querySelectorAll('{table} tbody tr')"
    found = browser.evaluate(f"[...{rows}].map(r => [...r.cells].map(c => c.textContent))")
    return [list(map(str, row)) for row in found]


@pytest.mark.nightly
def test_page_shows_hosts_boots_and_flows(tmp_path):
    names = [f"h{number}" for number in range(1, status_page.HOSTS + 1)]
    with status_page.shown(tmp_path) as scene:
        browser = scene.browser
        assert sorted(row[0] for row in cells(browser, "#hosts")) == names
        assert f"{status_page.HOSTS} up" in browser.text("#overview")
        flows = cells(browser, "#flows")
        assert len(flows) >= status_page.LEAST_FLOWS
        assert all({sender, receiver} < set(names) for sender, receiver, _ in flows)
        timeline = browser.text("#timeline")
        assert f"until the last read\t{scene.boot.last_s:.2f}" in timeline
        assert f"What {scene.boot.reads} reads got" in timeline
        assert browser.text("#notice") == "" and browser.complaints() == []
        corners = []
        for scheme in ("dark", "light"):
            picture = tmp_path / f"{scheme}.png"
            status_page.take_picture(browser, scheme, picture)
            assert 20_000 < picture.stat().st_size < MAX_PICTURE_BYTES
            with PIL.Image.open(picture) as image:
                assert image.width == status_page.WIDTH
                corners.append(image.convert("L").getpixel((2, 2)))
        dark, light = corners
        assert dark < 64 < 192 < light
