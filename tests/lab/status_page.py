# SPDX-License-Identifier: Apache-2.0
"""The status page of a lab cloud in Chromium, with programs instead of guests.

    python -m tests.lab.status_page doc/source/_static/status_page.png

writes the picture in the documents.  Keystone and Glance are those of ``cloud_services``.
"""

import contextlib
import dataclasses
import pathlib
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any
from typing import Self

import PIL.Image

from acstor_common.model import boot_timeline
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import cloud_services
from tests.fakes import decision_api
from tests.fakes import glance_records
from tests.lab import agents
from tests.lab import chromium
from tests.lab import decision
from tests.lab import forked_commands
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import runs

HOSTS, LINK_MBIT, SOURCE_MBIT = 6, 100, 40
IMAGES = ("debian-13", "ubuntu-24.04")
IMAGE_BYTES = 40 * geometry.MIB
TOKEN = "operators-token"
WIDTH, HEIGHT = 1280, 900
COLOURS = 256
LEAST_FLOWS = 12
ALL_LISTED = (
    "[...document.querySelectorAll('#flows tbody tr')].every("
    r"row => [0, 1].every(n => /^h\d+$/.test(row.cells[n].textContent)))"
)
PATIENCE_S = 90.0
GUEST = """
import mmap, os, random, sys, time
image, disk = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), os.open(sys.argv[2], os.O_RDWR)
places = list(range(0, os.fstat(image).st_size, 65536))
random.Random(sys.argv[3]).shuffle(places)
page = mmap.mmap(-1, 65536)
for number, at in enumerate(places[: int(0.8 * len(places))]):
    os.preadv(image, [page], at)
    time.sleep(0.02 if number % 8 else 0.1)
print(flush=True)
sys.stdin.read()
"""
"""Reads most of an image in an order of its own, with pauses."""


class Guests:
    """Context manager: programs that read like guests, each with a server's disk.

    :param folder: for the disks
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for guest in self._running:
            guest.kill()
            guest.communicate()

    def boot(self, agent: agents.Agent, image_id: ids.ImageId) -> str:
        """Start one; return its server id."""
        server = str(uuid.uuid4())
        disk = self._folder / server / "disk"
        disk.parent.mkdir(parents=True)
        disk.touch()
        argv = [sys.executable, "-c", GUEST, agent.image_path(image_id), disk, server]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._running.append(subprocess.Popen([*map(str, argv)], **pipes))
        return server

    def wait(self) -> None:
        """Wait until all have read their data, and end them."""
        while self._running:
            guest = self._running[-1]
            assert guest.stdout is not None and guest.stdout.readline() == b"\n"
            guest.communicate()
            self._running.pop()


@dataclasses.dataclass(frozen=True)
class Scene:
    """The page while servers boot.

    :param boot: the boot in the displayed timeline
    """

    browser: chromium.Browser
    boot: boot_timeline.Timeline


@contextlib.contextmanager
def shown(folder: pathlib.Path) -> Iterator[Scene]:
    """Boot servers, and open the page in the middle of the second wave.

    :param folder: for the disks and the browser
    """
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network.Network(HOSTS, LINK_MBIT, SOURCE_MBIT))
        images = local.ImageFolder(net.run.folder / "images")
        image_ids = [
            images.add(local.random_bytes(IMAGE_BYTES, seed=seed, zero_share=0.2))
            for seed, _ in enumerate(IMAGES)
        ]
        server = stack.enter_context(image_server.ImageServer(net.source, images.folder))
        service = stack.enter_context(decision.Service(net))
        running = service.join(net.hosts, LINK_MBIT, server.url)
        services = stack.enter_context(cloud_services.serve())
        services.roles[TOKEN] = ("admin",)
        services.images = list(map(_record, image_ids, IMAGES))
        url = stack.enter_context(decision_api.serve(service.folder, services.url, TOKEN))
        browser = stack.enter_context(chromium.Browser(folder))
        browser.resize(WIDTH, HEIGHT)
        browser.open(f"{url}/status")
        guests = stack.enter_context(Guests(folder / "instances"))
        yield Scene(browser, _boot_in_waves(browser, running, guests, image_ids))


def _record(image_id: ids.ImageId, name: str) -> dict[str, Any]:
    return glance_records.record(
        id=image_id,
        name=name,
        size=IMAGE_BYTES,
        acstor_state="ready",
        acstor_state_of=image_id,
        acstor_chunk_map=str(uuid.uuid4()),
    )


def _boot_in_waves(
    browser: chromium.Browser,
    running: list[agents.Agent],
    guests: Guests,
    image_ids: list[ids.ImageId],
) -> boot_timeline.Timeline:
    """Boot on half of the hosts, then on all; return the first boot, finished."""
    half = len(running) // 2
    first, *_ = [guests.boot(agent, image_ids[0]) for agent in running[:half]]
    guests.wait()

    def is_over() -> bool:
        return running[0].timelines(first)[0].is_over

    runs.wait_for(is_over, PATIENCE_S, "the end of a boot", lambda: first)
    button = f"#boots button[data-key^='{first}']"
    _refresh_until(browser, f'document.querySelector("{button}")')
    for number, agent in enumerate(running):
        guests.boot(agent, image_ids[number < half])
    flows = f"document.querySelectorAll('.flow').length >= {LEAST_FLOWS}"
    _refresh_until(browser, f"{flows} && {ALL_LISTED}")  # no host's sample is late
    browser.click(button)
    browser.wait_for("document.querySelectorAll('#timeline table').length")
    browser.wait_for("document.querySelectorAll('#images tbody tr').length")
    return running[0].timelines(first)[0]


def _refresh_until(browser: chromium.Browser, expression: str) -> None:
    def is_there() -> bool:
        browser.evaluate("document.getElementById('order').dispatchEvent(new Event('change'))")
        return bool(browser.evaluate(f"Boolean({expression})"))

    runs.wait_for(is_there, PATIENCE_S, expression, browser.text)


def take_picture(browser: chromium.Browser, scheme: str, path: pathlib.Path) -> None:
    """Write a small PNG of the page.

    :param scheme: ``light`` or ``dark``
    """
    browser.prefer(scheme)
    browser.screenshot(path)
    with PIL.Image.open(path) as picture:
        whole = picture.convert("RGB")
    counted = sorted(whole.getcolors(whole.width * whole.height), reverse=True)[:COLOURS]
    palette = PIL.Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counted for part in colour])
    whole.quantize(palette=palette, dither=PIL.Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Write the picture in the documents."""
    target = pathlib.Path(sys.argv[1])
    with (
        forked_commands.enabled(),
        tempfile.TemporaryDirectory() as folder,
        shown(pathlib.Path(folder)) as scene,
    ):
        take_picture(scene.browser, "light", target)


if __name__ == "__main__":
    main()
