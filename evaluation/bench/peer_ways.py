# SPDX-License-Identifier: Apache-2.0
"""The ways of PEERS from an image on a web server to a disk of this host."""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import boots
from evaluation.bench import dragonfly
from evaluation.bench import w1_hydration
from tests.lab import agents
from tests.lab import network
from tests.lab import runs

READY_S = 300.0
STORED = "stored.qcow2"
DISK_BYTES = 4096 * geometry.MIB
CACHE_BYTES = 20 * 1024 * geometry.MIB  # the product's default, unlike the lab's


class Prepared(NamedTuple):
    """The image: the web server serves ``folder``; ``raw`` is the same disk here."""

    folder: pathlib.Path
    image_id: ids.ImageId
    raw: pathlib.Path

    @property
    def file_name(self) -> str:
        """Name of the compressed qcow2 file."""
        return f"{self.image_id}.qcow2"


class Place(NamedTuple):
    """A fresh host, and where it finds the image; with a v-node table it has peers.

    :param first: the first host, maybe this one
    """

    made: Prepared
    host: network.Host
    first: network.Host
    url: str
    ring_file: pathlib.Path | None = None

    @property
    def file_url(self) -> str:
        """URL of the compressed qcow2 file."""
        return f"{self.url}/{self.made.file_name}"


class Backing(NamedTuple):
    """A guest's backing file, for QEMU."""

    where: str | pathlib.Path
    disk_format: str


class Client(NamedTuple):
    """A host's access to the image; the time counts from the call of ``request``."""

    request: Callable[[], Backing]
    is_fully_cached: Callable[[], bool] | None = None
    """None: it is never cached but for the chunks read."""


Way = Callable[[Place], contextlib.AbstractContextManager[Client]]


@contextlib.contextmanager
def raw_file(place: Place) -> Iterator[Client]:
    """Load the disk into the page cache."""
    boots.read_whole(place.made.raw)
    yield Client(lambda: Backing(place.made.raw, "raw"), lambda: True)


@contextlib.contextmanager
def download(place: Place) -> Iterator[Client]:
    """Download and convert the image."""

    def request() -> Backing:
        stored = place.host.folder / STORED
        place.host.run(["curl", "-sSf", "-o", stored, place.file_url])
        return _converted(place.host, stored)

    yield Client(request, lambda: True)


@contextlib.contextmanager
def by_dragonfly(place: Place) -> Iterator[Client]:
    """Download the image with the other hosts, and convert it."""
    with dragonfly.running(place.host, place.first) as daemon:

        def request() -> Backing:
            stored = place.host.folder / STORED
            daemon.download(place.file_url, stored)
            return _converted(place.host, stored)

        yield Client(request, lambda: True)


def _converted(host: network.Host, stored: pathlib.Path) -> Backing:
    raw = host.folder / "base.raw"
    host.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", stored, raw])
    return Backing(raw, "raw")


@contextlib.contextmanager
def nbdkit(place: Place) -> Iterator[Client]:
    """Serve the file by nbdkit with a cache.

    With its filter ``scan``, which reads ahead, nbdkit 1.42 took 326 s for the services at
    100 Mbit/s and 100 ms; nbdkit 1.32 takes 154 s without.
    """
    with serve_by_nbdkit(place.host) as serve:
        words = ["curl", f"url={place.file_url}", "cache-on-read=true"]
        yield Client(lambda: Backing(serve("cache", words), "qcow2"))


@contextlib.contextmanager
def serve_by_nbdkit(host: network.Host) -> Iterator[Callable[[str, list[str]], str]]:
    """Yield a function that starts nbdkit with a filter and a plugin; it returns the URI."""
    with (
        tempfile.TemporaryDirectory(prefix="acstor-nbd-") as folder,  # socket paths must be short
        contextlib.ExitStack() as stack,
    ):
        socket = pathlib.Path(folder, "s")

        def serve(name: str, plugin: list[str]) -> str:
            words = ["nbdkit", "--foreground", "--unix", str(socket), f"--filter={name}"]
            process = stack.enter_context(host.popen([*words, *plugin]))
            stack.callback(process.kill)
            runs.wait_for(socket.exists, 10.0, "nbdkit", str)
            return f"nbd+unix:///?socket={socket}"

        yield serve


@contextlib.contextmanager
def qemu(place: Place) -> Iterator[Client]:
    """Let QEMU read the URL."""
    yield Client(lambda: Backing(place.file_url, "qcow2"))


@contextlib.contextmanager
def acstor(place: Place) -> Iterator[Client]:
    """Let a running agent mirror the image; it fills its cache after the boot."""
    image_id = place.made.image_id
    with agents.Agent(
        place.host, place.url, place.ring_file, keep_images="host", cache_limit_bytes=CACHE_BYTES
    ) as agent:
        agent.wait_ready(READY_S)

        def request() -> Backing:
            agents.request(agent.control_socket, "attach-image", image_id=image_id)
            return Backing(agent.image_path(image_id), "raw")

        def is_fully_cached() -> bool:
            return w1_hydration.fill_status(agent, image_id).get("state") == "fully_cached"

        yield Client(request, is_fully_cached)


RAW, ACSTOR = "raw file", "acstor"
WAYS: dict[str, Way] = {
    RAW: raw_file,
    "download": download,
    "Dragonfly": by_dragonfly,
    "nbdkit": nbdkit,
    "QEMU": qemu,
    ACSTOR: acstor,
}
DIRECT = ("nbdkit", "QEMU")
"""They read the source on demand and exchange nothing."""
