# SPDX-License-Identifier: Apache-2.0
"""Agents on the loopback that exchange one image, and the cost of reading it.

Links are unshaped.  A reader goes through the image in reads of READ_BYTES with O_DIRECT; the
processor time is that of whole agents, including supervisors.
"""

import contextlib
import mmap
import os
import pathlib
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.model import segments
from acstor_common.ring import hash_ring
from evaluation.bench import harness
from evaluation.bench import plain_sockets
from tests.lab import agents
from tests.lab import local

READ_BYTES = geometry.MIB
GB = 1e9
DEADLINE_S = 300.0
"""Limit of a reading; then agents are killed, and their guests see errors."""
STORED_DEADLINE_S = 60.0
HOME_VNODES = 200
"""V-nodes of a serving host; the reader has one, since peers answer only members."""
PLAINLY = "plain Python"
TOUCHED = 3
"""How often an image's memory is touched before it is read.

Its bytes are received, kept in the page cache, and read.
"""
_PIECE = bytes(geometry.MIB)
Figures = dict[str, Any]


class Cloud:
    """Hosts on one ring; each is an agent while it runs.

    :param hosts: v-nodes of each; a host without any gets no answers
    :param security: see ``peer_security``
    :param segment_chunks: chunks with a common home
    :ivar ring: its table
    """

    def __init__(
        self,
        folder: pathlib.Path,
        images: local.ImageFolder,
        hosts: Mapping[str, int],
        security: str,
        cache_bytes: int,
        segment_chunks: int = segments.MAX_CHUNKS,
    ) -> None:
        folder.mkdir()
        self._folder, self._images = folder, images
        self._security, self._cache_bytes = security, cache_bytes
        self._ports = {host: local.unused_port() for host in hosts}
        entries = [
            hash_ring.RingHost(ids.HostId(host), f"{local.LOOPBACK}:{self._ports[host]}", vnodes)
            for host, vnodes in hosts.items()
        ]
        self.ring = hash_ring.Ring(1, tuple(entries), segment_chunks=segment_chunks)
        self._ring_file = folder / "ring.json"
        self._ring_file.write_bytes(hash_ring.encode(self.ring))

    @contextlib.contextmanager
    def running(self, host: str, life: str = "") -> Iterator[agents.Agent]:
        """Run a host's agent.

        :param life: each life has a cache of its own
        """
        with local.agent(
            self._folder / f"{host}{life}",
            self._images,
            name=host,
            ring_file=self._ring_file,
            peer_port=self._ports[host],
            cache_limit_bytes=self._cache_bytes,
            security=self._security,
        ) as agent:
            yield agent


def attach(agent: agents.Agent, image_id: ids.ImageId) -> None:
    """Wait until an agent serves, and attach an image."""
    agent.wait_ready()
    os.stat(agent.image_path(image_id))


@contextlib.contextmanager
def bounded(readers: Sequence[agents.Agent], deadline_s: float = DEADLINE_S) -> Iterator[None]:
    """Kill agents at the deadline; nothing else ends a hanging read of a mirror.

    :raises harness.CannotRun: a read failed, or took too long
    """
    is_late = threading.Event()

    def kill() -> None:
        is_late.set()
        for agent in readers:
            with contextlib.suppress(errors.Unusable, ProcessLookupError):
                worker = agent.worker_pid()
                os.kill(agent.pid, signal.SIGKILL)  # first: it would start another worker
                if worker is not None:
                    os.kill(worker, signal.SIGKILL)

    timer = threading.Timer(deadline_s, kill)
    timer.start()
    try:
        yield
    except OSError as e:
        why = f"it took longer than {deadline_s:g} s" if is_late.is_set() else str(e)
        raise harness.CannotRun(f"the image could not be read: {why}") from e
    finally:
        timer.cancel()
        timer.join()


