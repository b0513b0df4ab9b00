# SPDX-License-Identifier: Apache-2.0
"""What the kernel was told of a mount, for all who will serve it.

A line of JSON for each fact, in a file in memory that all of them share: the supervisor, its
workers, and who keeps it while no supervisor runs.  Facts are added, each by one write; a line that
is not whole was not told to anybody.  Only who is the last to have it writes it anew.

The one rule: a fact is written before the kernel is told, so whoever comes next knows it.
"""

import os
from typing import Self

import msgspec

from acstor_agent.core import inodes

NAME = "acstor mount"


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


class Unanswered(msgspec.Struct, frozen=True, tag_field="fact", tag="unanswered"):
    """Requests were left unanswered by who has gone (process/relay.py)."""

    requests: list[bytes]


_Fact = Mounted | Answered | Unanswered
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
    def make(cls, init_request: bytes) -> Self:
        """Begin the record of a mount that was made just now."""
        fd = os.memfd_create(NAME)
        _add(fd, Mounted(inodes.LAYOUT, init_request))
        return cls(fd)

    def answer(self) -> bytes | None:
        """Return what FUSE_INIT was answered with, None if it was not."""
        answers = [fact.reply for fact in self._facts() if isinstance(fact, Answered)]
        return answers[0] if answers else None

    def answered(self, reply: bytes) -> None:
        """Note what FUSE_INIT is about to be answered with."""
        _add(self.fd, Answered(reply))

    def unanswered(self) -> list[bytes]:
        """Return the requests that were left last."""
        left = [fact.requests for fact in self._facts() if isinstance(fact, Unanswered)]
        return left[-1] if left else []

    def left_unanswered(self, requests: list[bytes]) -> None:
        """Note which requests are left; those that were left before do not matter any more."""
        answer = self.answer()
        os.ftruncate(self.fd, 0)
        for fact in (self.mounted, Answered(answer) if answer else None, Unanswered(requests)):
            if fact is not None:
                _add(self.fd, fact)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def _facts(self) -> list[_Fact]:
        data = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        try:
            return [_decoder.decode(line) for line in data.rpartition(b"\n")[0].splitlines()]
        except msgspec.DecodeError as e:
            raise ValueError(str(e)) from e


def _add(fd: int, fact: _Fact) -> None:
    line = memoryview(_encoder.encode(fact) + b"\n")
    while line:
        os.lseek(fd, 0, os.SEEK_END)
        line = line[os.write(fd, line) :]
