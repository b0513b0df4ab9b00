# SPDX-License-Identifier: Apache-2.0
"""Calls that may hang in the kernel: how many do, and whether another one may be begun.

A thread in a system call of a dead file server cannot be ended; who waited for it can only leave
it behind.  The rules:

* when ``most`` calls hang, no other is begun until one comes back, which is the sign that the place
  answers.  A smaller number is the bound for one and the same thing (a file), so that one which
  hangs does not close the place for the others;
* a call that comes back lets those count no more that began before it and that nobody waits for:
  what they hang in may be gone for good, as after a file system was mounted anew.  So that this
  is noticed, a closed place is tried by one call after TRY_AGAIN_S, then after twice as long and
  so on; and so is one thing, however busy the place is with others;
* in no case do more than twice ``most`` hang.

A call hangs if nobody waits for it any more and it has been under way for HANGS_AFTER_S: the
reader of a healthy place may lose interest, too, and its call comes back at once.
"""

import dataclasses
from collections.abc import Hashable
from typing import NamedTuple

HANGS_AFTER_S = 5.0
TRY_AGAIN_S = 60.0


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    """One call under way.

    :param of: the thing that it is about
    :param is_left: nobody waits for it any more
    :param is_past: one that began later has come back
    :param is_past_of_one: and so has one about the same thing
    """

    of: Hashable
    began_s: float
    is_left: bool = False
    is_past: bool = False
    is_past_of_one: bool = False


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

    :param most: calls that may hang before it is closed
    :param most_of_one: calls about one thing that may

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

    def begin_call(self, of: Hashable, now_s: float) -> Call:
        """Note that a call has begun."""
        call = Call(of, now_s)
        self._calls.add(call)
        return call

    def abandon_call(self, call: Call) -> None:
        """Note that nobody waits for a call any more."""
        call.is_left = True

    def end_call(self, call: Call) -> None:
        """Note that a call has come back."""
        self._calls.discard(call)
        for other in self._calls:
            if other.is_left and other.began_s < call.began_s:
                other.is_past = True
                other.is_past_of_one |= other.of == call.of

    def count_hung(self, now_s: float) -> Hanging:
        """Return how many calls hang; may be called from another thread."""
        hang = self._hanging(now_s)
        return Hanging(len(hang), max((now_s - call.began_s for call in hang), default=0.0))

    def is_refused(self, of: Hashable, now_s: float) -> bool:
        """Say whether no call about ``of`` may be begun now."""
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
