# SPDX-License-Identifier: Apache-2.0
"""S0's results for the three access patterns, beside the paper's.

The paper's numbers are for 32 hosts.  A row has a goal only if 32 hosts were run as well: the gain
over a source that serves one host after the other is limited by the number of hosts.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

from evaluation.papers import experiment
from evaluation.papers import s0_patterns as played

PAPER_HOSTS = 32
LESS = experiment.Better.LESS
FEWER = frozenset({8, 16})
"""Numbers of hosts for which some figures are shown as well."""
OWN_GOAL = 1.15
OWN_GOAL_BECAUSE = (
    "headers alone take 1.046; a reader's window of some chunks waits for its first, and each "
    "chunk passes several hosts, whose uplinks are all busy (see contributor/exchange_design)"
)
UNFAIR = (
    "a region has 190 chunks here and 32,768 in the paper: with so few the rules miss the target "
    "in virtual time, too, where processors cost nothing, and by less with four times as many "
    "(next section)"
)


@dataclasses.dataclass(frozen=True)
class Claims:
    """The paper's claims for one pattern.

    :param figure: its number
    :param over_direct: speed-up of all hosts over no exchange
    :param over_broadcast: the same over a broadcast before the reads
    :param rates: table 2, MB/s by way
    :param because: reasons of missed rows, by a word of their quantity
    """

    plan: played.Plan
    figure: str
    over_direct: float
    over_broadcast: float
    rates: Mapping[str, float]
    because: Mapping[str, str] = dataclasses.field(default_factory=dict)


def most_hosts(outcomes: experiment.Outcomes) -> int | None:
    """Return the largest number of hosts run with acstor or the paper's variant."""
    counts = [
        int(case.rpartition(", ")[2]) for case in outcomes if not case.startswith(played.BROADCAST)
    ]
    return max(counts, default=None)


def got(outcomes: experiment.Outcomes, way: str, hosts: int | None, *path: str) -> float | None:
    """Return a figure of a case; None if it was not run."""
    found = outcomes.get(played.name(way, hosts or 0))
    for step in path:
        found = None if found is None else found.get(step)
    return found  # type: ignore[return-value]


def quotient(above: float | None, below: float | None) -> float | None:
    """Return a quotient; None if an operand is missing or the divisor is zero."""
    return above / below if above is not None and below else None


def rows(claims: Claims, outcomes: experiment.Outcomes) -> list[experiment.Row]:
    """Return the rows of one pattern's figure and of its column of table 2."""
    hosts = most_hosts(outcomes)
    found = [*_completion(claims, outcomes, hosts), *_throughput(claims, outcomes, hosts)]
    found += _table_2(claims, outcomes, hosts)
    return [_judged(claims, row, hosts) for row in found]


def _judged(claims: Claims, row: experiment.Row, hosts: int | None) -> experiment.Row:
    """Return a row, without its goal if it is not about the paper's number of hosts."""
    why = next((why for word, why in claims.because.items() if word in row.what), row.because)
    goal = row.goal if hosts == PAPER_HOSTS else None
    return dataclasses.replace(
        row, what=f"{claims.plan.key}, {hosts} hosts: {row.what}", because=why, goal=goal
    )


def _completion(
    claims: Claims, outcomes: experiment.Outcomes, hosts: int | None
) -> list[experiment.Row]:
    part = f"Figure {claims.figure}(a)"
    acstor = got(outcomes, played.ACSTOR, hosts, "completion")
    paper = got(outcomes, played.BY_512, hosts, "completion")
    ours, name = (acstor, "acstor") if acstor is not None else (paper, played.BY_512)
    found = []
    for way, times in (
        (played.DIRECT, claims.over_direct),
        (played.BROADCAST, claims.over_broadcast),
    ):
        baseline = got(outcomes, way, hosts, "completion")
        if baseline is None:
            continue
        found.append(
            experiment.Row(
                part,
                f"completion, {name} against {way}",
                f"{times:g} x",
                ours,
                "of the limit",
                baseline,
                way,
                quotient(baseline, ours),
                times,
                is_headline=claims.plan is played.SYNC_SAME and hosts == PAPER_HOSTS,
            )
        )
    return found


def _throughput(
    claims: Claims, outcomes: experiment.Outcomes, hosts: int | None
) -> list[experiment.Row]:
    found = []
    for way in (played.ACSTOR, *played.STRATEGIES, played.DIRECT):
        least, most = (got(outcomes, way, hosts, "rate", end) for end in ("min", "max"))
        if least is None:
            continue
        part = f"Figure {claims.figure}({'c' if way in (played.BY_0, played.BY_INF) else 'b'})"
        found.append(
            experiment.Row(
                part,
                f"throughput of the fastest host over that of the slowest, {way}",
                "no number",
                quotient(most, least),
            )
        )
    for way in (played.ACSTOR, *played.STRATEGIES):
        split = got(outcomes, way, hosts, "split")
        if split is None:
            continue
        assert isinstance(split, dict)
        words = ", ".join(f"{name} {share:.2f}" for name, share in split.items())
        found.append(
            experiment.Row(
                f"Figure {claims.figure}(d)",
                f"bytes that the mean host receives / bytes it reads, {way} ({words})",
                "drawn",
                sum(split.values()),
            )
        )
    return found


