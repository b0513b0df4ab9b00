# SPDX-License-Identifier: Apache-2.0
"""S1: Pregather, cfq, anticipatory and deadline on a model of a 7,200 rpm disk.

All policies get the same requests in virtual time, so a run gives the same figures on any machine,
except memory and processor time.  The tables are printed beside those of Ling 2015;
doc/source/contributor/disk_scheduling.rst describes the model and its differences from the paper's
machine.
"""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import prettytable
from matplotlib import figure

from acstor_agent.core.disk_scheduling import policy as policies
from acstor_agent.core.disk_scheduling import pregather
from acstor_policies import disk_schedulers
from evaluation.bench import disk_pictures
from evaluation.bench import disk_simulation as simulation
from evaluation.bench import disk_workloads as workloads
from evaluation.bench import harness

POLICIES = ("pregather", "cfq", "anticipatory", "deadline")
PAPER_SEEKS = {  # table 4: % at zero, within the size of a guest's disk, farther
    "pregather": (75.78, 21.61, 2.61),
    "cfq": (55.06, 41.61, 3.37),
    "anticipatory": (49.97, 46.60, 3.43),
    "deadline": (12.54, 58.45, 29.01),
}
PAPER_GAIN = {"cfq": 1.5, "anticipatory": 1.6, "deadline": 2.2}
PAPER_TABLE_3 = {  # seconds: pregather, cfq, anticipatory, for both applications
    "SRRR": ((26.92, 44.0, 45.83), (33.74, 44.75, 45.94)),
    "RRRR": ((101.17, 119.18, 113.18), (108.29, 119.18, 112.39)),
    "SWSW": ((27.27, 40.07, 39.66), (28.04, 42.72, 39.35)),
    "SWRW": ((15.04, 25.79, 26.07), (47.06, 53.64, 53.05)),
    "RWRW": ((57.56, 66.39, 66.63), (57.56, 65.81, 66.63)),
    "SWRR": ((58.76, 81.10, 85.92), (81.78, 89.50, 88.80)),
    "SRRW": ((33.03, 44.06, 50.03), (49.98, 52.75, 56.23)),
}
SEQUENTIAL, RANDOM = ("SWSW", "SRRR", "SRRW", "SWRR", "SWRW"), ("RRRR", "RWRW")
SORT_BLOCKS, QUERY_READS = 4, 3000
SHOWN_S = 100.0
Run = simulation.Simulation
Make = Callable[[], list[simulation.Guest]]


@harness.measures("S1")
def run(say: harness.Say) -> harness.Result:
    """Run all scenarios with all policies."""
    four = {policy: play(workloads.four_guests, policy, say) for policy in POLICIES}
    mixed = {
        name: {
            policy: play(lambda name=name: workloads.mixed_guest(name), policy, say)
            for policy in POLICIES[:3]
        }
        for name in workloads.MIXED
    }
    sort = {
        policy: play(lambda: workloads.sort_guests(SORT_BLOCKS), policy, say) for policy in POLICIES
    }
    both = {
        policy: play(lambda: workloads.sort_guests(SORT_BLOCKS, QUERY_READS), policy, say)
        for policy in POLICIES
    }
    for table in (
        table_4(four),
        figure_6(four),
        figure_7(four),
        table_3(mixed),
        waits(four, mixed),
    ):
        say(table)
    say(figures_8_to_11(sort, both))
    gains = [bandwidth(four["pregather"]) / bandwidth(four[other]) for other in POLICIES[1:]]
    ends = [ended_waits({name: mixed[name] for name in names}) for names in (SEQUENTIAL, RANDOM)]
    memory_mib, cpu_us = cost()
    say(f"pregather: {memory_mib:.2f} MiB for four guests, {cpu_us:.0f} us for each request")
    values = (at_zero(four["pregather"]), *gains, *map(share_met, ends), memory_mib)
    details = {
        "at_zero": {policy: at_zero(found) for policy, found in four.items()},
        "bandwidth_mb_s": {policy: bandwidth(found) for policy, found in four.items()},
        "requests_per_s": {policy: per_guest(found) for policy, found in four.items()},
        "waits": {policy: found.scheduler.account.waits for policy, found in four.items()},
        "waits_sequential": ends[0],
        "waits_random": ends[1],
        "cpu_us_per_request": cpu_us,
    }
    return harness.Result({"S1": values}, details, lambda picture: draw(picture, four))


