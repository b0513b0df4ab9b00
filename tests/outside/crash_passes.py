# SPDX-License-Identifier: Apache-2.0
"""Passes of a program on a new disk each, with one fault at a random moment of a pass."""

import dataclasses
import os
import pathlib
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from acstor_common import errors
from tests.outside import crash_host

_FIRST_PASS_S = 4.0
_PROGRESS = 10  # passes
_SAID_CHARACTERS = 2000


class Goal(NamedTuple):
    """How long a part runs."""

    operations: int
    kills: int
    seed: int
    longest_s: float


class Ended(NamedTuple):
    """A program that ended, after the fault if ``was_hit``."""

    status: int
    said: str
    was_hit: bool


class Work(NamedTuple):
    """What a pass did; ``error`` is empty if every byte was right."""

    operations: int
    verified_bytes: int = 0
    error: str = ""


@dataclasses.dataclass
class Tally:
    """What a part did and saw."""

    operations: int = 0
    verified_bytes: int = 0
    kills: dict[crash_host.Fault, int] = dataclasses.field(default_factory=dict)
    seconds_s: float = 0.0
    error: str = ""

    def line(self) -> str:
        """Return the tally in words."""
        kills = ", ".join(f"{count} of the {fault}" for fault, count in self.kills.items())
        return (
            f"{self.operations:,} operations, kills: {kills or 'none'}, {self.seconds_s:.0f} s, "
            f"{self.verified_bytes >> 20:,} MiB verified: {self.error or 'each byte equal'}"
        )


class Pass:
    """One pass: the moment of its fault, and the programs that run meanwhile."""

    def __init__(
        self,
        host: crash_host.CrashHost,
        number: int,
        rng: random.Random,
        fault: crash_host.Fault | None,
        ends_s: float,
    ) -> None:
        self.host, self.number, self.rng, self.fault = host, number, rng, fault
        self.after_s = 0.0  # until the fault
        self.ran_s = 0.0  # the longest of its programs
        self._ends_s = ends_s

    def run(
        self,
        words: Sequence[object],
        fault: crash_host.Fault | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Ended:
        """Run a program; cause the fault meanwhile, if it does not end before.

        :param variables: of its environment, beside those of this process
        :raises subprocess.TimeoutExpired: the time is over
        """
        with tempfile.TemporaryFile("w+") as out:
            program = subprocess.Popen(
                [*map(str, words)],
                cwd=self.host.folder,
                stdout=out,
                stderr=out,
                env={**os.environ, **variables},
            )
            began_s = time.monotonic()
            try:
                was_hit = fault is not None and not _ends(program, self.after_s)
                if fault is not None and was_hit:
                    caused_s = time.monotonic()
                    self.host.cause(fault)
                    began_s += time.monotonic() - caused_s
                program.wait(max(1.0, self._ends_s - time.monotonic()))
            except BaseException:
                self.host.end_all()
                program.kill()
                program.wait()
                raise
            self.ran_s = max(self.ran_s, time.monotonic() - began_s)
            out.seek(0)
            return Ended(program.returncode, out.read()[-_SAID_CHARACTERS:], was_hit)


def _ends(program: subprocess.Popen[bytes], after_s: float) -> bool:
    try:
        program.wait(after_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def run(
    host: crash_host.CrashHost,
    work: Callable[[Pass], Work],
    goal: Goal,
    faults: Sequence[crash_host.Fault],
) -> Tally:
    """Repeat passes until all operations are done and all kills happened, or bytes are wrong.

    :param faults: caused in turns
    """
    tally, rng = Tally(), random.Random(goal.seed)
    began_s = time.monotonic()
    lasts_s, number, turn = _FIRST_PASS_S, 0, 0
    while tally.operations < goal.operations or host.kills.total() < goal.kills:
        if tally.error or time.monotonic() > began_s + goal.longest_s:
            tally.error = tally.error or "the time is over"
            break
        killed = host.kills.total()
        is_due = killed < goal.kills and tally.operations * goal.kills >= killed * goal.operations
        fault = faults[turn % len(faults)] if is_due else None
        one = Pass(host, number, rng, fault, began_s + goal.longest_s)
        one.after_s = rng.uniform(0.0, lasts_s)
        try:
            done = work(one)
        except subprocess.TimeoutExpired as late:
            tally.error = f"pass {number}, {fault or 'no'} kill: {late.cmd[0]} ran out of time"
            break
        except (RuntimeError, TimeoutError, errors.Unusable) as e:
            tally.error = f"pass {number}, {fault or 'no'} kill: {e}"
            break
        lasts_s, number = one.ran_s, number + 1
        turn += host.kills.total() > killed
        tally.operations += done.operations
        if number % _PROGRESS == 0:
            done_so_far = f"{tally.operations:,} operations, {host.kills.total()} kills"
            print(f"{number} passes, {done_so_far}", flush=True)
        tally.verified_bytes += done.verified_bytes
        tally.error = done.error and f"pass {one.number}, {fault or 'no'} kill: {done.error}"
    tally.kills, tally.seconds_s = dict(host.kills), time.monotonic() - began_s
    return tally


def run_part(
    work: Callable[[Pass], Work],
    goal: Goal,
    faults: Sequence[crash_host.Fault],
    file_system: str = "",
) -> Tally:
    """Run passes on a new host."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        try:
            with crash_host.CrashHost(pathlib.Path(name), goal.seed, file_system) as host:
                return run(host, work, goal, faults)
        except TimeoutError as e:
            return Tally(error=f"the host did not start: {e}")
