# SPDX-License-Identifier: Apache-2.0
"""What the kernel was told of a mount, for all who will serve it.

A line of JSON for each fact, in a file in memory that all of them share: the supervisor, its
workers, and who keeps it while no supervisor runs.  Facts are added, each by one write; a line that
is not whole was not told to anybody.  Behind the facts is what a relay has under way
(process/inflight_requests.py).

The one rule: a fact is written before the kernel is told, so whoever comes next knows it, and it
stays.
"""

import os
from typing import Self

import msgspec

from acstor_agent.core.mount import inodes

NAME = "acstor mount"
FACTS_BYTES = 1 << 20
"""Room for facts, several times what they need."""


class Mounted(msgspec.Struct, frozen=True, tag_field="fact", tag="mounted"):
    """The mount was made.

    :param numbers: what inodes and handles of this mount mean (:data:`inodes.LAYOUT`)
    :param init_request: the FUSE_INIT that the kernel sent
    """

    numbers: int
    init_request: bytes


class Answered(msgspec.Struct, frozen=True, tag_field="fact", tag="answered"):
    """FUSE_INIT was answered."""

    reply: bytes


_Fact = Mounted | Answered
_decoder: msgspec.json.Decoder[_Fact] = msgspec.json.Decoder(_Fact)
_encoder = msgspec.json.Encoder()


class MountRecord:
    """The record of one mount.

    :param fd: the file in memory; the record closes it
    :raises ValueError: there is no record in it
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        mounted = [fact for fact in self._facts() if isinstance(fact, Mounted)]
        if len(mounted) != 1:
            raise ValueError("it does not say what was mounted")
        self.mounted = mounted[0]

    @classmethod
    def begin_record(cls, init_request: bytes) -> Self:
        """Begin the record of a mount that was made just now."""
        fd = os.memfd_create(NAME)
        _add(fd, Mounted(inodes.LAYOUT, init_request))
        return cls(fd)

    def init_answer(self) -> bytes | None:
        """Return what FUSE_INIT was answered with, None if it was not."""
        answers = [fact.reply for fact in self._facts() if isinstance(fact, Answered)]
        return answers[0] if answers else None

    def record_init_answer(self, reply: bytes) -> None:
        """Note what FUSE_INIT is about to be answered with."""
        _add(self.fd, Answered(reply))

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def _facts(self) -> list[_Fact]:
        try:
            return [_decoder.decode(line) for line in _lines(self.fd).splitlines()]
        except msgspec.DecodeError as e:
            raise ValueError(str(e)) from e


def is_record(fd: int) -> bool:
    """Say whether a descriptor is that of a record, not that of a mount."""
    return os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{NAME}")


def _lines(fd: int) -> bytes:
    """Return the lines that are whole."""
    lines, end, _ = os.pread(fd, FACTS_BYTES, 0).rpartition(b"\n")
    return lines + end


def _add(fd: int, fact: _Fact) -> None:
    at = len(_lines(fd))
    line = memoryview(_encoder.encode(fact) + b"\n")
    while line:
        written = os.pwrite(fd, line, at)
        at, line = at + written, line[written:]
