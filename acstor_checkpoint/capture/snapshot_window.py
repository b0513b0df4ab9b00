# SPDX-License-Identifier: Apache-2.0
"""Time limits of snapshots, during which libvirt refuses to migrate the server.

A snapshot is read for a limited time, as one part; the next snapshot has the rest.  If a guest
writes faster than its disk is read, after MAX_STALLED_PARTS parts one snapshot is read to its end,
with a much longer limit, for one server of the host at a time.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

from acstor_common import errors
from acstor_common.model import clocks

MAX_STALLED_PARTS: Final = 3
_USE: Final = 1 / 8
"""Least progress of a part: share of the read bytes by which the rest must shrink."""

ShouldStop = Callable[[], bool]  # returns whether to stop reading a snapshot


@dataclasses.dataclass(eq=False)
class PartialCapture(errors.AcstorError):
    """A part was stored, and the next attempt continues; ``slow_holder`` delayed it ("": none)."""

    read_bytes: int
    unread_bytes: int
    slow_holder: str = ""
    text = "{read_bytes} bytes were read; {unread_bytes}, and new writes, follow"


class Overwritten(PartialCapture):
    """A part without progress: the guest overwrote too much during the capture."""

    text = (
        f"{PartialCapture.text}; the guest overwrites a quarter of scratch_limit_bytes while its "
        "disk is read"
    )


def has_stalled(before_bytes: int, unread_bytes: int, read_bytes: int) -> bool:
    """Return whether a part made no progress.

    >>> has_stalled(0, 900, 100), has_stalled(900, 800, 100), has_stalled(900, 890, 100)
    (False, False, True)

    :param before_bytes: left by the part before; 0: there was none
    :param unread_bytes: left by this one
    """
    return bool(before_bytes) and before_bytes - unread_bytes <= read_bytes * _USE


class SnapshotWindow:
    """Time limits of all servers' snapshots, the long one after MAX_STALLED_PARTS; thread-safe."""

    def __init__(self, window_s: float, long_window_s: float, clock: clocks.Clock = time) -> None:
        self._window_s, self._long_window_s, self._clock = window_s, long_window_s, clock
        self._long = threading.Lock()

    @contextlib.contextmanager
    def open_window(self, stalled_parts: int) -> Iterator[tuple[ShouldStop, bool]]:
        """Yield a :data:`ShouldStop`, timed from its first call, and whether the limit is long."""
        is_long = stalled_parts >= MAX_STALLED_PARTS and self._long.acquire(blocking=False)
        until_s = 0.0

        def should_stop() -> bool:
            nonlocal until_s
            until_s = until_s or self._clock.monotonic() + (
                self._long_window_s if is_long else self._window_s
            )
            return self._clock.monotonic() > until_s

        try:
            yield should_stop, is_long
        finally:
            if is_long:
                self._long.release()
