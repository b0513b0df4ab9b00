# SPDX-License-Identifier: Apache-2.0
"""The mount record: the agent's answers to the kernel on a mount, for later processes.

JSON lines in a memfd shared by the supervisor, its workers and the holder, each appended by one
write before the kernel gets it. After them come a relay's requests (process/inflight_requests.py).
"""

import os
from typing import Self

import msgspec

from acstor_agent.core.mount import inodes

NAME = "acstor mount"
ENTRIES_BYTES = 1 << 20  # space for entries, several times what they need


class Mounted(msgspec.Struct, frozen=True, tag_field="entry", tag="mounted"):
    """The mount was created, with this :data:`inodes.LAYOUT`."""

    inode_layout: int
    init_request: bytes


class InitAnswered(msgspec.Struct, frozen=True, tag_field="entry", tag="answered"):
    """FUSE_INIT was answered."""

    reply: bytes


_Entry = Mounted | InitAnswered
_decoder: msgspec.json.Decoder[_Entry] = msgspec.json.Decoder(_Entry)
_encoder = msgspec.json.Encoder()


class MountRecord:
    """The record of a mount in a memfd, which it closes; raises ValueError if it is invalid."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        mounted = [entry for entry in self._entries() if isinstance(entry, Mounted)]
        if len(mounted) != 1:
            raise ValueError("it does not record what was mounted")
        self.mounted = mounted[0]

    @classmethod
    def begin_record(cls, init_request: bytes) -> Self:
        """Create the record of a new mount."""
        fd = os.memfd_create(NAME)
        try:
            _add(fd, Mounted(inodes.LAYOUT, init_request))
            return cls(fd)
        except OSError:
            os.close(fd)
            raise

    def init_answer(self) -> bytes | None:
        """Return the answer to FUSE_INIT, None if there was none."""
        answers = [entry.reply for entry in self._entries() if isinstance(entry, InitAnswered)]
        return answers[0] if answers else None

    def record_init_answer(self, reply: bytes) -> None:
        """Record the answer to FUSE_INIT before it is sent."""
        _add(self.fd, InitAnswered(reply))

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def _entries(self) -> list[_Entry]:
        try:
            return [_decoder.decode(line) for line in _lines(self.fd).splitlines()]
        except msgspec.DecodeError as e:
            raise ValueError(str(e)) from e


def is_record(fd: int) -> bool:
    """Return whether a descriptor is of a record, not of a mount."""
    return os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{NAME}")


def _lines(fd: int) -> bytes:
    lines, end, _ = os.pread(fd, ENTRIES_BYTES, 0).rpartition(b"\n")
    return lines + end


def _add(fd: int, entry: _Entry) -> None:
    at = len(_lines(fd))
    line = memoryview(_encoder.encode(entry) + b"\n")
    while line:
        written = os.pwrite(fd, line, at)
        at, line = at + written, line[written:]
