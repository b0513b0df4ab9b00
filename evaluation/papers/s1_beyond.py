# SPDX-License-Identifier: Apache-2.0
"""S1, beyond the paper: classes, longest waits, more guests, prefetch, a peer."""

import dataclasses
import functools
import pathlib
import random
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_agent.core.disk_scheduling import request as requests
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import harness
from evaluation.bench import s1_lab
from evaluation.bench import s1_prefetch
from evaluation.papers import experiment
from evaluation.papers import s1_runs

Rows = list[experiment.Row | experiment.Absent]
APART_BYTES = 12 * 1024 * workloads.MIB

# Classes

CLASS_POLICIES = ("pregather", "cfq", "deadline", "none")
BESIDE = {
    "peer": requests.Klass.PEER,
    "agent": requests.Klass.BACKGROUND,
    "pre-seed": requests.Klass.FILL,
}
"""Other users of the disk: a peer's reads, stores of chunks, a background fill."""


def class_cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return a guest alone, and beside all others with each policy."""
    total = workloads.FILE_BYTES // (2 if scale is experiment.Scale.WHOLE else 8)
    alone = functools.partial(with_others, total, {})
    all_of_them = functools.partial(with_others, total, BESIDE)
    return [
        s1_runs.case("alone", alone, "pregather", 0.5, _class_summary),
        *(
            s1_runs.case(policy, all_of_them, policy, 3.0, _class_summary)
            for policy in CLASS_POLICIES
        ),
    ]


def with_others(total: int, beside: Mapping[str, requests.Klass]) -> list[simulation.Guest]:
    """Return a guest that reads sequentially, and streams until its end."""
    guests = [workloads.guest("guest", ("SR-M",), workloads.REGIONS[0], 1, total)]
    for number, (name, klass) in enumerate(beside.items(), 1):
        region = workloads.REGIONS[0] + number * APART_BYTES
        make = workloads.sequential_read if name == "peer" else workloads.sequential_write
        steps = make(random.Random(number), region, workloads.Journal(region), 4 * total, 1)
        background = simulation.Application(name, steps, is_background=True)
        guests.append(simulation.Guest(name, [background], klass))
    return guests


def _class_summary(found: simulation.Simulation) -> experiment.Outcome:
    streams = {guest.name: guest for guest in found.guests}
    return {
        "s": round(found.now_s, 3),
        "longest_gap_s": {
            name: round(s1_runs.longest_gap_s([t for t, _, _ in one.done], found.now_s), 3)
            for name, one in streams.items()
        },
        "mb_s": {
            name: round(sum(length for _, _, length in one.done) / found.now_s / 1e6, 3)
            for name, one in streams.items()
        },
    }


def class_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return a guest's loss to others, and the remaining rate for them."""
    alone = outcomes.get("alone")
    found = {policy: outcomes[policy] for policy in CLASS_POLICIES if policy in outcomes}
    if alone is None:
        return []
    made: Rows = []
    for policy, one in found.items():
        what = f"{policy}: time of a guest that reads, beside a peer, stores and pre-seeding"
        ratio = one["s"] / alone["s"]
        made.append(_shown(what, one["s"], "s", alone["s"], "alone", ratio))
    if "pregather" in found and "cfq" in found:
        own, cfq = found["pregather"], found["cfq"]
        for name in BESIDE:
            what = f"Longest time without an answer for {name} meanwhile"
            made.append(
                _beside_cfq(what, "s", own["longest_gap_s"][name], cfq["longest_gap_s"][name])
            )
            what = f"Data rate of {name} meanwhile"
            made.append(_beside_cfq(what, "MB/s", own["mb_s"][name], cfq["mb_s"][name]))
    return made


def _beside_cfq(what: str, unit: str, own: float, cfq: float) -> experiment.Row:
    return _shown(f"{what}, with pregather", own, unit, cfq, "cfq", own / cfq if cfq else None)


def _shown(
    what: str,
    ours: float,
    unit: str = "",
    baseline: float | None = None,
    baseline_name: str = "",
    ratio: float | None = None,
) -> experiment.Row:
    return experiment.Row("", what, "not measured", ours, unit, baseline, baseline_name, ratio)


CLASSES = experiment.Experiment(
    key="S1-beyond-classes",
    title="Classes: guests before peers before the agent's own work",
    paper_has="",
    here="A guest reads 512 MB in order while a peer reads, chunks are stored and an image is "
    "pre-seeded, each as fast as it can. With pregather the agent knows the class of each "
    "request, and serves a lower class only when a request of it is overdue; with the other "
    "policies all requests have the class of guests. The model's disk, in virtual time.",
    cases=class_cases,
    rows=class_rows,
    is_beyond=True,
)

# More guests

NUMBERS = (2, 4, 8, 16)
MANY_POLICIES = ("pregather", "cfq")


def many_cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return a case for each number of guests and policy."""
    is_whole = scale is experiment.Scale.WHOLE
    total = workloads.FILE_BYTES // (8 if is_whole else 32)
    return [
        s1_runs.case(
            f"{number} {policy}",
            functools.partial(many_guests, number, total),
            policy,
            number * (0.3 if is_whole else 0.1),
            s1_runs.summary,
        )
        for number in (NUMBERS if is_whole else NUMBERS[:3])
        for policy in MANY_POLICIES
    ]


def many_guests(number: int, total: int) -> list[simulation.Guest]:
    """Return guests of table 1, repeated, each on its own disk."""
    return [
        workloads.guest(
            f"VM{at + 1}",
            workloads.FOUR[at % 4],
            workloads.REGIONS[0] + at * APART_BYTES,
            at + 1,
            total,
        )
        for at in range(number)
    ]


def many_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return bandwidth and the longest wait by the number of guests."""
    made: Rows = []
    for number in NUMBERS:
        own, cfq = (outcomes.get(f"{number} {policy}") for policy in MANY_POLICIES)
        if own is None or cfq is None:
            continue
        made.append(
            _beside_cfq(f"{number} guests: bandwidth", "MB/s", own["all_mb_s"], cfq["all_mb_s"])
        )
        longest = [max(one["longest_gap_s"].values()) for one in (own, cfq)]
        what = f"{number} guests: longest time of any guest without an answer"
        made.append(_beside_cfq(what, "s", *longest))
    return made


