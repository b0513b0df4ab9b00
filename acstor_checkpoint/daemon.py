# SPDX-License-Identifier: Apache-2.0
"""Takes checkpoints of this host's servers, one after the other, as long as the daemon runs.

Whatever goes wrong with one server is said and tried again, and never keeps
others from their turn.
"""

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import Final
from typing import Protocol

from acstor_checkpoint import cadence as cadence_
from acstor_checkpoint import intervals as intervals_
from acstor_checkpoint import patience
from acstor_checkpoint import record as record_
from acstor_checkpoint import servers
from acstor_checkpoint import states as states_
from acstor_common import errors
from acstor_common import ids
from acstor_common import log_once

LOG = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 10.0
"""How long a new server, or a request, waits until it is seen."""


Sweep = Callable[[Collection[ids.ImageId]], bool]


class Present(Protocol):
    """Who knows the servers of this host."""

    def present(self) -> list[servers.Server]:
        """Return them.

        :raises errors.Unusable: it is not known now
        """


class Taker(Protocol):
    """Takes one checkpoint of one server."""

    def take(self, server: servers.Server, others: Callable[[], None]) -> record_.Record:
        """Take it, and register it.

        :param others: lets others have their turns; called in the middle of one that takes long
        :raises errors.AcstorError: there is none
        """

    def clear(self, server: servers.Server) -> None:
        """End what a former daemon began with it.

        :raises errors.AcstorError: it cannot be ended
        """


class Daemon:
    """The loop.

    :param clock: monotonic
    :param wall_ms: wall clock, since 1970: it says how old checkpoints of a former daemon are
    :param sweep: does some of what can wait, told which instances are here; says whether it did
    :param ask_intervals: asks the decision service; None: it is not asked
    """

    def __init__(
        self,
        domains: Present,
        taker: Taker,
        states: states_.States,
        default_s: int,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sweep: Sweep = lambda _present: False,
        ask_intervals: intervals_.Ask | None = None,
    ) -> None:
        self._domains, self._taker, self._states = domains, taker, states
        self._cadence = cadence_.Cadence(default_s)
        self._intervals = intervals_.Intervals(ask_intervals, clock)
        self._clock, self._wall_ms = clock, wall_ms
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._has_ended = False
        self._sweep = sweep
        self._here: set[ids.ImageId] | None = None
        self._cleared: set[ids.ImageId] = set()
        self._on: dict[ids.ImageId, float] = {}
        self._faults = log_once.LogOnce(LOG)

    def run(self) -> None:
        """Take checkpoints until :meth:`stop`; the one that is on then ends first."""
        while not self._has_ended:
            if not self.turn() and not self.sweep():
                self._woken.wait(_LOOK_EVERY_S)
                self._woken.clear()

    def stop(self) -> None:
        """Let :meth:`run` return; may be called by any thread."""
        self._has_ended = True
        self._woken.set()

    def ask(self, instance: ids.ImageId) -> int:
        """Let a server have the next turn; return the number of its checkpoint that was begun last.

        The moment of each with a higher number is after this call: numbers are written down before
        moments are.  May be called by any thread.

        :raises errors.Unusable: it has no checkpoints here; says why
        """
        with self._lock:
            is_here = self._cadence.is_here(instance)
        if not is_here:  # maybe not yet: while one is taken nobody looks
            self._see(self._domains.present(), self._intervals.last)
        state = self._states.load(instance)  # first: the turn that this gives it may begin at once
        with self._lock:
            self._cadence.ask(instance, self._clock())
        self._woken.set()
        return state.number if state else 0

    def promised_s(self, instance: ids.ImageId) -> int:
        """Return how often a server has checkpoints, 0 if never; may be called by any thread."""
        with self._lock:
            return self._cadence.every_s(instance)

    def overdue_s(self) -> dict[ids.ImageId, float]:
        """Return how long servers have waited beyond their intervals; for any thread."""
        with self._lock:
            return self._cadence.overdue_s(self._clock())

    def taking_s(self) -> dict[ids.ImageId, float]:
        """Return how long the checkpoints that are on have taken; may be called by any thread."""
        with self._lock:
            return {instance: self._clock() - began_s for instance, began_s in self._on.items()}

    def turn(self) -> bool:
        """Take one checkpoint, if it is somebody's turn; say whether it was."""
        self._look()
        with self._lock:
            server = self._cadence.next(self._clock())
        if server is None:
            return False
        self._take(server)
        return True

    def sweep(self) -> bool:
        """Do some of what can wait, if it is known which servers are here; say if there was any."""
        if self._here is None:
            return False
        try:
            return self._sweep(self._here)
        except Exception:
            LOG.exception("what no checkpoint needs stays for now")
            return False

    def _look(self) -> None:
        """See which servers are here."""
        self._here = None
        try:
            present = self._domains.present()
        except errors.AcstorError as e:
            self._faults.say(str(e))
            return
        self._faults.say("")
        self._see(present, self._intervals.told())
        self._here = here = {server.instance for server in present}
        self._cleared &= here
        for server in present:
            if server.instance not in self._cleared:
                self._clear(server)

    def _see(self, present: list[servers.Server], told: intervals_.Told) -> None:
        with self._lock:
            self._cadence.see(present, self._clock(), self._age_s, told)

    def _clear(self, server: servers.Server) -> None:
        try:
            self._taker.clear(server)
        except errors.AcstorError as e:
            LOG.warning("%s", e)
        self._cleared.add(server.instance)

    def _let_others(self) -> None:
        """Give all whose turn it is by now their turns, in the middle of one that takes long."""
        now_s = self._clock()
        self._look()
        while not self._has_ended:
            with self._lock:
                server = self._cadence.next(now_s, self._on)
            if server is None:
                return
            self._take(server)

    def _take(self, server: servers.Server) -> None:
        began_s = self._clock()
        with self._lock:
            self._on[server.instance] = began_s
        try:
            self._try(server, began_s)
        finally:
            with self._lock:
                del self._on[server.instance]

    def _try(self, server: servers.Server, began_s: float) -> None:
        instance = server.instance
        try:
            record = self._taker.take(server, self._let_others)
        except patience.NotDone as e:
            with self._lock:  # a guest that writes without end keeps nobody from his turn
                self._cadence.cut_off(instance, self._clock())
            LOG.info("server %s: %s", instance, e)
            return
        except Exception as e:
            with self._lock:
                pause_s = self._cadence.failed(instance, self._clock())
            is_known = isinstance(e, errors.AcstorError | OSError)
            LOG.warning(
                "server %s: no checkpoint: %s; tried again in %.0f s",
                instance,
                e,
                pause_s,
                exc_info=not is_known,
            )
            return
        with self._lock:
            self._cadence.taken(instance, began_s)
        LOG.info(
            "server %s: checkpoint %s, %d bytes read, %d sent, in %.1f s%s",
            instance,
            record.checkpoint_id,
            record.read_bytes,
            record.sent_bytes,
            self._clock() - began_s,
            f"; all of it, for {record.whole_because}" if record.whole_because else "",
        )

    def _age_s(self, instance: ids.ImageId) -> float | None:
        """Return how old the last checkpoint is; by the wall clock, so it may be anything."""
        state = self._states.load(instance)
        if state is None or not state.taken_ms:
            return None
        return (self._wall_ms() - state.taken_ms) / 1000
