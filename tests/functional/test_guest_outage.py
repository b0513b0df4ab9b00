# SPDX-License-Identifier: Apache-2.0
"""A guest whose source and peers fail for ten minutes in the middle of its boot."""

import contextlib
import time

import pytest

from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import guest

OUTAGE_S = 600.0
LIFE_S = OUTAGE_S + 900.0
STEP_S = 120.0

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.nightly,
    pytest.mark.timeout(LIFE_S),
]


def test_guest_resumes_its_boot_after_an_outage_of_source_and_peers(
    tmp_path, images, guest_image_id
):
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(contextlib.ExitStack())
        server = serving.enter_context(http_server.serve(files))
        port = int(server.url.rstrip("/").rpartition(":")[2])
        options = {"life_s": LIFE_S, **hosts.http_options(server.url, 5.0)}
        cloud = stack.enter_context(hosts.cloud(tmp_path, images, ("h1", "h2"), **options))
        agent = cloud["h1"]
        path = agent.image_path(guest_image_id)
        disk = agent.host.folder / "disk.qcow2"
        guest.make_overlay(disk, path, "raw", path.stat().st_size)
        booting = stack.enter_context(guest.Guest(agent.host, disk, cache="writeback"))
        begun = lambda: "Linux version" in booting.console_text()  # noqa: E731
        hosts.wait_until(begun, "the kernel", STEP_S)
        serving.close()
        hosts.kill_agent(cloud["h2"])
        ends_s = time.monotonic() + OUTAGE_S
        seen = lambda: agent.status()["images"][guest_image_id]  # noqa: E731
        hosts.wait_until(lambda: seen()["waiting"] is not None, "reads that wait", STEP_S)
        while time.monotonic() < ends_s:
            time.sleep(1)
            assert not booting.poll().is_booted
        stack.enter_context(http_server.serve(files, port=port))
        booting.wait_booted(2 * STEP_S)
        booting.check_progress()
        assert seen()["failed_reads"] == 0
        assert "I/O error" not in booting.console_text()
