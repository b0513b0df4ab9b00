# SPDX-License-Identifier: Apache-2.0
"""Checks the guarantees during a chaos run: each violation is a finding.

A read never fails, and waits only while a fault that explains it lasts, or just after.  A killed
reader must end, whatever its reads wait for, except for a dead agent.
"""

import signal
import time
from collections.abc import Mapping
from collections.abc import Sequence

from tests.chaos import chaos_hosts
from tests.chaos import guests
from tests.chaos import plan
from tests.chaos import readers

WAITS_S = 30.0
"""Limit of a read without an explaining fault; covers load and all backoffs."""
DIES_S = 25.0
FINDINGS = 40
"""Limit of kept findings."""


class Watch:
    """The findings of a run.

    :param read_limit_s: limit of a read without an explaining fault
    """

    def __init__(self, hosts: Sequence[str], read_limit_s: float = WAITS_S) -> None:
        self._read_limit_s = read_limit_s
        self.findings: list[str] = []
        self._active: dict[int, plan.Step] = {}
        now_s = time.monotonic()
        self._clear_s = dict.fromkeys(hosts, now_s)  # of faults that delay reads
        self._agent_s = dict.fromkeys(hosts, now_s)  # of faults that end or stop the agent
        self._ran_s: dict[int, float] = {}
        self._told: dict[str, set[str]] = {}
        self._dying: list[tuple[str, readers.Reader | guests.Guest, float]] = []
        self._history: list[str] = []
        self._began_s = now_s

    def found(self, what: str) -> None:
        """Record a broken guarantee."""
        on = "; ".join(str(step) for step in self._active.values()) or "nothing"
        if len(self.findings) < FINDINGS:
            at_s = time.monotonic() - self._began_s
            self.findings.append(f"[{at_s:.1f} s] {what}\n    on: {on}")
            print(f"FOUND {self.findings[-1]}", flush=True)

    def begins(self, step: plan.Step) -> None:
        """Record the start of a step."""
        self._active[step.number] = step
        self._history.append(f"{time.monotonic() - self._began_s:.1f} s: {step}")
        del self._history[:-30]

    def ended(self, step: plan.Step) -> None:
        """Record that it has been undone."""
        self._note_active()
        self._active.pop(step.number, None)

    @property
    def history(self) -> list[str]:
        """The last steps, with their start times."""
        return list(self._history)

    def _note_active(self) -> None:
        now_s = time.monotonic()
        for step in self._active.values():
            for host in self._clear_s:
                if step.delays(host):
                    self._clear_s[host] = now_s
                if step.takes == ("agent", host):
                    self._agent_s[host] = now_s

    def look(
        self,
        hosts: dict[str, chaos_hosts.Host],
        of_hosts: Mapping[str, Sequence[readers.Reader | guests.Guest]],
    ) -> None:
        """Check all readers, and whether all agents run that should."""
        self._note_active()
        now_s = time.monotonic()
        for host, some in of_hosts.items():
            for reader in some:
                self._look_at(host, reader, now_s)
            is_away = any(step.takes == ("agent", host) for step in self._active.values())
            if not hosts[host].is_running and not is_away:
                self._once(host, f"{host}: the supervisor has ended:\n{hosts[host].log()[-2000:]}")
        for dying in list(self._dying):
            host, reader, since_s = dying
            if reader.status() is not None:
                self._dying.remove(dying)
            elif now_s - max(since_s, self._agent_s[host]) > DIES_S:
                self.found(f"{host}: {reader.name}: killed {now_s - since_s:.0f} s ago, and lives")
                self._dying.remove(dying)

    def _look_at(self, host: str, reader: readers.Reader | guests.Guest, now_s: float) -> None:
        self.collect_faults(host, reader)
        if reader.is_stopped:
            self._ran_s[reader.pid] = now_s
        status = reader.status()
        if status is not None:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            self._once(reader.name, f"{host}: {reader.name}: ended by {how}")
            return
        state = reader.state
        since_s = max(state.since_s, self._clear_s[host], self._ran_s.get(reader.pid, 0.0))
        if state.since_s and now_s - since_s > self._read_limit_s + reader.extra_s:
            waits = f"{state.length} bytes at {state.offset}"
            took_s = now_s - state.since_s
            what = (
                f"{host}: {reader.name}: {waits} wait for {took_s:.0f} s, and nothing explains it"
            )
            self._once(reader.name, what, f"{state.reads}")

    def collect_faults(self, host: str, reader: readers.Reader | guests.Guest) -> None:
        """Record the faults that a reader found."""
        for what in reader.found():
            self._once(reader.name, f"{host}: {what}", what)

    def _once(self, name: str, what: str, key: str = "") -> None:
        reported = self._told.setdefault(name, set())
        if key not in reported:
            reported.add(key)
            self.found(what)

    def killed(self, host: str, reader: readers.Reader | guests.Guest) -> None:
        """Record that a reader was killed, and must end."""
        self.collect_faults(host, reader)
        self._told.pop(reader.name, None)
        self._dying.append((host, reader, time.monotonic()))

    @property
    def dying(self) -> int:
        """Killed readers that have not ended."""
        return len(self._dying)
