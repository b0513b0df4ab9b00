# SPDX-License-Identifier: Apache-2.0
"""Feeds events to the engine and carries out its actions; reads run in tasks of their own."""

import collections
import math
from collections.abc import Callable
from typing import Any
from typing import Protocol

import trio

from acstor_agent.core import counters
from acstor_agent.engine import actions
from acstor_agent.engine import engine
from acstor_agent.runtime import fault_log
from acstor_common import errors
from acstor_common.ring import hash_ring

TABLE_CHECK_S = 1.0  # interval at which v-node tables are checked while idle
STALLED_S, RECEIVE_S = 0.01, 0.05
"""A host that wakes so much late was stalled: it first processes messages for RECEIVE_S."""

Event = Callable[..., list[actions.Action]]  # a method of the engine


class RingTables(hash_ring.RingProvider, Protocol):
    """Knows the current and the former v-node table."""

    def former_ring(self) -> hash_ring.Ring | None:
        """Return the replaced table, while it counts."""


class EngineDriver:
    """Runs one engine, and its reads in ``nursery``; keep :meth:`run` running."""

    def __init__(self, core: engine.Engine, tables: RingTables, nursery: trio.Nursery) -> None:
        self.core, self.nursery = core, nursery
        self.counters = counters.ExchangeCounters()
        self.faults = fault_log.FaultLog()
        self.clock = trio.lowlevel.current_clock().current_time
        known = core.context.ring
        self._tables, self._in_force = tables, (known.table, known.former)
        self._handlers: dict[type, Callable[[Any], object]] = {}
        self._events: collections.deque[tuple[Event, tuple[Any, ...]]] = collections.deque()
        self._is_feeding = False
        self._sleep, self._check_s, self._due_s = trio.CancelScope(), math.inf, math.inf

    def on_action(self, kind: type, handler: Callable[[Any], object]) -> None:
        """Carry out actions of a kind by calling ``handler``."""
        self._handlers[kind] = handler

    def handle_event(self, event: Event, *what: Any) -> str:
        """Feed an event, and carry out all actions; return why the engine failed, empty if not."""
        if self._is_feeding:
            self._events.append((event, what))
            return ""  # nested: fed below
        self._is_feeding = True
        try:
            current, former = self._tables.current_ring(), self._tables.former_ring()
            if self._in_force[0] is not current or self._in_force[1] is not former:
                self._in_force = current, former
                self._feed(self.core.table_changed, self._in_force)
            why = self._feed(event, what)
            while self._events:
                self._feed(*self._events.popleft())
        finally:
            self._is_feeding = False
        due_s = self.core.next_s
        due_s = self._check_s if due_s is None else min(due_s, self._check_s)
        if due_s != self._due_s:
            self._due_s = self._sleep.deadline = due_s
        return why

    def _feed(self, event: Event, what: tuple[Any, ...]) -> str:
        why = ""
        try:
            found = event(self.clock(), *what)
        except Exception as error:  # only what the event concerned ends
            why = self.faults.record_fault(f"the exchange's {event.__name__}", error)
            found = self.core.recover_from_fault(self.clock(), why)
        for action in found:
            self.carry_out(action)
        return why

    def carry_out(self, action: actions.Action) -> None:
        """Carry out an action; a fault is logged, and other actions are still carried out."""
        try:
            self._handlers[type(action)](action)
        except Exception as error:
            self.faults.record_fault(f"the exchange's {type(action).__name__}", error)

    async def run(self, check_s: float = TABLE_CHECK_S) -> None:
        """Feed due timers to the engine; check the tables every ``check_s``; never returns."""
        while True:
            self._check_s = self.clock() + check_s
            self._due_s = min(self.core.next_s or self._check_s, self._check_s)
            self._sleep = trio.CancelScope(deadline=self._due_s)
            with self._sleep:
                await trio.sleep_forever()
            is_stalled = self.clock() > self._due_s + STALLED_S
            await trio.sleep(RECEIVE_S if is_stalled else 0)  # process arrived messages first
            if why := self.handle_event(self.core.run_due_timers):
                raise errors.LocalProtocolError(f"the exchange's timer failed: {why}")
