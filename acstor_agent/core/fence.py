# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang in the kernel: how many do, and whether another one may be begun.

A thread in a system call of a dead file server cannot be ended; who waited for it can only leave
it behind.  The rule: a bounded number of calls is left behind.  When so many hang, no other is
begun until one of them comes back, which is the sign that the place answers again.  A smaller
number is the bound for one and the same thing (a file), so that one which hangs does not close
the place for the others.

A call hangs if nobody waits for it any more and it has been under way for HANGS_AFTER_S: the
reader of a healthy place may lose interest, too, and its call comes back at once.
"""

import dataclasses
from collections.abc import Hashable
from typing import NamedTuple

HANGS_AFTER_S = 5.0


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    """One call under way.

    :param of: the thing that it is about
    """

    of: Hashable
    began_s: float
    is_left: bool = False


class Hanging(NamedTuple):
    """The calls that hang.

    :param for_s: how long the oldest of them has been under way
    """

    calls: int = 0
    for_s: float = 0.0

    def __str__(self) -> str:
        words = "1 call hangs" if self.calls == 1 else f"{self.calls} calls hang"
        return f"{words}, the oldest for {self.for_s:.0f} s"


class Fence:
    """The calls under way at one place.

    :param most: calls that may hang
    :param most_of_one: calls about one thing that may hang

    >>> fence = Fence(most=2, most_of_one=1)
    >>> call = fence.begin("a", now_s=0.0)
    >>> fence.leave(call)
    >>> fence.hanging(4.0).calls, str(fence.hanging(30.0))
    (0, '1 call hangs, the oldest for 30 s')
    >>> fence.refuses("a", 30.0), fence.refuses("b", 30.0)
    (True, False)
    >>> fence.end(call)
    >>> fence.refuses("a", 30.0)
    False
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._calls: set[Call] = set()

    def begin(self, of: Hashable, now_s: float) -> Call:
        """Note that a call has begun."""
        call = Call(of, now_s)
        self._calls.add(call)
        return call

    def leave(self, call: Call) -> None:
        """Note that nobody waits for a call any more."""
        call.is_left = True

    def end(self, call: Call) -> None:
        """Note that a call has come back."""
        self._calls.discard(call)

    def hanging(self, now_s: float) -> Hanging:
        """Return how many calls hang; may be called from another thread."""
        return _summed(self._hanging(now_s), now_s)

    def refuses(self, of: Hashable, now_s: float) -> bool:
        """Say whether no call about ``of`` may be begun now."""
        hang = self._hanging(now_s)
        return len(hang) >= self._most or sum(call.of == of for call in hang) >= self._most_of_one

    def _hanging(self, now_s: float) -> list[Call]:
        calls = self._calls.copy()
        return [call for call in calls if call.is_left and now_s - call.began_s >= HANGS_AFTER_S]


def _summed(calls: list[Call], now_s: float) -> Hanging:
    return Hanging(len(calls), max((now_s - call.began_s for call in calls), default=0.0))
