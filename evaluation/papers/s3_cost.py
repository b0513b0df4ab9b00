# SPDX-License-Identifier: Apache-2.0
"""The overhead of content lookups for one group, which cannot gain by them."""

import functools
import statistics
from collections.abc import Sequence

from evaluation.bench import harness
from evaluation.papers import experiment
from evaluation.papers import s3_scenes as scenes

HOSTS = {experiment.Scale.WHOLE: 8, experiment.Scale.QUICK: 4}
TURNS = {experiment.Scale.WHOLE: 3, experiment.Scale.QUICK: 1}
GOAL = 1.04


def turn(number: int, hosts: int, say: harness.Say) -> experiment.Outcome:
    """Run both ways, in reversed order in every second turn."""
    ways = (scenes.SIMPLE, scenes.CONTENT) if number % 2 else (scenes.CONTENT, scenes.SIMPLE)
    return scenes.compare((hosts, 0), say, ways=ways)


def cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return a case for each turn."""
    hosts = HOSTS[scale]
    return [
        experiment.Case(f"turn {number}", functools.partial(turn, number, hosts), 12 + 2 * hosts)
        for number in range(1, TURNS[scale] + 1)
    ]


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return the overhead: means of all turns, and their spread."""
    if not outcomes:
        return []
    by_way = {
        way: [ways[way]["mean_s"] for ways in outcomes.values()]
        for way in (scenes.SIMPLE, scenes.CONTENT)
    }
    simple_s, content_s = (statistics.mean(took) for took in by_way.values())
    hosts = next(iter(outcomes.values()))[scenes.SIMPLE]["hosts"]
    apart = max(map(experiment.spread, by_way.values()))
    return [
        experiment.Row(
            "4.D",
            f"one group of {hosts} hosts: mean completion by content over that by offset, "
            f"{len(outcomes)} turn{'s' * (len(outcomes) > 1)} of each in alternation",
            "at most 4 % (figure 2(a): 16.66 s over 15.85 s, which is 5.1 %)",
            round(content_s, 3),
            "s",
            round(simple_s, 3),
            "simple",
            round(content_s / simple_s, 3),
            GOAL,
            experiment.Better.LESS,
            f"turns of one way differ by {apart:.0%} among themselves, so smaller differences are "
            "not significant",
            is_headline=True,
        )
    ]


EXPERIMENT = experiment.Experiment(
    key="S3-cost",
    title="Overhead of exchange by content in a single group",
    paper_has=(
        "All VMs at one repository, the best case for exchange by offset: 20 bytes of hash "
        "instead of 8 of offset in each advertisement, and lookups in both directions."
    ),
    here=(
        "8 hosts (4 in a quick run), the lab of figure 2; both ways take turns. acstor advertises "
        "8 bytes of a chunk's hash, so its messages have the same length in both ways."
    ),
    cases=cases,
    rows=rows,
)
