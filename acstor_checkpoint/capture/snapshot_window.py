# SPDX-License-Identifier: Apache-2.0
"""Time limits of snapshots.

libvirt refuses to migrate a server during a snapshot.  So a snapshot is read for a limited time,
and the rest is read from the next one: a part.  For a guest that writes faster than its disk is
read this never ends; after PARTS parts without progress, one snapshot is read to its end, with a
much longer limit.  Only one server of the host at a time has such a snapshot.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

from acstor_common import errors

PARTS: Final = 3
_USE: Final = 1 / 8
"""Least progress of a part: share of the read bytes by which the rest must shrink."""

IsLate = Callable[[], bool]
"""Returns whether to stop reading a snapshot."""


class PartTaken(errors.AcstorError):
    """A part of a checkpoint was stored; the next attempt continues with the rest.

    :param slow_holder: the other holders waited for it; "": none
    """

    def __init__(self, read_bytes: int, left_bytes: int, slow_holder: str = "") -> None:
        super().__init__(read_bytes, left_bytes, slow_holder)
        self.read_bytes, self.left_bytes = read_bytes, left_bytes
        self.slow_holder = slow_holder

    def __str__(self) -> str:
        return f"{self.read_bytes} bytes were read; {self.left_bytes}, and what is written, follow"


class Overwritten(PartTaken):
    """A part without progress: the guest overwrote too much during the capture.

    While this continues, the server has no new checkpoint.
    """

    def __str__(self) -> str:
        why = "the guest overwrites a quarter of scratch_limit_bytes while its disk is read"
        return f"{super().__str__()}; {why}"


def is_useless_part(before_bytes: int, left_bytes: int, read_bytes: int) -> bool:
    """Return whether a part made no progress.

    >>> is_useless_part(0, 900, 100), is_useless_part(900, 800, 100), is_useless_part(900, 890, 100)
    (False, False, True)

    :param before_bytes: left by the part before; 0: there was none
    :param left_bytes: left by this one
    """
    return bool(before_bytes) and before_bytes - left_bytes <= read_bytes * _USE


class SnapshotWindow:
    """Time limits of all servers' snapshots; thread-safe.

    :param longest_s: limit of a snapshot
    :param most_s: limit after PARTS parts without progress
    """

    def __init__(
        self, longest_s: float, most_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._longest_s, self._most_s, self._clock = longest_s, most_s, clock
        self._long = threading.Lock()

    @contextlib.contextmanager
    def open_window(self, stuck: int) -> Iterator[tuple[IsLate, bool]]:
        """Yield an :data:`IsLate`, and whether the long limit applies.

        The time begins with its first call.

        :param stuck: parts without progress
        """
        is_long = stuck >= PARTS and self._long.acquire(blocking=False)
        until_s = 0.0

        def is_late() -> bool:
            nonlocal until_s
            until_s = until_s or self._clock() + (self._most_s if is_long else self._longest_s)
            return self._clock() > until_s

        try:
            yield is_late, is_long
        finally:
            if is_long:
                self._long.release()
