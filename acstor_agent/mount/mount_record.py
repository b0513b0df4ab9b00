# SPDX-License-Identifier: Apache-2.0
"""What the kernel was told of a mount, for all who will serve it.

A line of JSON for each fact, in a file in memory that all of them share: the supervisor, its
workers, and who keeps it while no supervisor runs.  Facts are added, never changed, each by one
write; a line that is not whole was not told to anybody.

The one rule: a fact is written before the kernel is told, so whoever comes next knows it.
"""

import os
from typing import Self

import msgspec

from acstor_agent.core import inodes

NAME = "acstor mount"
LIMIT_BYTES = 256 * 1024


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


_decoder: msgspec.json.Decoder[Mounted | Answered] = msgspec.json.Decoder(Mounted | Answered)
_encoder = msgspec.json.Encoder()


class MountRecord:
    """The record of one mount.

    :param fd: the file in memory; the record closes it
    :raises ValueError: there is no record in it
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.mounted = self._facts()[0]

    @classmethod
    def make(cls, init_request: bytes) -> Self:
        """Begin the record of a mount that was made just now."""
        fd = os.memfd_create(NAME)
        os.write(fd, _encoder.encode(Mounted(inodes.LAYOUT, init_request)) + b"\n")
        return cls(fd)

    def answer(self) -> bytes | None:
        """Return what FUSE_INIT was answered with, None if it was not."""
        return self._facts()[1]

    def answered(self, reply: bytes) -> None:
        """Note what FUSE_INIT is about to be answered with."""
        os.lseek(self.fd, 0, os.SEEK_END)
        os.write(self.fd, _encoder.encode(Answered(reply)) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def _facts(self) -> tuple[Mounted, bytes | None]:
        whole, _, _ = os.pread(self.fd, LIMIT_BYTES, 0).rpartition(b"\n")
        try:
            facts = [_decoder.decode(line) for line in whole.splitlines()]
        except msgspec.DecodeError as e:
            raise ValueError(str(e)) from e
        mounted = [fact for fact in facts if isinstance(fact, Mounted)]
        answers = [fact.reply for fact in facts if isinstance(fact, Answered)]
        if len(mounted) != 1:
            raise ValueError("it does not say what was mounted")
        return mounted[0], answers[0] if answers else None