def play(make: Make, policy: str, say: harness.Say) -> Run:
    """Run guests with a policy."""
    guests = make()
    found = Run(guests, disk_schedulers.SCHEDULERS[policy]()).run()
    say(f"{', '.join(guest.name for guest in guests)}: {policy}: {found.now_s:.1f} s")
    return found


def at_zero(found: Run) -> float:
    """Return the share of zero-distance seeks."""
    return found.distances.count(0) / len(found.distances)


def seek_shares(found: Run) -> list[float]:
    """Return the percentages of seeks at zero, to a near place, and to a far one."""
    seeks = found.scheduler.account.seeks
    return [100 * count / sum(seeks.values()) for count in seeks.values()]


def bandwidth(found: Run) -> float:
    """Return the sum of the guests' bandwidths, each until its end, in MB/s."""
    return sum(map(guest_mb_s, found.guests))


def guest_mb_s(guest: simulation.Guest) -> float:
    """Return a guest's bandwidth until its end."""
    return sum(application.bytes for application in guest.applications) / guest.ended_s / 1e6


def ended_waits(mixed: Mapping[str, Mapping[str, Run]]) -> dict[str, int]:
    """Return the numbers of Pregather's waits by their end."""
    counts = [found["pregather"].scheduler.account.waits for found in mixed.values()]
    return {end: sum(count[end] for count in counts) for end in counts[0]}


def share_met(ends: Mapping[str, int], kinds: Iterable[str] = ("", "_alone")) -> float:
    """Return the share of worthwhile waits, among those that kept the disk idle.

    The paper counts its timers with a single guest, so by default this includes waits during which
    no other guest had requests.
    """
    met, expired = (sum(ends[name + kind] for kind in kinds) for name in ("met", "expired"))
    return met / (met + expired) if met + expired else 0.0


def per_guest(found: Run) -> dict[str, tuple[float, float]]:
    """Return each guest's mean and minimum throughput while all applications run."""
    until_s = min(a.ended_s for g in found.guests for a in g.applications if a.ended_s)
    rates = {g.name: simulation.requests_per_s(g, min(until_s, SHOWN_S)) for g in found.guests}
    return {name: (statistics.mean(rate), min(rate)) for name, rate in rates.items()}


def cost() -> tuple[float, float]:
    """Return Pregather's MiB for four guests, and us of processor time per request."""
    small = 64 * workloads.MIB
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    policy = pregather.Pregather()
    made = Run(workloads.four_guests(small), policy)
    made.run()
    only = [tracemalloc.Filter(True, "*/core/disk_scheduling/*")]
    after = tracemalloc.take_snapshot().filter_traces(only)
    tracemalloc.stop()
    grown = sum(line.size_diff for line in after.compare_to(before.filter_traces(only), "filename"))
    took_s = {}
    for name in ("none", "pregather"):
        began_s = time.process_time()
        found = Run(workloads.four_guests(small), disk_schedulers.SCHEDULERS[name]()).run()
        took_s[name] = (time.process_time() - began_s) / len(found.distances)
    return grown / workloads.MIB, (took_s["pregather"] - took_s["none"]) * 1e6


def table(title: str, names: list[str], rows: list[list[Any]]) -> str:
    """Return rows under a title."""
    made = prettytable.PrettyTable(names, align="r", float_format=".2")
    made.align[names[0]] = "l"
    made.add_rows(rows)
    return f"\n{title}\n{made}"


def table_4(four: Mapping[str, Run]) -> str:
    """Return the distribution of seek distances, beside the paper's."""
    rows = []
    for policy, found in four.items():
        rows.append([policy, *seek_shares(found), *PAPER_SEEKS[policy]])
    names = ["Policy", "zero, %", "to 12 GB", "farther", "paper: zero", "to 12 GB ", "farther "]
    return table("Seek distance, four guests (table 4)", names, rows)


def figure_6(four: Mapping[str, Run]) -> str:
    """Return seconds of each application and the total bandwidth."""
    rows = []
    for policy, found in four.items():
        ends = application_ends(found)
        gain = bandwidth(four["pregather"]) / bandwidth(found)
        rows.append([policy, *ends.values(), bandwidth(found), gain, PAPER_GAIN.get(policy, 1.0)])
    return table(
        "Seconds of each application; MB/s; pregather over it (figure 6)",
        ["Policy", *ends, "MB/s", "gain", "paper"],
        rows,
    )


def application_ends(found: Run) -> dict[str, float]:
    """Return the end of each application of the four guests, by guest and name."""
    return {
        f"{number} {name}": max(a.ended_s or 0.0 for a in guest.applications if a.name == name)
        for number, (guest, parts) in enumerate(zip(found.guests, workloads.FOUR, strict=True), 1)
        for name in parts
    }


