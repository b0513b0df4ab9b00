# SPDX-License-Identifier: Apache-2.0
"""S4, 5.8: data centres with a switch tree: 128 hosts (figure 11), 256, 1,024."""

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Mapping

from acstor_simulator import paper_figures
from acstor_simulator import simulation
from acstor_simulator.model import topology
from evaluation.papers import experiment
from evaluation.papers import s4_simulated as simulated

ORDER = paper_figures.PAPER
NEXT = 0.001
"""A policy at most this share slower than the next one counts as in order."""
TREE_TIMES = {"none": 1.0, "local": 1.3, "today": 4.0, "alone": 1.3, "nova": 0.1}
"""Duration of a run on a tree of 128 hosts over one on a switch, by policy."""
OTHERS_TIMES = 2.5
"""The same for any other policy."""


def _times(policy: str) -> float:
    return TREE_TIMES.get(policy, OTHERS_TIMES)


# Figure 11


def _cases(scale: experiment.Scale) -> list[experiment.Case]:
    made = paper_figures.EXPERIMENTS["11"].make_cases()
    if scale is experiment.Scale.QUICK:
        made = [one for one in made if one.panel == "CV 1.2" and one.x == 3]
    return [
        simulated.case(simulated.name_of(one), one.scenario, one.policy, _times(one.policy))
        for one in made
    ]


def _runs(outcomes: experiment.Outcomes) -> dict[str, Mapping[str, float]]:
    """Return the boot times of all four policies, by pattern, if all were run."""
    found = {}
    for cv in paper_figures.CVS:
        for x in range(len(paper_figures.PATTERNS)):
            names = {policy: f"CV {cv}, {x}, {policy}" for policy in ORDER}
            if all(name in outcomes for name in names.values()):
                times_s = {policy: outcomes[name]["boot_s"] for policy, name in names.items()}
                found[f"CV {cv}, {x}"] = times_s
    return found


def _behind(times_s: Mapping[str, float]) -> float:
    """Return the largest slow-down of a policy behind one it should not be behind."""
    inner = [times_s[policy] for policy in ORDER]
    return max(later / earlier - 1 for earlier, later in itertools.pairwise(inner))


@simulated.complete
def _rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    runs = _runs(outcomes)
    if not runs:
        return []
    fastest = [
        times_s[simulated.ACSTOR] <= (1 + NEXT) * min(times_s.values()) for times_s in runs.values()
    ]
    wrong = {name: behind for name, times_s in runs.items() if (behind := _behind(times_s)) > NEXT}
    order = experiment.Row(
        "Figure 11",
        f"of {len(runs)} runs, the share in the paper's order: no cache slowest, local cache, "
        "collaborative cache, acstor fastest (times within 0.1 % are a tie)",
        "drawn: all",
        1 - len(wrong) / len(runs),
        goal=1.0,
        because="another order in: "
        + "; ".join(f"{name} (by {behind:.2%})" for name, behind in wrong.items()),
        is_headline=True,
    )
    first = experiment.Row(
        "Figure 11",
        f"of {len(runs)} runs, the share in which acstor is the fastest of the four",
        "drawn: all",
        statistics.fmean(fastest),
        goal=1.0,
        because="where partners are in the rack, homes in the pod are as fast",
    )
    return [order, first, *_means(runs), *_spreads(runs)]


def _means(runs: Mapping[str, Mapping[str, float]]) -> list[experiment.Row]:
    means = {
        policy: statistics.fmean(times_s[policy] for times_s in runs.values()) for policy in ORDER
    }
    return [
        experiment.Row.cost(
            "Figure 11",
            f"mean boot time over all runs: {policy}",
            "no number",
            means[policy],
            "s",
            means[slower],
            slower,
            goal=1.0,
        )
        for slower, policy in itertools.pairwise(ORDER)
    ]


def _spreads(runs: Mapping[str, Mapping[str, float]]) -> list[experiment.Row]:
    said = {
        "none": "stable",
        "local": "stable",
        "collaborative": "fluctuating significantly",
        "acstor": "fluctuating significantly",
    }
    rows = []
    for policy in ORDER:
        times_s = [times_s[policy] for times_s in runs.values()]
        rows.append(
            experiment.Row.cost(
                "Figure 11",
                f"{policy}: slowest / fastest pattern",
                said[policy],
                max(times_s),
                "s",
                min(times_s),
                "fastest",
            )
        )
    return rows


FIGURE_11 = experiment.Experiment(
    key="S4-figure-11",
    title="Figure 11: 128 hosts of a tree under several patterns of traffic",
    paper_has=(
        "CloudSim: 128 hosts in the figure, links of 1 Gbit/s to hosts, racks and the storage, 10 "
        "Gbit/s at the root; each host talks to 1 to 32 others, at CVs of 0.4, 0.8 and 1.2. Drawn, "
        "without numbers, and without the mean of the traffic."
    ),
    here=(
        "128 hosts with a guest each in two pods of eight racks, in the simulator: six patterns, "
        "from one partner in the rack (0) to 1, 8 and 32 partners anywhere (3 to 5). A mean of 20 "
        "MB/s, since eight hosts share a link of 1 Gbit/s."
    ),
    cases=_cases,
    rows=_rows,
    draw=functools.partial(simulated.draw, "11"),
)

# 256 hosts

LARGE = simulation.Scenario(topology.Shape(), guests=256, mean=paper_figures.TREE_MEAN)


def _large_cases(scale: experiment.Scale) -> list[experiment.Case]:
    if scale is experiment.Scale.QUICK:
        return []
    return [simulated.case(policy, LARGE, policy, _times(policy)) for policy in simulation.POLICIES]


