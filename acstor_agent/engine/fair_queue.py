# SPDX-License-Identifier: Apache-2.0
"""A fair queue with priorities: for uploads, peer requests, source reads, retries.

The most urgent priority goes first, but one of LOWER_EVERY turns goes to the lower ones in
rotation. Within a priority, flows take turns (round robin: Nagle, RFC 970, 1985), as do the sharers
of a flow.
"""

import collections
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Generic
from typing import TypeVar

from acstor_agent.engine import priority

T = TypeVar("T", bound=Hashable)
_Queue = collections.OrderedDict[Hashable, dict[T, None]]
_Line = collections.OrderedDict[Hashable, _Queue[T]]

LOWER_EVERY = 4
_LINES = len(priority.Priority)


class FairQueue(Generic[T]):
    """Items by priority, flow (``who``) and sharer of the flow.

    >>> turns = FairQueue()
    >>> for who, what in (("h1", 1), ("h1", 2), ("h2", 3)):
    ...     waiting = turns.put_item(priority.Priority.PEER, who, what)
    >>> turns.put_item(priority.Priority.PREFETCH, "h9", 9)
    1
    >>> [turns.take_next() for _ in range(5)]
    [1, 3, 2, 9, None]
    """

    __slots__ = ("_lines", "_served", "_turn", "_urgent_in_a_row", "length")

    def __init__(self) -> None:
        self._lines: list[_Line[T]] = [collections.OrderedDict() for _ in range(_LINES)]
        self._served = [0] * _LINES
        self._turn = 0
        self._urgent_in_a_row = 0
        self.length = 0  # for callers that cannot afford len()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for line in self._lines:
            for queue in line.values():
                for some in queue.values():
                    yield from some

    def put_item(
        self, priority: priority.Priority, who: Hashable, what: T, sharer: Hashable = None
    ) -> int:
        """Queue an item once; return how many items its sharer has."""
        line = self._lines[priority]
        queue = line.get(who)
        if queue is None:
            queue = line[who] = collections.OrderedDict()
        some = queue.get(sharer)
        if some is None:
            some = queue[sharer] = {}
        self.length += what not in some
        some[what] = None
        return len(some)

    def remove(
        self, priority: priority.Priority, who: Hashable, what: T, sharer: Hashable = None
    ) -> bool:
        """Remove an item; return whether it was queued."""
        line = self._lines[priority]
        queue = line.get(who)
        some = queue.get(sharer) if queue is not None else None
        if queue is None or some is None or what not in some:
            return False
        del some[what]
        self.length -= 1
        if not some:
            del queue[sharer]
            if not queue:
                del line[who]
        return True

    def is_queued(
        self, priority: priority.Priority, who: Hashable, what: T, sharer: Hashable = None
    ) -> bool:
        """Return whether an item is queued."""
        queue = self._lines[priority].get(who)
        return queue is not None and what in queue.get(sharer, ())

    def take_next(self, is_urgent: bool = False, without: Hashable = None) -> T | None:
        """Remove and return the next item, if any.

        :param is_urgent: consider the most urgent priority only
        :param without: a flow to skip
        """
        if not self.length:
            return None
        lines = self._lines[:1] if is_urgent else self._lines
        heads = [
            (number, who)
            for number, line in enumerate(lines)
            if line and (who := _first(line, without)) is not None
        ]
        if not heads:
            return None
        number, who = heads[0]
        lower = heads[1:]
        if not lower:
            self._urgent_in_a_row = 0
        elif self._urgent_in_a_row >= LOWER_EVERY - 1:
            number, who = min(lower, key=lambda head: self._served[head[0]])
            self._urgent_in_a_row = 0
        else:
            self._urgent_in_a_row += 1
        return self._pop(number, who)

    def take_of(self, priority: priority.Priority, who: Hashable = None) -> T | None:
        """Remove and return the next item of one priority, and of one flow if given."""
        line = self._lines[priority]
        if not line:
            return None
        who = next(iter(line)) if who is None else who
        return self._pop(priority, who) if who in line else None

    def _pop(self, number: int, who: Hashable) -> T:
        line = self._lines[number]
        queue = line[who]
        sharer, some = next(iter(queue.items()))
        what = next(iter(some))
        del some[what]
        if some:
            queue.move_to_end(sharer)
        else:
            del queue[sharer]
        if queue:
            line.move_to_end(who)
        else:
            del line[who]
        self._turn += 1
        self._served[number] = self._turn
        self.length -= 1
        return what


def _first(line: _Line[T], without: Hashable) -> Hashable | None:
    return next((who for who in line if who != without), None)
