# SPDX-License-Identifier: Apache-2.0
"""S1's runs in virtual time as cases, and their stored results."""

import functools
import itertools
import statistics
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import harness
from evaluation.bench import s1_disk
from evaluation.papers import experiment

POLICIES = (*s1_disk.POLICIES, "none")
SHOWN_S = s1_disk.SHOWN_S
PLACES_SHOWN = 100
"""Per guest, in a picture of offsets over time."""
Make = Callable[[], list[simulation.Guest]]
Summarize = Callable[[simulation.Simulation], experiment.Outcome]


def total_bytes(scale: experiment.Scale) -> int:
    """Return the bytes of each sequential application; random ones are in proportion."""
    return workloads.FILE_BYTES // (1 if scale is experiment.Scale.WHOLE else 8)


def case(
    name: str, make: Make, policy: str, about_s: float, summarize: Summarize
) -> experiment.Case:
    """Return the case of guests with a policy.

    :param make: makes the guests; must be picklable, like ``summarize``
    """
    run = functools.partial(_run, make, policy, summarize)
    return experiment.Case(name, run, about_s, is_timed=False)


def cases_of_policies(make: Make, about_s: float, drawn: Collection[str]) -> list[experiment.Case]:
    """Return a case for each policy, with its rates.

    :param drawn: policies whose rates are drawn
    """
    return [
        case(
            policy,
            make,
            policy,
            about_s,
            functools.partial(with_rates, is_drawn=policy in drawn),
        )
        for policy in POLICIES
    ]


def _run(make: Make, policy: str, summarize: Summarize, say: harness.Say) -> experiment.Outcome:
    return summarize(s1_disk.play(make, policy, say))


def summary(found: simulation.Simulation) -> experiment.Outcome:
    """Return the data for tables and figures of any run."""
    return {
        "s": round(found.now_s, 3),
        "requests": len(found.distances) + 1,
        "seeks_percent": [round(share, 3) for share in s1_disk.seek_shares(found)],
        "mb_s": {g.name: round(s1_disk.guest_mb_s(g), 3) for g in found.guests},
        "all_mb_s": round(s1_disk.bandwidth(found), 3),
        "ends_s": ends(found),
        "waits": found.scheduler.account.waits,
        "longest_gap_s": {
            g.name: round(longest_gap_s([t for t, _, _ in g.done], g.ended_s), 3)
            for g in found.guests
        },
    }


def with_rates(found: simulation.Simulation, is_drawn: bool) -> experiment.Outcome:
    """Return a summary with each guest's requests per second while all run.

    :param is_drawn: include those of each second, and offsets over time
    """
    until_s = min(guest.ended_s for guest in found.guests)
    rates = {
        guest.name: simulation.requests_per_s(guest, min(SHOWN_S, guest.ended_s))
        for guest in found.guests
    }
    common = {name: rate[: max(1, int(until_s))] for name, rate in rates.items()}
    outcome = {
        **summary(found),
        "requests_s": {
            name: {"mean": round(statistics.mean(rate), 2), "least": min(rate)}
            for name, rate in common.items()
        },
    }
    if is_drawn:
        outcome["series"] = {name: list(map(int, rate)) for name, rate in rates.items()}
        outcome["places"] = {guest.name: places(guest) for guest in found.guests}
    return outcome


def ends(found: simulation.Simulation) -> dict[str, float]:
    """Return the end of the last thread of each of a guest's applications."""
    last: dict[str, float] = {}
    for guest in found.guests:
        for one in guest.applications:
            if not one.is_background:
                name = f"{guest.name} {one.name}"
                last[name] = round(max(last.get(name, 0.0), one.ended_s or 0.0), 3)
    return last


def places(guest: simulation.Guest) -> list[tuple[float, float]]:
    """Return seconds and GB of some of a guest's requests, for a picture."""
    done = [(when_s, offset) for when_s, offset, _ in guest.done if when_s < SHOWN_S]
    shown = done[:: max(1, len(done) // PLACES_SHOWN)]
    return [(round(when_s, 1), round(offset / 1e9, 3)) for when_s, offset in shown]


def longest_gap_s(times: Iterable[float], until_s: float) -> float:
    """Return the longest time without a response until ``until_s``.

    >>> longest_gap_s([1.0, 1.5, 4.0], 5.0)
    2.5
    """
    known = [0.0, *(when_s for when_s in times if when_s <= until_s), until_s]
    return max(after - before for before, after in itertools.pairwise(known))


def by_policy(outcomes: experiment.Outcomes, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the outcomes of cases named by a policy, with an optional prefix."""
    return {p: outcomes[prefix + p] for p in POLICIES if prefix + p in outcomes}


def less_percent(own_s: float, other_s: float) -> float:
    """Return the reduction of time in %.

    >>> less_percent(30.0, 60.0)
    50.0
    """
    return 100 * (1 - own_s / other_s)


def share_met(counts: Sequence[Mapping[str, int]]) -> tuple[float, int] | None:
    """Return the share of worthwhile waits in %, and their number.

    >>> none = dict.fromkeys(("met_alone", "expired_alone"), 0)
    >>> share_met([{"met": 9, "expired": 1} | none])
    (90.0, 10)
    """
    kinds = ("met", "met_alone", "expired", "expired_alone")
    met, met_alone, expired, expired_alone = (sum(c[kind] for c in counts) for kind in kinds)
    waits = met + met_alone + expired + expired_alone
    return (100 * (met + met_alone) / waits, waits) if waits else None