def read(path: pathlib.Path, spans: Sequence[tuple[int, int]]) -> None:
    """Read ranges (offset, length) of a file with O_DIRECT.

    :raises OSError: a read failed, or the file is shorter
    """
    buffer = memoryview(mmap.mmap(-1, READ_BYTES))  # O_DIRECT needs alignment
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for offset, length in spans:
            if os.preadv(fd, [buffer[:length]], offset) != length:
                raise OSError(f"{path} ends before {offset + length}")
    finally:
        os.close(fd)


def whole(image_bytes: int) -> list[tuple[int, int]]:
    """Return the reads that cover an image.

    >>> whole(READ_BYTES + 4096)
    [(0, 1048576), (1048576, 4096)]
    """
    starts = range(0, image_bytes, READ_BYTES)
    return [(start, min(READ_BYTES, image_bytes - start)) for start in starts]


def cost(
    reader: agents.Agent,
    image_id: ids.ImageId,
    image_bytes: int,
    payers: Sequence[agents.Agent],
    repeats: int = 1,
) -> Figures:
    """Read the image through ``reader``; return the cost for ``payers``.

    :raises harness.CannotRun: it could not be read or stored
    """
    touch_memory(reader.folder, TOUCHED * image_bytes)
    before = [harness.cpu_seconds(agent.pid) for agent in payers]
    began = time.perf_counter()
    with bounded([reader]):
        for _ in range(repeats):
            read(reader.image_path(image_id), whole(image_bytes))
    took_s = time.perf_counter() - began
    settle(reader)
    after = [harness.cpu_seconds(agent.pid) for agent in payers]
    gigabytes = repeats * image_bytes / GB
    by_agent = [(b - a) / gigabytes for a, b in zip(before, after, strict=True)]
    return {
        "cpu_s_per_gb": sum(by_agent),
        "by_agent": by_agent,
        "gb_per_s": gigabytes / took_s,
    }


def plainly(
    folder: pathlib.Path, images: local.ImageFolder, image_id: ids.ImageId, senders: int = 1
) -> Figures:
    """Send, check and store an image with plain Python; return the cost of both ends.

    :param folder: for the stored image, temporarily
    """
    path, image_map = images.path(image_id), images.map_of(image_id)
    cids = [image_map.cid_of(number) for number in range(len(image_map))]
    touch_memory(folder, TOUCHED * path.stat().st_size)
    stored = folder / "stored"
    cost = plain_sockets.move(path, stored, cids, senders)
    stored.unlink()
    return {
        "cpu_s_per_gb": cost.cpu_s_per_gb,
        "by_agent": cost.by_end,
        "gb_per_s": cost.gb_per_s,
    }


def touch_memory(folder: pathlib.Path, length: int) -> None:
    """Make the kernel cache ``length`` bytes of a file, then delete it.

    A virtual machine may report free pages to its host (free page reporting).  The first touch of
    each then costs several us, up to 2.5 s/GB, which the first measurement would pay.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(0, length, len(_PIECE)):
            file.write(_PIECE)


def settle(agent: agents.Agent) -> None:
    """Wait until fetched chunks are on disk: storing is part of the cost.

    :raises harness.CannotRun: they are not within STORED_DEADLINE_S
    """
    end = time.monotonic() + STORED_DEADLINE_S
    while pending := agent.status()["cache"]["pending_bytes"]:
        if time.monotonic() > end:
            raise harness.CannotRun(f"{pending} bytes are not stored after {STORED_DEADLINE_S} s")
        time.sleep(0.02)


def peers_share(agent: agents.Agent, image_bytes: int, least: float = 0.0) -> float:
    """Return the share of an image that came from other hosts.

    The rest are chunks with the reader as home, chunks requested from the source in parallel to a
    slow peer, and chunks requested from the source first, since peers were slower.

    :raises harness.CannotRun: it is below ``least``; then the figures do not measure peers
    """
    fetched = agent.status()["fetched"]
    moved = fetched["home"]["bytes"] + fetched["peer"]["bytes"]
    if moved < least * image_bytes:
        raise harness.CannotRun(f"{moved} of {image_bytes} bytes came from other hosts")
    return float(moved / image_bytes)
