# SPDX-License-Identifier: Apache-2.0
"""Fair queue: priorities, and round robin among the flows of each (Nagle, RFC 970, 1985)."""

import collections
from collections.abc import Hashable
from collections.abc import Iterator
from typing import Generic
from typing import TypeVar

from acstor_agent.engine import priority

T = TypeVar("T", bound=Hashable)
_Subflows = collections.OrderedDict[Hashable, dict[T, None]]
_Flows = collections.OrderedDict[Hashable, _Subflows[T]]

LOWER_EVERY = 4  # one turn of this many goes to the lower priorities in rotation, if any waits
_PRIORITIES = len(priority.Priority)


class FairQueue(Generic[T]):
    """Items by priority, flow (such as a host or an image) and subflow (such as a guest).

    >>> turns = FairQueue()
    >>> for flow, item in (("h1", 1), ("h1", 2), ("h2", 3)):
    ...     waiting = turns.put_item(priority.Priority.PEER, flow, item)
    >>> turns.put_item(priority.Priority.PREFETCH, "h9", 9)
    1
    >>> [turns.take_next() for _ in range(5)]
    [1, 3, 2, 9, None]
    """

    __slots__ = ("_by_priority", "_served", "_turn", "_urgent_in_a_row", "length")

    def __init__(self) -> None:
        self._by_priority: list[_Flows[T]] = [collections.OrderedDict() for _ in range(_PRIORITIES)]
        self._served = [0] * _PRIORITIES
        self._turn = 0
        self._urgent_in_a_row = 0
        self.length = 0  # for callers that cannot afford len()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for flows in self._by_priority:
            for subflows in flows.values():
                for items in subflows.values():
                    yield from items

    def put_item(
        self, priority: priority.Priority, flow: Hashable, item: T, subflow: Hashable = None
    ) -> int:
        """Queue an item once; return how many items its subflow has."""
        flows = self._by_priority[priority]
        subflows = flows.get(flow)
        if subflows is None:
            subflows = flows[flow] = collections.OrderedDict()
        items = subflows.get(subflow)
        if items is None:
            items = subflows[subflow] = {}
        self.length += item not in items
        items[item] = None
        return len(items)

    def remove(
        self, priority: priority.Priority, flow: Hashable, item: T, subflow: Hashable = None
    ) -> bool:
        """Remove an item; return whether it was queued."""
        flows = self._by_priority[priority]
        subflows = flows.get(flow)
        items = subflows.get(subflow) if subflows is not None else None
        if subflows is None or items is None or item not in items:
            return False
        del items[item]
        self.length -= 1
        if not items:
            del subflows[subflow]
            if not subflows:
                del flows[flow]
        return True

    def is_queued(
        self, priority: priority.Priority, flow: Hashable, item: T, subflow: Hashable = None
    ) -> bool:
        """Return whether an item is queued."""
        subflows = self._by_priority[priority].get(flow)
        return subflows is not None and item in subflows.get(subflow, ())

    def take_next(self, urgent_only: bool = False, skipped: Hashable = None) -> T | None:
        """Remove and return the next item, if any; ``skipped`` is a flow to leave out."""
        if not self.length:
            return None
        priorities = self._by_priority[:1] if urgent_only else self._by_priority
        heads = [
            (number, flow)
            for number, flows in enumerate(priorities)
            if flows and (flow := _first(flows, skipped)) is not None
        ]
        if not heads:
            return None
        number, flow = heads[0]
        lower = heads[1:]
        if not lower:
            self._urgent_in_a_row = 0
        elif self._urgent_in_a_row >= LOWER_EVERY - 1:
            number, flow = min(lower, key=lambda head: self._served[head[0]])
            self._urgent_in_a_row = 0
        else:
            self._urgent_in_a_row += 1
        return self._pop(number, flow)

    def take_by_priority(self, priority: priority.Priority, flow: Hashable = None) -> T | None:
        """Remove and return the next item of one priority, and of one flow if given."""
        flows = self._by_priority[priority]
        if not flows:
            return None
        flow = next(iter(flows)) if flow is None else flow
        return self._pop(priority, flow) if flow in flows else None

    def _pop(self, number: int, flow: Hashable) -> T:
        flows = self._by_priority[number]
        subflows = flows[flow]
        subflow, items = next(iter(subflows.items()))
        item = next(iter(items))
        del items[item]
        if items:
            subflows.move_to_end(subflow)
        else:
            del subflows[subflow]
        if subflows:
            flows.move_to_end(flow)
        else:
            del flows[flow]
        self._turn += 1
        self._served[number] = self._turn
        self.length -= 1
        return item


def _first(flows: _Flows[T], skipped: Hashable) -> Hashable | None:
    return next((flow for flow in flows if flow != skipped), None)
