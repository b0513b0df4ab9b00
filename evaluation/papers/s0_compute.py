# SPDX-License-Identifier: Apache-2.0
"""A workload that reads and computes: the purpose of S0's exchange."""

import functools
import pathlib
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from acstor_common.model import geometry
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.bench import patterns
from evaluation.papers import experiment
from evaluation.papers import s0_patterns as played

HOSTS = 8
LINK_MBIT = 50.0
REGION_BYTES = 16 * geometry.MIB
COMPUTE_S = 0.25
"""Per MiB, which a link carries in 0.17 s, so computing is the only limit."""
WAYS = (played.DIRECT, played.ACSTOR, played.DIRECT_AGAIN)


def run(way: str, say: harness.Say) -> experiment.Outcome:
    """Let all hosts repeatedly read a piece and compute, all the same pieces."""
    pattern = patterns.sync_same(HOSTS, LINK_MBIT, REGION_BYTES, 2 * REGION_BYTES)
    is_direct = way in (played.DIRECT, played.DIRECT_AGAIN)
    groups = [] if is_direct else [range(HOSTS)]
    chosen = None if is_direct else played.VARIANTS[way]
    options: dict[str, Any] = {} if chosen is None else {"variants": chosen}
    readings = dict(enumerate(pattern.readings))
    with collective.images(patterns.image_of(pattern)) as images:
        cloud = collective.Cloud(HOSTS, LINK_MBIT, images, groups)
        with cloud.running(**options):
            cloud.attach(readings)
            cloud.mark()
            took_s = _work(cloud)
            source_ratio = cloud.source_bytes() / REGION_BYTES
    found = {
        "completion_s": max(took_s),
        "slowest_over_fastest": max(took_s) / min(took_s),
        "source_ratio": source_ratio,
    }
    say(f"{way}: {found}")
    return {name: round(value, 4) for name, value in found.items()}


def _work(cloud: collective.Cloud) -> list[float]:
    """Run the workload on each host, in a thread; return each duration."""
    image_id, data = cloud.images.ids[0], cloud.images.data(0)

    def work(path: pathlib.Path) -> Iterator[str]:
        for span in collective.pieces([(0, REGION_BYTES)]):
            if collective.compare(path, data, collective.Reading((span,)), is_direct=False):
                yield f"read wrong bytes at {span[0]}"
            time.sleep(COMPUTE_S)

    took_s = collective.run_together(
        {
            number: functools.partial(work, cloud.agents[number].image_path(image_id))
            for number in range(HOSTS)
        }
    )
    return list(took_s.values())


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases."""
    ways = WAYS if scale is experiment.Scale.WHOLE else ()
    return [experiment.Case(way, functools.partial(run, way), 28) for way in ways]


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return acstor's gain, and its distance from computing alone."""
    alone_s = REGION_BYTES / geometry.MIB * COMPUTE_S
    ours, direct = outcomes.get(played.ACSTOR), outcomes.get(played.DIRECT)
    if ours is None or direct is None:
        return []
    took_s = ours["completion_s"]
    return [
        experiment.Row.speed_up(
            "3.1.2",
            f"completion of reading and computing, {HOSTS} hosts, acstor against direct",
            "no number",
            took_s,
            direct["completion_s"],
            played.DIRECT,
        ),
        experiment.Row.cost(
            "3.1.2",
            "the same, relative to the computing time alone",
            "no number",
            took_s,
            "s",
            alone_s,
            "computing alone",
        ),
    ]


def pairs(outcomes: experiment.Outcomes) -> dict[str, list[float]]:
    """Return the baseline at both ends of the run."""
    both = [outcomes.get(way) for way in (played.DIRECT, played.DIRECT_AGAIN)]
    times = [one["completion_s"] for one in both if one is not None]
    return {played.DIRECT: times} if len(times) == len(both) else {}


EXPERIMENT = experiment.Experiment(
    key="S0-run-time",
    title="A workload that reads and computes at run time",
    paper_has="The patterns represent jobs that sweep a data set while they compute; none is run.",
    here=(
        f"{HOSTS} hosts read the same {REGION_BYTES >> 20} MiB in pieces of 1 MiB, and compute "
        f"{COMPUTE_S:g} s after each; links have {LINK_MBIT:g} Mbit/s. Computing is simulated by "
        "waiting: two cores cannot compute for eight hosts. Prefetched data arrives meanwhile."
    ),
    cases=cases,
    rows=rows,
    pairs=pairs,
)