def _table_2(
    claims: Claims, outcomes: experiment.Outcomes, hosts: int | None
) -> list[experiment.Row]:
    baseline = got(outcomes, played.DIRECT, hosts, "rate", "mean")
    direct = claims.rates[played.DIRECT]
    found = []
    for way in (played.ACSTOR, *played.STRATEGIES):
        ours = got(outcomes, way, hosts, "rate", "mean")
        rate = claims.rates.get(way)
        if ours is None:
            continue
        found.append(
            experiment.Row(
                "Table 2",
                f"mean throughput, {way} against direct",
                f"{rate:g} / {direct:g} MB/s = {rate / direct:.2f}" if rate else "not reported",
                ours,
                "of the link",
                baseline,
                "direct",
                quotient(ours, baseline),
                rate / direct if rate else None,
            )
        )
    return found


def sync_same_only(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    """Return the text's further claims on Sync-Same."""
    hosts = most_hosts(outcomes)
    slowest = got(outcomes, played.ACSTOR, hosts, "rate", "min")
    direct_max = got(outcomes, played.DIRECT, hosts, "rate", "max")
    found = [
        experiment.Row(
            "Figure 2",
            f"completion over the time that a link needs for the region, acstor, {hosts} hosts",
            "2.8 (1 Gbit/s carries 125 MB/s, table 2 has 44)",
            got(outcomes, played.ACSTOR, hosts, "completion"),
            goal=round(125 / 44, 2),
            better=LESS,
            is_headline=True,
        ),
        _fairness(outcomes, hosts),
        experiment.Row(
            "4.3.1",
            f"slowest host of acstor against the fastest without exchange, {hosts} hosts",
            "at least 10 x",
            slowest,
            "of the link",
            direct_max,
            "direct, fastest",
            quotient(slowest, direct_max),
            10.0,
        ),
        *(_from_peers(outcomes, count, share) for count, share in ((8, 0.7), (32, 0.9))),
    ]
    if hosts != PAPER_HOSTS:
        found = [dataclasses.replace(row, goal=None) for row in found]
    fewer = sorted(FEWER - {hosts})
    found += [_own_goal(outcomes, count) for count in sorted({hosts or 0, *FEWER})]
    found += [dataclasses.replace(_fairness(outcomes, count), goal=None) for count in fewer]
    return [row for row in found if row.ours is not None]


def _own_goal(outcomes: experiment.Outcomes, hosts: int) -> experiment.Row:
    return experiment.Row(
        "Own goal",
        f"completion over the time that a link needs for the region, acstor, {hosts} hosts",
        "none; target here: 1.15",
        got(outcomes, played.ACSTOR, hosts, "completion"),
        goal=OWN_GOAL,
        better=LESS,
        because=OWN_GOAL_BECAUSE,
    )


def _fairness(outcomes: experiment.Outcomes, hosts: int | None) -> experiment.Row:
    slowest, fastest = (got(outcomes, played.ACSTOR, hosts, "rate", end) for end in ("min", "max"))
    return experiment.Row(
        "4.3.1",
        f"throughput of the fastest host over that of the slowest, acstor, {hosts} hosts",
        "below 1.05",
        quotient(fastest, slowest),
        goal=1.05,
        better=LESS,
        is_headline=hosts == PAPER_HOSTS,
        because=UNFAIR,
    )


def _from_peers(outcomes: experiment.Outcomes, hosts: int, share: float) -> experiment.Row:
    split = got(outcomes, played.BY_512, hosts, "split")
    assert split is None or isinstance(split, dict)
    ours = None if split is None else 1 - split["from source"] / sum(split.values())
    return experiment.Row(
        "Figure 2(d)",
        f"share of bytes from other hosts, acstor-512, {hosts} hosts",
        f"more than {share:.0%}",
        ours,
        goal=share,
    )


def disjoint_only(outcomes: experiment.Outcomes) -> list[experiment.Row]:
    """Return the text's further claims on Sync-Disjoint: unused fetches."""
    hosts = most_hosts(outcomes)
    wasted = {way: in_vain(outcomes, way, hosts) for way in played.VARIANTS}
    found = []
    for way in (played.BY_512, played.ACSTOR):
        if wasted[way] is None:
            continue
        found.append(
            experiment.Row(
                "4.3.3",
                f"bytes prefetched and never read / read, {way} against acstor-inf, {hosts} hosts",
                "4.5 x less",
                wasted[way],
                "",
                wasted[played.BY_INF],
                played.BY_INF,
                # No waste counts like the waste of one chunk of all.
                quotient(wasted[played.BY_INF], max(wasted[way] or 0.0, 1e-4)),
                4.5 if hosts == PAPER_HOSTS else None,
                is_headline=hosts == PAPER_HOSTS,
            )
        )
    return found


def in_vain(outcomes: experiment.Outcomes, way: str, hosts: int | None) -> float | None:
    """Return the prefetched and unread bytes over the read ones.

    It subtracts read-ahead past the end of a region, which equals that without prefetching, or
    without exchange where that was not run.
    """
    ours, *others = (
        got(outcomes, one, hosts, "unread_share") for one in (way, played.BY_0, played.DIRECT)
    )
    without = next((one for one in others if one is not None), None)
    return None if ours is None or without is None else max(0.0, ours - without)


def pairs(outcomes: experiment.Outcomes) -> Mapping[str, Sequence[float]]:
    """Return the baseline at both ends of the run."""
    hosts = most_hosts(outcomes)
    both = [got(outcomes, way, hosts, "completion") for way in (played.DIRECT, played.DIRECT_AGAIN)]
    return {"direct": [one for one in both if one is not None]} if None not in both else {}