def figure_7(four: Mapping[str, Run]) -> str:
    """Return mean and minimum requests per second of each guest."""
    rows = [
        [policy, *(f"{mean:.0f} / {least:.0f}" for mean, least in per_guest(found).values())]
        for policy, found in four.items()
    ]
    title = "Requests/s, mean / least second (figure 7: VM4 of the paper never below 70)"
    return table(title, ["Policy", "VM1", "VM2", "VM3", "VM4"], rows)


def table_3(mixed: Mapping[str, Mapping[str, Run]]) -> str:
    """Return the seconds of both applications of each guest, beside the paper's."""
    rows = []
    for name, found in mixed.items():
        for at, part in enumerate(workloads.MIXED[name]):
            paper = PAPER_TABLE_3[name][at]
            ends = [end_of(run_, name, at) for run_ in found.values()]
            rows.append([name, part, *ends, ends[1] / ends[0], *paper, paper[1] / paper[0]])
    names = ["Guest", "Application", "pregather", "cfq", "anticip.", "cfq/pg"]
    paper_names = ["paper: pg", "paper: cfq", "paper: as", "paper: cfq/pg"]
    return table("Seconds of two applications in one guest (table 3)", names + paper_names, rows)


def end_of(found: Run, name: str, at: int) -> float:
    """Return the end of the first or second application, which may have the same name."""
    own = [a for a in found.guests[0].applications if not a.is_background]
    first = len(own) // 2 if len(set(workloads.MIXED[name])) == 1 else None
    if first is not None:
        own = own[:first] if at == 0 else own[first:]
    return max(a.ended_s or 0.0 for a in own if a.name == workloads.MIXED[name][at])


def waits(four: Mapping[str, Run], mixed: Mapping[str, Mapping[str, Run]]) -> str:
    """Return the ends of waits, by guest."""
    streams = four["pregather"].scheduler.account.streams
    ends = {str(stream): count.waits for stream, count in streams.items()}
    ends |= {name: found["pregather"].scheduler.account.waits for name, found in mixed.items()}
    rows = [
        [name, *(end[kind.value] for kind in policies.WaitEnd), 100 * share_met(end)]
        for name, end in ends.items()
    ]
    names = ["Guest", *(kind.value for kind in policies.WaitEnd), "met, % of idle"]
    return table("How Pregather's waits ended", names, rows)


def figures_8_to_11(sort: Mapping[str, Run], both: Mapping[str, Run]) -> str:
    """Return the results of sorts, and of sorts beside queries."""
    rows = []
    for policy in POLICIES:
        queries = both[policy].guests[-1]
        until_s = min(g.ended_s for g in both[policy].guests)
        rows.append(
            [
                policy,
                sort[policy].now_s,
                100 * at_zero(sort[policy]),
                max(g.ended_s for g in both[policy].guests[:-1]),
                queries.ended_s,
                statistics.mean(simulation.requests_per_s(queries, until_s)),
                100 * at_zero(both[policy]),
            ]
        )
    names = [
        "Policy",
        "sort, s",
        "zero, %",
        "sort beside, s",
        "queries, s",
        "queries/s",
        "zero, % ",
    ]
    return table("Sort, and sort beside TPC-H (figures 8 to 11)", names, rows)


def draw(picture: figure.Figure, four: Mapping[str, Run]) -> None:
    """Draw the four guests: regions, throughput, seek distances, ends, bandwidth."""
    picture.set_size_inches(18, 12)
    over_time, rates, rest = picture.subfigures(3, 1)
    disk_pictures.regions(over_time, four, SHOWN_S)
    disk_pictures.throughput(rates, four, SHOWN_S)
    seeks, ends, bandwidths = rest.subplots(1, 3, width_ratios=(1, 1.6, 1))
    model = {policy: seek_shares(found) for policy, found in four.items()}
    disk_pictures.seek_shares(seeks, model, PAPER_SEEKS)
    applications = {policy: application_ends(found) for policy, found in four.items()}
    disk_pictures.bars(ends, "Seconds of each application (figure 6a)", applications)
    by_guest = {
        policy: {guest.name: guest_mb_s(guest) for guest in found.guests}
        | {"all": bandwidth(found)}
        for policy, found in four.items()
    }
    disk_pictures.bars(bandwidths, "MB/s (figure 6b)", by_guest)
