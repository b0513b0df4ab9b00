# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of S0 in virtual time: the rules of acstor's agents without CPU cost.

It separates the effect of the lab's small sizes from that of its two cores.
"""

import functools
from collections.abc import Sequence

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s0_patterns as played
from tests.chaos import transfer_patterns

LINKS_MBIT = {8: (50.0,), 16: (25.0,), 32: (12.5, 50.0)}
"""By number of hosts: the lab's, and links with four times the chunks per region."""
LESS = experiment.Better.LESS


def name(hosts: int, link_mbit: float) -> str:
    """Return the name of a case.

    >>> name(32, 12.5)
    '32 hosts, 12.5 Mbit/s'
    """
    return f"{hosts} hosts, {link_mbit:g} Mbit/s"


def run(hosts: int, link_mbit: float, say: harness.Say) -> experiment.Outcome:
    """Let ``hosts`` hosts read the same data concurrently."""
    pattern = played.SYNC_SAME.make(hosts, link_mbit)
    figures = transfer_patterns.play(pattern).figures
    found = {
        "completion": round(figures["completion"], 4),
        "slowest_over_fastest": round(figures["slowest_over_fastest"], 4),
        "source_ratio": round(figures["source_ratio"], 4),
        "chunks": pattern.readings[0].length // played.CHUNK_BYTES,
    }
    say(f"{name(hosts, link_mbit)}: {found}")
    return found


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases."""
    is_whole = scale is experiment.Scale.WHOLE
    return [
        experiment.Case(
            name(hosts, link_mbit),
            functools.partial(run, hosts, link_mbit),
            hosts * link_mbit / 60,
            is_timed=False,
        )
        for hosts, links in LINKS_MBIT.items()
        for link_mbit in (links if is_whole else links[:1])
    ]


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return completion and fairness of each case."""
    found = []
    for case in [name(hosts, mbit) for hosts, links in LINKS_MBIT.items() for mbit in links]:
        got = outcomes.get(case)
        if got is None:
            continue
        what = f"{case}, {got['chunks']} chunks"
        found += [
            experiment.Row(
                "Figure 2(a)",
                f"{what}: completion over the time that a link needs for the region",
                "2.8 with 32 hosts",
                got["completion"],
                goal=round(125 / 44, 2) if case.startswith("32 ") else None,
                better=LESS,
            ),
            experiment.Row(
                "4.3.1",
                f"{what}: throughput of the fastest host over that of the slowest",
                "below 1.05 with 32 hosts",
                got["slowest_over_fastest"],
                goal=1.05 if case.startswith("32 ") else None,
                better=LESS,
                because="the fewer chunks a region has, the greater the weight of the first ones, "
                "which reach the hosts one after the other",
            ),
        ]
    return found


EXPERIMENT = experiment.Experiment(
    key="S0-figure-2-virtual",
    title="Figure 2 in virtual time: without the bounds of two cores",
    paper_has="As above: a region of 1 GB has 32,768 chunks.",
    here=(
        "The agents' rules in virtual time, with links and queues as in the lab: processors cost "
        "nothing. Regions are those above, with 190 chunks for 32 hosts, and regions of four "
        "times as many, on links that are four times as fast."
    ),
    cases=cases,
    rows=rows,
)
