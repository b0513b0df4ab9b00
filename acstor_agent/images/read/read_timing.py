# SPDX-License-Identifier: Apache-2.0
"""Attributes the bytes of a read to its boot's timeline, by a context variable."""

import contextvars
from collections.abc import Awaitable
from collections.abc import Callable
from typing import TypeVar

from acstor_agent.core.boot import timeline_recorder
from acstor_common.model import clocks

T = TypeVar("T")
Via = timeline_recorder.Via

_read: contextvars.ContextVar[timeline_recorder.Read | None] = contextvars.ContextVar(
    "read", default=None
)


def note_origin(via: Via, length: int, why: str = "") -> None:
    """Record received bytes of the current read."""
    read = _read.get()
    if read is not None:
        read.add(via, length, why)


class Timing:
    """Times the reads of one boot."""

    __slots__ = ("_clock", "recorder")

    def __init__(self, recorder: timeline_recorder.TimelineRecorder, clock: clocks.Clock) -> None:
        self.recorder, self._clock = recorder, clock

    async def run_timed(
        self, work: Callable[..., Awaitable[T]], offset: int, length: int, *args: object
    ) -> T:
        """Run and time ``work(offset, length, *args)``, a read of the boot."""
        read = self.recorder.begin_read(offset, length, self._clock.monotonic())
        former = _read.set(read)
        try:
            return await work(offset, length, *args)
        except BaseException:
            read.is_failed = True
            raise
        finally:
            _read.reset(former)
            self.recorder.end_read(read, self._clock.monotonic())
