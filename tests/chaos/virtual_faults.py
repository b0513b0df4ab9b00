# SPDX-License-Identifier: Apache-2.0
"""Faults of single hosts in virtual time: failing disks, other versions of the protocol."""

import contextlib
import errno
import os
import pathlib
import struct
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import memory_network

WRITES = ("pwritev", "posix_fallocate")
READS = ("preadv",)


class VersionedHeader:
    """The header of frames, with the protocol version of the host that sends or receives.

    :param off: difference of each host's version from this code's
    """

    def __init__(self, real: struct.Struct, off: Mapping[str, int]) -> None:
        self._real, self._off = real, off
        self.size = real.size

    def pack(self, magic: int, version: int, *rest: int) -> bytes:
        """Return a header of this host's version."""
        return self._real.pack(magic, version + self._off_here(), *rest)

    def unpack_from(self, buffer: Any, start: int = 0) -> tuple[int, ...]:
        """Return a header's fields, which show this code's version if it is this host's."""
        magic, version, *rest = self._real.unpack_from(buffer, start)
        return magic, version - self._off_here(), *rest

    def _off_here(self) -> int:
        return self._off.get(memory_network.here(), 0)


@contextlib.contextmanager
def peer_versions(off: Mapping[str, int]) -> Iterator[None]:
    """Let each host speak its own version of the peer protocol."""
    before = peer_wire.HEADER, peer_receiver._HEADER
    header: Any = VersionedHeader(peer_wire.HEADER, off)
    peer_wire.HEADER = peer_receiver._HEADER = header
    try:
        yield
    finally:
        peer_wire.HEADER, peer_receiver._HEADER = before


@contextlib.contextmanager
def failing_disks(folder: pathlib.Path, errors: Mapping[str, int]) -> Iterator[None]:
    """Fail calls of the caches of hosts.

    :param folder: has a folder for each host
    :param errors: ENOSPC (of writes) or EIO (of reads and writes) for hosts with a failing disk
    """
    real = {name: getattr(os, name) for name in (*WRITES, *READS)}

    def failing(name: str) -> Callable[..., Any]:
        def call(fd: int, *args: Any) -> Any:
            number = errors.get(_host_of(fd, folder), 0) if errors else 0
            if number == errno.EIO or (number and name in WRITES):
                raise OSError(number, os.strerror(number))
            return real[name](fd, *args)

        return call

    for name in real:
        setattr(os, name, failing(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _host_of(fd: int, folder: pathlib.Path) -> str:
    path = pathlib.Path(os.readlink(f"/proc/self/fd/{fd}"))
    return path.relative_to(folder).parts[0] if path.is_relative_to(folder) else ""
