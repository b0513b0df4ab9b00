# SPDX-License-Identifier: Apache-2.0
"""Limits the system calls that hang in the kernel at a dead file server.

A thread in such a call cannot be ended, only abandoned. An abandoned call older than HANGS_AFTER_S
hangs. With ``most`` hung calls (fewer of one file) no new one starts until one returns, except one
after TRY_AGAIN_S, then after twice as long each time, while fewer than twice ``most`` hang. A call
that returns discounts the abandoned ones that began before it.
"""

import dataclasses
from collections.abc import Hashable
from typing import NamedTuple

HANGS_AFTER_S = 5.0
TRY_AGAIN_S = 60.0


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    """One call under way."""

    of: Hashable
    began_s: float
    is_left: bool = False  # its caller gave up
    is_past: bool = False  # a later call returned
    is_past_of_one: bool = False  # a later call of the same file returned


class Hanging(NamedTuple):
    """The hung calls."""

    calls: int = 0
    for_s: float = 0.0

    def __str__(self) -> str:
        words = "1 call hangs" if self.calls == 1 else f"{self.calls} calls hang"
        return f"{words}, the oldest for {self.for_s:.0f} s"


class Fence:
    """The calls under way at one place.

    >>> fence = Fence(most=2, most_of_one=1)
    >>> call = fence.begin_call("a", now_s=0.0)
    >>> fence.abandon_call(call)
    >>> fence.count_hung(4.0).calls, str(fence.count_hung(30.0))
    (0, '1 call hangs, the oldest for 30 s')
    >>> fence.is_refused("a", 30.0), fence.is_refused("b", 30.0)
    (True, False)
    >>> fence.end_call(call)
    >>> fence.is_refused("a", 30.0)
    False
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one  # of all, of one file
        self._calls: set[Call] = set()

    def begin_call(self, of: Hashable, now_s: float) -> Call:
        """Record the start of a call."""
        call = Call(of, now_s)
        self._calls.add(call)
        return call

    def abandon_call(self, call: Call) -> None:
        """Record that the caller gave up."""
        call.is_left = True

    def end_call(self, call: Call) -> None:
        """Record the return of a call."""
        self._calls.discard(call)
        for other in self._calls:
            if other.is_left and other.began_s < call.began_s:
                other.is_past = True
                other.is_past_of_one |= other.of == call.of

    def count_hung(self, now_s: float) -> Hanging:
        """Return the hung calls; any thread may call it."""
        hang = self._hanging(now_s)
        return Hanging(len(hang), max((now_s - call.began_s for call in hang), default=0.0))

    def is_refused(self, of: Hashable, now_s: float) -> bool:
        """Return whether no call of ``of`` may start now."""
        hang = self._hanging(now_s)
        if len(hang) >= 2 * self._most:
            return True
        count = sum(not call.is_past for call in hang)
        count_of_one = sum(not call.is_past_of_one and call.of == of for call in hang)
        if count < self._most and count_of_one < self._most_of_one:
            return False
        of_one = sum(call.of == of for call in hang)
        tries = max(0, len(hang) - self._most, of_one - self._most_of_one)
        is_closed = count >= self._most
        began_s = max(call.began_s for call in self._calls if is_closed or call.of == of)
        return now_s - began_s < TRY_AGAIN_S * 2.0**tries

    def _hanging(self, now_s: float) -> list[Call]:
        calls = self._calls.copy()
        return [call for call in calls if call.is_left and now_s - call.began_s >= HANGS_AFTER_S]
