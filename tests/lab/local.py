# SPDX-License-Identifier: Apache-2.0
"""An agent on this machine's loopback with images in a folder, without a network."""

import contextlib
import fcntl
import functools
import pathlib
import random
import socket
import types
import uuid
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.lab import agents
from tests.lab import network
from tests.lab import runs
from tests.lab import tuned

LOOPBACK = "127.0.0.1"
_PORTS = iter(random.sample(range(20_000, 32_000), 12_000))


class LocalHost(network.Host):
    """This machine as a host of the lab."""

    @property
    def namespaces(self) -> list[pathlib.Path]:
        """What its processes enter: nothing."""
        return []

    def _inside(self, argv: Sequence[str | pathlib.Path]) -> list[str]:
        return [str(argument) for argument in argv]


class ImageFolder:
    """Images and their chunk maps for the source ``file``."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        self.folder = folder

    def add(
        self,
        data: bytes,
        image_id: str | None = None,
        chunk_bytes: int = geometry.DEFAULT_CHUNK_BYTES,
        naming: deduplication.Naming = deduplication.PLAIN,
    ) -> ids.ImageId:
        """Write an image and its map; return the image's id.

        The lab's images share chunks with all (``dedup_scope = cloud``) unless ``naming`` differs.
        """
        chosen = ids.parse_image_id(image_id or str(uuid.uuid4()))
        self.path(chosen).write_bytes(data)
        map_path = self.map_path(chosen)
        prehash.prehash(self.path(chosen), map_path, chosen, chunk_bytes=chunk_bytes, naming=naming)
        return chosen

    def adopt(self, image: pathlib.Path) -> ids.ImageId:
        """Add a sparse copy of an image file, and its map."""
        chosen = ids.parse_image_id(str(uuid.uuid4()))
        runs.tool(["cp", "--sparse=always", image, self.path(chosen)])
        prehash.prehash(image, self.map_path(chosen), chosen)
        return chosen

    def add_boot_image(
        self,
        image_id: ids.ImageId,
        trace: Iterable[int],
        revision: int = 1,
        of_profiles: Mapping[str, Iterable[int]] = types.MappingProxyType({}),
    ) -> boot_image.Head:
        """Write the boot image of an added image; return its header."""
        data = self.path(image_id).read_bytes()
        of_image = self.map_of(image_id)
        cut = of_image.geometry
        own_scope = next(iter(of_image.scope_keys), None)
        writer = boot_image.Writer(boot_image.Binding.from_map(of_image), revision, key=own_scope)
        for profile, chunk_nos in {"": trace, **of_profiles}.items():
            key = ids.profile_key_of(profile)
            for chunk_no in chunk_nos:
                start = cut.chunk_offset(chunk_no)
                writer.add(chunk_no, data[start : start + cut.chunk_length(chunk_no)], key)
        raw = b"".join(writer.iter_parts())
        self.boot_image_path(image_id).write_bytes(raw)
        return boot_image.parse_head(raw, "the boot image that was just written")

    def path(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the path of an image."""
        return self.folder / f"{image_id}.raw"

    def boot_image_path(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the path of an image's boot image."""
        return self.folder / f"{image_id}.acboot"

    def map_of(self, image_id: ids.ImageId) -> chunk_map.ChunkMap:
        """Return an image's chunk map."""
        return chunk_map.ChunkMap.parse(self.map_path(image_id).read_bytes(), str(image_id))

    def map_path(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the path of an image's chunk map."""
        return self.folder / f"{image_id}.acmap"


def random_bytes(length: int, seed: int = 0, zero_share: float = 0.0) -> bytes:
    """Return incompressible bytes, with a share of zero chunks."""
    rng = random.Random(seed)
    size = geometry.DEFAULT_CHUNK_BYTES
    parts = [
        bytes(size) if rng.random() < zero_share else rng.randbytes(size)
        for _ in range(-(-length // size))
    ]
    return b"".join(parts)[:length]


def unused_port() -> int:
    """Return a free loopback port that no running process of the tests got from here.

    A service may listen much later than it gets its port. It is outside the ephemeral ports, which
    an outgoing connection could take meanwhile.
    """
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            probe.bind((LOOPBACK, port))
            return port
    raise errors.Unusable(LOOPBACK, "no port between 20000 and 32000 is free")


@functools.cache
def _port_locks() -> IO[bytes]:
    """Return a file whose bytes are ports, locked until the process that got one ends."""
    runs.CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    return (runs.CACHE_FOLDER / "ports").open("ab")


@contextlib.contextmanager
def agent(
    folder: pathlib.Path,
    images: ImageFolder,
    *,
    name: str = "h1",
    ring_file: pathlib.Path | None = None,
    peer_port: int | None = None,
    sections: Mapping[str, Mapping[str, object]] | None = None,
    security: str | None = None,
    constants: tuned.Constants | None = None,
    **options: object,
) -> Iterator[agents.Agent]:
    """Run an agent that reads images from a folder; options: of [acstor_agent]."""
    folder.mkdir(exist_ok=True)
    host = LocalHost(name, "", LOOPBACK, folder)
    options = {
        "sources": "file",
        "peer_listen": f"{LOOPBACK}:{peer_port or unused_port()}",
        "metrics_listen": "",
        **options,
    }
    file_source = {"source_file": {"folder": images.folder}, **(sections or {})}
    with agents.Agent(
        host,
        "",
        ring_file,
        sections=file_source,
        security=security,
        constants=constants,
        **options,
    ) as running:
        yield running
