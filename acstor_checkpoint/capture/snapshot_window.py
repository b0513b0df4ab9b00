# SPDX-License-Identifier: Apache-2.0
"""How long one moment of a disk is shown.

As long as it is, libvirt refuses to move the server.  So it is shown for a while, and what
was not read by then is read at the next moment: a part.  A guest that writes faster than its disk
is read would have a part for ever and never a checkpoint.  When PARTS of them were of no use, its
moment is shown until all is read, much longer.

One server of the host at a time has such a moment, so the other workers take the others.
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
"""Of what was read: if no more than that is left less, the guest wrote the rest in that time."""

IsLate = Callable[[], bool]
"""Says, again and again, whether nothing more of a moment is to be read."""


class PartTaken(errors.AcstorError):
    """A part of a checkpoint is kept; the next attempt goes on with the rest, at a new moment.

    :param slow_holder: that the other holders waited for; "" if none
    """

    def __init__(self, read_bytes: int, left_bytes: int, slow_holder: str = "") -> None:
        super().__init__(read_bytes, left_bytes, slow_holder)
        self.read_bytes, self.left_bytes = read_bytes, left_bytes
        self.slow_holder = slow_holder

    def __str__(self) -> str:
        return f"{self.read_bytes} bytes were read; {self.left_bytes}, and what is written, follow"


class Overwritten(PartTaken):
    """A part of no use: it was cut when the guest had overwritten too much meanwhile.

    As long as the guest goes on like this, its server has no new checkpoint.
    """

    def __str__(self) -> str:
        why = "the guest overwrites a quarter of scratch_limit_bytes while its disk is read"
        return f"{super().__str__()}; {why}"


def is_useless_part(before_bytes: int, left_bytes: int, read_bytes: int) -> bool:
    """Say whether a part was of no use.

    >>> is_useless_part(0, 900, 100), is_useless_part(900, 800, 100), is_useless_part(900, 890, 100)
    (False, False, True)

    :param before_bytes: that the part before left; 0: there was none
    :param left_bytes: that this one left
    :param read_bytes: that it read
    """
    return bool(before_bytes) and before_bytes - left_bytes <= read_bytes * _USE


class SnapshotWindow:
    """How long the moments of all servers are shown; may be used by any thread.

    :param longest_s: how long a moment is shown
    :param most_s: how long that of a server is shown of which PARTS parts were of no use
    :param clock: monotonic
    """

    def __init__(
        self, longest_s: float, most_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._longest_s, self._most_s, self._clock = longest_s, most_s, clock
        self._long = threading.Lock()

    @contextlib.contextmanager
    def open_window(self, stuck: int) -> Iterator[tuple[IsLate, bool]]:
        """Yield what says when a moment is over, and whether it is a long one.

        The time of the moment begins when that is asked first.

        :param stuck: parts that were of no use
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