MANY = experiment.Experiment(
    key="S1-beyond-guests",
    title="More guests, and their longest wait",
    paper_has="",
    here="The guests of table 1 repeated, at an eighth of their size, on disks that lie one after "
    "the other. No guest may starve, however many there are: an extended slice ends when "
    "another request is overdue.",
    cases=many_cases,
    rows=many_rows,
    is_beyond=True,
)

# Prediction for prefetch


def ahead_cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return one case for each trace of guests."""
    return [
        experiment.Case(name, functools.partial(_ahead, name), 1.5, is_timed=False)
        for name in (*s1_prefetch.READERS, *s1_prefetch.MIXED, "sort", "TPC-H")
    ]


def _ahead(name: str, say: harness.Say) -> experiment.Outcome:
    if name in ("sort", "TPC-H"):
        trace = list(s1_prefetch.sort_and_queries()[name])
    else:
        trace = list(s1_prefetch.reads_of(s1_prefetch.MIXED.get(name, (name,))))
    found = {way: s1_prefetch.play(trace, make()) for way, make in s1_prefetch.PREDICTORS.items()}
    return {
        way: {
            "hit_percent": round(100 * one.hit_share, 2),
            "waste_percent": round(100 * one.waste_share, 2),
            "waited_s": round(one.waited_s, 3),
        }
        for way, one in found.items()
    }


def ahead_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the guests' waits without read-ahead and with both predictors."""
    made: Rows = []
    for name, ways in outcomes.items():
        for way in ("order", "units"):
            one, none = ways[way], ways["none"]
            what = f"{name}: {way}: {one['hit_percent']:.1f} % hits, {one['waste_percent']:.1f} % "
            what += "waste; seconds of waiting"
            ratio = one["waited_s"] / none["waited_s"]
            values = (one["waited_s"], "s", none["waited_s"], "nothing ahead")
            made.append(_shown(what, *values, ratio))
    return made


AHEAD = experiment.Experiment(
    key="S1-beyond-prefetch",
    title="The same prediction for prefetching",
    paper_has="",
    here="Guests read an image that is not cached over a link of 100 Mbit/s and 1 ms; the agent "
    "prefetches vNavigator's units, or, by default, reads ahead of sequential readers. Waste "
    "is the share of prefetched data that was never read.",
    cases=ahead_cases,
    rows=ahead_rows,
    is_beyond=True,
)

# A peer, in real time


def peer_cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return the one case; a quick run has none."""
    if scale is experiment.Scale.QUICK:
        return []
    return [experiment.Case("two guests and a peer", _with_peer, 90.0)]


def _with_peer(say: harness.Say) -> experiment.Outcome:
    with (
        tempfile.TemporaryDirectory(prefix="acstor-s1-") as folder,
        s1_lab.started(pathlib.Path(folder)) as lab,
    ):
        lab.warm()
        found = {policy: _kept(lab, policy, say) for policy in s1_lab.POLICIES}
        again = dataclasses.replace(lab, folder=lab.folder / "again")
        again.folder.mkdir()
        return {"policies": found, "again": _kept(again, s1_lab.POLICIES[0], say)}


def _kept(lab: s1_lab.Lab, policy: str, say: harness.Say) -> dict[str, Any]:
    found = s1_lab.measure(lab, policy, say)
    return {name: round(found[name], 3) for name in ("guests_mb_s", "peer_mb_s", "all_mb_s")}


def peer_rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row | experiment.Absent]:
    """Return the rates of guests and of a peer."""
    one = outcomes.get("two guests and a peer")
    if one is None:
        return []
    own = one["policies"]["pregather"]
    return [
        _shown(
            f"{what} with pregather over {other}",
            own[key],
            "MB/s",
            found[key],
            other,
            own[key] / found[key],
        )
        for key, what in (("guests_mb_s", "Guests' rate"), ("peer_mb_s", "Peer's rate"))
        for other, found in one["policies"].items()
        if other != "pregather"
    ]


def peer_pairs(outcomes: experiment.Outcomes) -> Mapping[str, Sequence[float]]:
    """Return the guests' rates in the first and the last turn."""
    return {
        name: (one["policies"]["none"]["guests_mb_s"], one["again"]["guests_mb_s"])
        for name, one in outcomes.items()
    }


PEER = experiment.Experiment(
    key="S1-beyond-peer",
    title="Two guests and a peer, in real time",
    paper_has="",
    here="A real agent on the emulated disk; two guests with two sequential readers each, and a "
    "guest on another host whose agent has an empty cache and fetches every byte from the "
    "first one. Guests are the higher class, so the peer gets less than with a policy without "
    "classes.",
    cases=peer_cases,
    rows=peer_rows,
    pairs=peer_pairs,
    is_beyond=True,
)

EXPERIMENTS = (CLASSES, MANY, AHEAD, PEER)
