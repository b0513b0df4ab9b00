# SPDX-License-Identifier: Apache-2.0
"""Runs experiments case by case, stores outcomes at once, and reports progress.

Cases with an outcome do not run again, so an interrupted run can be resumed.  If paired baselines
differ by more than ``experiment.STEADY``, the timed cases run once more, and the steadier turn is
stored.
"""

import dataclasses
import multiprocessing
import os
import pathlib
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import load
from evaluation.papers import store

ROOM_BYTES = 3 << 30
"""A case makes images, caches and guests' disks, of 2 GiB at most."""
TURNS = 2
PROCESSORS = len(os.sched_getaffinity(0))


class NoRoom(Exception):
    """The disk has too little space for a case; the message has folder and size."""


class Runner:
    """Runs cases of experiments, and estimates the remaining time.

    :param folder: of the results
    """

    def __init__(self, folder: pathlib.Path, scale: experiment.Scale, say: harness.Say) -> None:
        self._folder = folder
        self._scale = scale
        self._say = say
        self._about_s = 0.0
        self._took_s = 0.0
        self._waiting: list[experiment.Case] = []

    def run(self, wanted: Sequence[experiment.Experiment]) -> bool:
        """Run all cases without an outcome; return whether every case has one now.

        :raises NoRoom: there is too little disk space; earlier outcomes are stored
        :raises store.NoResult: a file of an earlier run is invalid
        :raises OSError: a result cannot be written
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        plan = [(one, self._missing(one)) for one in wanted]
        self._waiting = [case for _, cases in plan for case in cases]
        done = sum(len(one.cases(self._scale)) for one in wanted) - len(self._waiting)
        if done:
            self._say(f"{done} cases were run before, {len(self._waiting)} are left")
        is_complete = True
        for one, cases in plan:
            kept = store.load(self._folder, one.key, self._scale)
            if cases:
                self._say(f"{one.key}: {one.title}")
            self._run_cases(one, kept, cases)
            kept = self._steadied(one, kept)
            is_complete &= not kept.refusals
        return is_complete

    def _missing(self, one: experiment.Experiment) -> list[experiment.Case]:
        outcomes = store.load(self._folder, one.key, self._scale).outcomes
        return [case for case in one.cases(self._scale) if case.name not in outcomes]

    def _run_cases(
        self,
        one: experiment.Experiment,
        kept: store.StoredResults,
        cases: Sequence[experiment.Case],
    ) -> None:
        """Run cases: those in virtual time in parallel, then the timed ones one by one."""
        virtual = [case for case in cases if not case.is_timed]
        self._require_room(one, cases)
        for case, record in self._side_by_side(one, virtual):
            self._keep(one, kept, case, record)
        for case in cases:
            if case.is_timed:
                self._require_room(one, [case])
                self._keep(one, kept, case, self._record(one, case))

    def _keep(
        self,
        one: experiment.Experiment,
        kept: store.StoredResults,
        case: experiment.Case,
        record: store.Record,
    ) -> None:
        kept.records[case.name] = record
        store.save(self._folder, one.key, kept)

    def _require_room(self, one: experiment.Experiment, cases: Sequence[experiment.Case]) -> None:
        free_bytes = shutil.disk_usage(self._folder).free
        if cases and free_bytes < ROOM_BYTES:
            raise NoRoom(
                f"{self._folder} has {free_bytes >> 20} MiB free, and {one.key}, {cases[0].name} "
                f"may need {ROOM_BYTES >> 20}. Free some space and run the same command again."
            )

    def _side_by_side(
        self, one: experiment.Experiment, cases: Sequence[experiment.Case]
    ) -> Iterator[tuple[experiment.Case, store.Record]]:
        """Run cases in processes, one for each processor; yield each at its end.

        The progress messages of these cases are not shown.
        """
        if not cases:
            return
        with futures.ProcessPoolExecutor(
            PROCESSORS, initializer=_leave_interrupts_to_parent
        ) as pool:
            running = {pool.submit(_run_virtual, case): case for case in cases}
            try:
                for ended in futures.as_completed(running):
                    case, record = running[ended], ended.result()
                    self._count(case, record)
                    self._say(f"[{self._left()}] {one.key}: {case.name} has ended")
                    yield case, record
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise

    def _record(self, one: experiment.Experiment, case: experiment.Case) -> store.Record:
        self._say(f"[{self._left()}] {one.key}: {case.name}")
        record = _watched(case, self._say)
        self._count(case, record)
        return record

    def _count(self, case: experiment.Case, record: store.Record) -> None:
        if case in self._waiting:
            self._waiting.remove(case)
        self._about_s += alone_s(case)
        self._took_s += store.machine_s(record)

    def _left(self) -> str:
        """Return the number of remaining cases and their time, scaled by past estimates."""
        pace = self._took_s / self._about_s if self._about_s else 1.0
        left_s = pace * sum(map(alone_s, self._waiting))
        return f"{len(self._waiting)} left, about {max(1, round(left_s / 60))} min"

    def _steadied(
        self, one: experiment.Experiment, kept: store.StoredResults
    ) -> store.StoredResults:
        """Return the steadier of two turns, if the first one was not steady."""
        if kept.turns >= TURNS or (before := unsteady(one, kept)) is None:
            return kept
        timed = [case for case in one.cases(self._scale) if case.is_timed]
        self._say(
            f"{one.key}: the same baseline differs by {before:.0%}: repeating the timed cases"
        )
        again = dataclasses.replace(kept, records=dict(kept.records), turns=kept.turns + 1)
        for case in timed:  # stored only when complete: half of each turn would be no pair
            again.records[case.name] = self._record(one, case)
        after = unsteady(one, again)
        better = again if after is None or after < before else kept
        better.turns = again.turns
        store.save(self._folder, one.key, better)
        return better


def unsteady(one: experiment.Experiment, kept: store.StoredResults) -> float | None:
    """Return the difference of paired baselines, as a share, if it is too large.

    Return None if a case could not run, since pairs may be incomplete.
    """
    if kept.refusals or not kept.records:
        return None
    pairs = one.pairs(kept.outcomes)
    widest = max(map(experiment.spread, pairs.values()), default=0.0)
    return widest if widest > experiment.STEADY else None


def alone_s(case: experiment.Case) -> float:
    """Return how long a case occupies the whole machine."""
    return case.about_s / (1 if case.is_timed else PROCESSORS)


def _leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C, which reaches the whole group: the parent ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_virtual(case: experiment.Case) -> store.Record:
    return _watched(case, lambda _: None)


def _watched(case: experiment.Case, say: harness.Say) -> store.Record:
    """Run a case under a load monitor, and return its record."""
    with load.Watch() as watch:
        found = _outcome(case, say)
    return {**found, **watch.seen, "is_timed": case.is_timed, "machine": harness.machine()}


def _outcome(case: experiment.Case, say: harness.Say) -> store.Record:
    """Run a case; an error does not stop the others."""
    began = time.time()
    try:
        return {"outcome": case.run(say), "began": int(began)}
    except harness.CannotRun as e:
        why = str(e)
    except Exception as e:
        traceback.print_exc()
        why = f"{type(e).__name__}: {e}"
    say(f"{case.name} could not run: {why}")
    return {"could_not_run": why, "began": int(began)}
