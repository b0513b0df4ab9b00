# SPDX-License-Identifier: Apache-2.0
"""The floor of an exchange: plain Python that sends, checks and stores an image.

Each sender is a process and answers requests of SPAN_BYTES from a file over the loopback, by
``preadv`` and ``sendall``.  The reader has one request open at each sender, receives into one
buffer (``recv_into``), compares the BLAKE3 hash of each chunk with its CID, and writes to a
preallocated file.  There are no messages, no tables and no FUSE: all further cost of an agent is
its own.
"""

import contextlib
import functools
import os
import pathlib
import resource
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.model import geometry
from acstor_common.model import ids

LOOPBACK = "127.0.0.1"
CHUNK = geometry.DEFAULT_CHUNK_BYTES
SPAN_BYTES = geometry.MIB
GB = 1e9
DEADLINE_S = 60.0
"""Timeout of each socket operation."""
_OFFSET = struct.Struct(">Q")
_FIGURE = struct.Struct("d")
_MEASURE = (1 << 64) - 1
"""Instead of an offset: resets the sender's CPU time."""


class Cost(NamedTuple):
    """The cost of a transfer.

    :param reader_s: processor time of the reader, in seconds
    :param senders_s: processor time of each sender, in seconds
    """

    length: int
    took_s: float
    reader_s: float
    senders_s: tuple[float, ...]

    @property
    def by_end(self) -> list[float]:
        """CPU seconds per gigabyte of the reader, then of each sender."""
        return [spent_s / (self.length / GB) for spent_s in (self.reader_s, *self.senders_s)]

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds per gigabyte of all ends."""
        return sum(self.by_end)

    @property
    def gb_per_s(self) -> float:
        """The rate."""
        return self.length / GB / self.took_s


def cpu_s() -> float:
    """Return the processor time of this process, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def beside(work: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    """Run ``work`` in a process; yield a socket to it, with a timeout.

    The process is killed when the block ends.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            ours.close()
            work(theirs)
            status = 0
        except BaseException:  # the parent does not see this process's errors
            traceback.print_exc()
        finally:
            os._exit(status)
    theirs.close()  # so that a read fails when the process ends
    ours.settimeout(DEADLINE_S)
    try:
        yield ours
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def send_number(pipe: socket.socket, figure: float) -> None:
    """Send a number to the other side of ``beside``."""
    pipe.sendall(_FIGURE.pack(figure))


def receive_number(pipe: socket.socket) -> float:
    """Receive a number from the other side.

    :raises ConnectionError: it has ended
    """
    raw = pipe.recv(_FIGURE.size, socket.MSG_WAITALL)
    if len(raw) < _FIGURE.size:
        raise ConnectionError("the other process has ended")
    figure: float = _FIGURE.unpack(raw)[0]
    return figure


def move(
    image: pathlib.Path,
    stored: pathlib.Path,
    cids: Sequence[ids.Cid],
    senders: int = 1,
    *,
    unmeasured: int = 0,
    repeats: int = 1,
) -> Cost:
    """Transfer an image, a multiple of SPAN_BYTES, with spans from senders in turn.

    :param cids: of its chunks
    :param unmeasured: number of transfers before the measurement
    :param repeats: number of measured transfers
    :raises ValueError: a chunk does not match its CID
    :raises OSError: a sender failed, or was silent for DEADLINE_S
    """
    with contextlib.ExitStack() as stack:
        work = functools.partial(_give, image)
        pipes = [stack.enter_context(beside(work)) for _ in range(senders)]
        ports = [int(receive_number(pipe)) for pipe in pipes]
        with _Reader(stored, cids, ports) as reader:
            for _ in range(unmeasured):
                reader.read_all()
            reader.measure()
            began_s, used_s = time.perf_counter(), cpu_s()
            for _ in range(repeats):
                reader.read_all()
            took_s, used_s = time.perf_counter() - began_s, cpu_s() - used_s
        senders_s = tuple(receive_number(pipe) for pipe in pipes)
    return Cost(repeats * len(cids) * CHUNK, took_s, used_s, senders_s)


def _give(image: pathlib.Path, pipe: socket.socket) -> None:
    """Serve one reader until it disconnects; send the port first, and the cost last."""
    view = memoryview(bytearray(SPAN_BYTES))
    with socket.create_server((LOOPBACK, 0)) as listener, image.open("rb") as file:
        listener.settimeout(DEADLINE_S)
        send_number(pipe, listener.getsockname()[1])
        link, _ = listener.accept()
        link.settimeout(DEADLINE_S)
        began_s = cpu_s()
        while len(asked := link.recv(_OFFSET.size, socket.MSG_WAITALL)) == _OFFSET.size:
            (offset,) = _OFFSET.unpack(asked)
            if offset == _MEASURE:
                began_s = cpu_s()
                continue
            if os.preadv(file.fileno(), [view], offset) != SPAN_BYTES:
                raise ValueError(f"{image} ends before {offset + SPAN_BYTES}")
            link.sendall(view)
        send_number(pipe, cpu_s() - began_s)


class _Reader:
    """Reads the whole image, repeatedly."""

    def __init__(self, stored: pathlib.Path, cids: Sequence[ids.Cid], ports: Sequence[int]) -> None:
        self._cids = cids
        self._offsets = range(0, len(cids) * CHUNK, SPAN_BYTES)
        self._view = memoryview(bytearray(SPAN_BYTES))
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(stored.open("wb"))
        os.posix_fallocate(self._file.fileno(), 0, len(cids) * CHUNK)
        self._links = [
            self._stack.enter_context(socket.create_connection((LOOPBACK, port), DEADLINE_S))
            for port in ports
        ]

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self) -> None:
        """Reset the senders' CPU time."""
        for link in self._links:
            link.sendall(_OFFSET.pack(_MEASURE))

    def read_all(self) -> None:
        """Read the image once."""
        count = len(self._links)
        for link, offset in zip(self._links, self._offsets, strict=False):
            link.sendall(_OFFSET.pack(offset))
        for number, offset in enumerate(self._offsets):
            link = self._links[number % count]
            self._receive(link)
            if number + count < len(self._offsets):
                link.sendall(_OFFSET.pack(self._offsets[number + count]))
            self._check(offset)
            os.pwrite(self._file.fileno(), self._view, offset)

    def _receive(self, link: socket.socket) -> None:
        got = 0
        while got < SPAN_BYTES:
            count = link.recv_into(self._view[got:])
            if not count:
                raise ConnectionError("a sender has ended")
            got += count

    def _check(self, offset: int) -> None:
        for at in range(0, SPAN_BYTES, CHUNK):
            number = (offset + at) // CHUNK
            if ids.cid_of(self._view[at : at + CHUNK]) != self._cids[number]:
                raise ValueError(f"chunk {number} does not match its CID")