@simulated.complete
def _large_rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    beside = simulated.value(outcomes, simulated.COLLABORATIVE)
    rows = []
    for policy in simulation.POLICIES:
        ours = simulated.value(outcomes, policy)
        is_acstor = policy == simulated.ACSTOR
        rows.append(
            experiment.Row(
                "5.8",
                f"256 hosts: {policy}",
                "less than the others" if is_acstor else "no number",
                ours,
                "s",
                None if policy == simulated.COLLABORATIVE else beside,
                "" if policy == simulated.COLLABORATIVE else simulated.COLLABORATIVE,
                None if policy == simulated.COLLABORATIVE else experiment.divided(ours, beside),
                1.0 if is_acstor else None,
                experiment.Better.LESS,
            )
        )
    return rows


LARGE_TREE = experiment.Experiment(
    key="S4-256-hosts",
    title="5.8: 256 hosts (4 x 8 x 8) with every policy",
    paper_has="The platform of 256 hosts; its figure shows 128 of them.",
    here=(
        "``acstor-simulate compare`` with its defaults: a guest a host, 20 MB/s at CV 0.8, eight "
        "partners anywhere. In addition to the paper's four policies: acstor with the loads of "
        "switches, acstor without remapping, S4's rules as printed ('paper'), Nova's copy of the "
        "whole image ('nova'), and acstor with boot images, without other hosts ('alone') and "
        "with them ('today': the defaults). No host is overloaded here, so no v-node moves; the "
        "uplinks of five of the 32 racks are more than 80 % full, and Algorithm 2 requires more "
        "than half of them, so S4's rules ask hosts anywhere."
    ),
    cases=_large_cases,
    rows=_large_rows,
)

# Beyond: the paper's rules, and ours

PATTERNS = (1, 5), (8, 5)


def _rule_scenarios() -> dict[str, simulation.Scenario]:
    shape = topology.Shape(pods=2)
    return {
        f"{partners} partner{'s' if partners > 1 else ''} anywhere, CV {cv}": simulation.Scenario(
            shape,
            shape.host_count,
            mean=paper_figures.TREE_MEAN,
            cv=cv,
            partners=partners,
            reach=reach,
        )
        for cv in (0.8, 1.2)
        for partners, reach in PATTERNS
    }


def _rule_cases(scale: experiment.Scale) -> list[experiment.Case]:
    if scale is experiment.Scale.QUICK:
        return []
    return [
        simulated.case(f"{name}, {policy}", scenario, policy, _times(policy))
        for name, scenario in _rule_scenarios().items()
        for policy in (simulated.PRINTED, simulated.ACSTOR, "today")
    ]


@simulated.complete
def _rule_rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    rows = []
    for name in _rule_scenarios():
        printed = simulated.value(outcomes, f"{name}, {simulated.PRINTED}")
        for policy, what in (
            (simulated.ACSTOR, "acstor"),
            ("today", "acstor with boot images"),
        ):
            ours = simulated.value(outcomes, f"{name}, {policy}")
            if ours is not None:
                rows.append(
                    experiment.Row.cost(
                        "beyond",
                        f"{what}; {name}",
                        "",
                        ours,
                        "s",
                        printed,
                        "S4's rules",
                    )
                )
    return rows


RULES = experiment.Experiment(
    key="S4-rules",
    title="Groups of racks, and shares of locations",
    paper_has="",
    here=(
        "128 hosts of the tree. S4's rules as printed (Equation 1 with lambda, Algorithms 1 and "
        "2, homes alone) against acstor: each rack is a group whose home asks those of the whole "
        "cloud, racks behind full links get fewer requests, homes refer to hosts that have a "
        "chunk, and hosts prefetch what a neighbour has. Also against acstor with boot images."
    ),
    cases=_rule_cases,
    rows=_rule_rows,
    is_beyond=True,
)

# Beyond: 1,024 hosts

HUGE = dataclasses.replace(
    LARGE, shape=topology.Shape(pods=8, racks=16), guests=1024, chunks=244, think_s=3.5
)
HUGE_POLICIES = "local", simulated.COLLABORATIVE, simulated.ACSTOR


def _huge_cases(scale: experiment.Scale) -> list[experiment.Case]:
    if scale is experiment.Scale.QUICK:
        return []
    return [simulated.case(policy, HUGE, policy, 2 * _times(policy)) for policy in HUGE_POLICIES]


@simulated.complete
def _huge_rows(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    ours = simulated.value(outcomes, simulated.ACSTOR)
    rows = []
    for policy in HUGE_POLICIES[:2]:
        theirs = simulated.value(outcomes, policy)
        rows.append(
            experiment.Row.cost(
                "beyond",
                f"1,024 hosts: acstor against {policy}",
                "",
                ours,
                "s",
                theirs,
                policy,
            )
        )
    read = simulated.value(outcomes, simulated.ACSTOR, "storage_mb")
    local = simulated.value(outcomes, "local", "storage_mb")
    rows.append(
        experiment.Row.cost(
            "beyond",
            "1,024 hosts: data read from the storage with acstor",
            "",
            read,
            "MB",
            local,
            "local",
        )
    )
    return rows


HUGE_TREE = experiment.Experiment(
    key="S4-1024-hosts",
    title="1,024 hosts",
    paper_has="",
    here=(
        "Eight pods of 16 racks of eight hosts, a guest each that reads a quarter of a boot (244 "
        "chunks, 3.5 s of its own), from a storage of 1 Gbit/s; 20 MB/s at CV 0.8."
    ),
    cases=_huge_cases,
    rows=_huge_rows,
    is_beyond=True,
)

EXPERIMENTS = FIGURE_11, LARGE_TREE, RULES, HUGE_TREE
