# SPDX-License-Identifier: Apache-2.0
"""A read of chunks by a task of this host: one event for all chunks."""

from collections.abc import Sequence
from typing import NamedTuple

import trio

from acstor_agent.core import counters
from acstor_agent.core.mount import blocked_requests
from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine_io import engine_driver
from acstor_common import errors

Failure = failure.Failure
Priority = priority.Priority
ChunkRef = chunk_ref.ChunkRef
Bytes = bytes | bytearray | memoryview

PEERS = "the source and other hosts"


class FetchedChunk(NamedTuple):
    """A verified chunk and its origin."""

    data: Bytes
    origin: counters.Origin


class ReadRequest:
    """A pending read, a token of the engine; leaving the block cancels it."""

    __slots__ = ("_answer", "_deadline_s", "_done", "_driver", "guest_wait", "refs")

    def __init__(
        self,
        driver: engine_driver.EngineDriver,
        refs: Sequence[ChunkRef],
        deadline_s: float,
        guest_wait: blocked_requests.Wait | None,
    ) -> None:
        self.refs = refs
        self.guest_wait = guest_wait  # gets the last failure each time that all providers failed
        self._deadline_s, self._driver = deadline_s, driver
        self._done = trio.Event()
        self._answer: actions.CompleteRead | None = None

    def __enter__(self) -> "ReadRequest":
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer is None:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the read."""
        self._driver.handle_event(self._driver.core.cancel_reads, self)

    def complete(self, answer: actions.CompleteRead) -> None:
        """Take the answer."""
        self._answer = answer
        self._done.set()

    async def wait(self) -> Sequence[FetchedChunk]:
        """Return the chunks, in the order of ``refs``.

        :raises errors.ChunkLost: a chunk is lost
        :raises errors.DeadlineExceeded: the deadline passed
        :raises errors.ChunkUnavailable: no provider gave a chunk, and there is no retry
        """
        if self._answer is None:
            await self._done.wait()
        assert self._answer is not None
        if self._answer.failure is None:
            return self._answer.chunks
        if self._answer.failure is Failure.LATE:
            raise errors.DeadlineExceeded(self.description, self._deadline_s, self._answer.why)
        raise error_of(self._answer, self.description)

    @property
    def description(self) -> str:
        """The chunks, in words."""
        first, count = self.refs[0], len(self.refs)
        more = f" and {count - 1} more" if count > 1 else ""
        return f"{describe_chunk(first)}{more}"


_ERRORS: dict[Failure, type[errors.ChunkUnavailable]] = {
    Failure.LOST: errors.ChunkLost,
    Failure.MISSING: errors.ChunkMissing,
    Failure.WITHHELD: errors.ChunkRefused,
    Failure.INVALID: errors.ChunkInvalid,
}


def error_of(answer: actions.CompleteRead, what: str) -> errors.ChunkUnavailable:
    """Return the exception for a failed read."""
    assert answer.failure is not None
    return _ERRORS.get(answer.failure, errors.SourceUnreachable)(what, PEERS, answer.why)


def describe_chunk(ref: ChunkRef) -> str:
    """Return a description of a chunk."""
    return f"chunk {ref.cid.hex()[:12]} (image {ref.image_id}, byte {ref.offset})"


def failure_of(error: Exception) -> Failure:
    """Return the engine's failure for an error of a source or a connection."""
    if isinstance(error, errors.ChunkRefused):
        return Failure.WITHHELD
    if isinstance(error, errors.ChunkMissing):
        return Failure.MISSING
    if isinstance(error, errors.ChunkInvalid | errors.RemoteProtocolError):
        return Failure.INVALID
    if isinstance(error, errors.SourceOverloaded):
        return Failure.BUSY
    return Failure.UNREACHABLE
