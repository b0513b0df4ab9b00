# SPDX-License-Identifier: Apache-2.0
"""Figures 2 and 3 and table II: hosts of two repositories read one package."""

import functools
from collections.abc import Mapping
from collections.abc import Sequence

from matplotlib import axes as mpl_axes
from matplotlib import figure

from evaluation.papers import experiment
from evaluation.papers import s3_scenes as scenes

HOSTS = {experiment.Scale.WHOLE: (1, 4, 8, 16), experiment.Scale.QUICK: (4,)}
SPLITS = {"all": 1.0, "25 %": 0.25, "50 %": 0.5}
"""Share of the hosts with Repo-1."""
PAPER_S = {
    ("direct", "25 %"): (131.0, 188.75, 221.0),
    ("direct", "50 %"): (129.0, 188.41, 221.0),
    ("direct", "all"): (112.0, 189.03, 221.0),
    ("simple", "25 %"): (32.0, 33.18, 34.0),
    ("simple", "50 %"): (35.0, 35.47, 36.0),
    ("simple", "all"): (14.05, 15.85, 16.05),
    ("content", "25 %"): (17.0, 17.03, 18.03),
    ("content", "50 %"): (16.0, 17.07, 18.08),
    ("content", "all"): (16.0, 16.66, 17.01),
}
"""Table II: minimum, mean and maximum, of 32 hosts."""
WAYS = (scenes.SIMPLE, scenes.CONTENT)
COLOURS = {"direct": "tab:red", "simple": "tab:orange", "content": "tab:green"}
RECEIVED = {
    "from_source": "from the source",
    "prefetched": "from peers, prefetched",
    "on_demand": "from peers, on demand",
}
RING = "half and half, ring"
_DIRECT_AGAIN = "direct, again"


def counts_of(hosts: int, split: str) -> tuple[int, int] | None:
    """Return the number of hosts of each repository; None if the split is impossible.

    >>> counts_of(8, "25 %"), counts_of(2, "25 %"), counts_of(8, "all")
    ((2, 6), None, (8, 0))
    """
    first = hosts * SPLITS[split]
    return (int(first), hosts - int(first)) if first == int(first) else None


def name_of(counts: Sequence[int]) -> str:
    """Return the name of the case with these numbers of hosts."""
    return f"{sum(counts)} hosts, {counts[0]} at Repo-1"


def cases(scale: experiment.Scale) -> list[experiment.Case]:
    """Return the cases: the most hosts first, since these are compared."""
    most = max(HOSTS[scale])
    found = [_direct(_direct_name(n), n) for n in reversed(HOSTS[scale])]
    splits = [counts_of(n, split) for n in reversed(HOSTS[scale]) for split in SPLITS]
    mirrored = [(0, most), (most - most // 4, most // 4)] if scale == experiment.Scale.WHOLE else []
    for counts in dict.fromkeys([*filter(None, splits), *mirrored]):
        about_s = 12 + 1.7 * sum(counts)
        found.append(
            experiment.Case(name_of(counts), functools.partial(scenes.compare, counts), about_s)
        )
    if scale == experiment.Scale.WHOLE:
        ring = functools.partial(scenes.compare, (most // 2, most // 2), ways=(scenes.RING,))
        found.append(experiment.Case(RING, ring, 6 + 1.1 * most))
    return [*found, _direct(_DIRECT_AGAIN, paired_hosts(scale))]


def paired_hosts(scale: experiment.Scale) -> int:
    """Return the number of hosts of the repeated direct way at a run's end, at most 8."""
    return min(8, max(HOSTS[scale]))


def _direct_name(hosts: int) -> str:
    return f"direct, {hosts} hosts"


def _direct(name: str, hosts: int) -> experiment.Case:
    counts = (hosts - hosts // 2, hosts // 2)
    run = functools.partial(scenes.compare, counts, ways=(scenes.DIRECT,))
    return experiment.Case(name, run, 3 + 4.6 * hosts)


def most_hosts(outcomes: experiment.Outcomes) -> int:
    """Return the largest number of hosts of any case; 0 if there is none."""
    return max((way["hosts"] for ways in outcomes.values() for way in ways.values()), default=0)


def found_of(
    outcomes: experiment.Outcomes, way: str, hosts: int, split: str
) -> experiment.Outcome | None:
    """Return a way's outcome; ``direct`` is the same for all splits, without groups."""
    counts = counts_of(hosts, split)
    name = _direct_name(hosts) if way == scenes.DIRECT else name_of(counts) if counts else ""
    return outcomes.get(name, {}).get(way)


def pairs(outcomes: experiment.Outcomes) -> Mapping[str, Sequence[float]]:
    """Return the direct ways at the beginning and the end, of equal numbers of hosts."""
    if _DIRECT_AGAIN not in outcomes:
        return {}
    names = (_direct_name(outcomes[_DIRECT_AGAIN][scenes.DIRECT]["hosts"]), _DIRECT_AGAIN)
    if names[0] not in outcomes:
        return {}
    return {"direct": [outcomes[name][scenes.DIRECT]["mean_s"] for name in names]}


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw completion over hosts by split, the difference over splits, and traffic."""
    picture.set_size_inches(15, 9)
    top, bottom = picture.subfigures(2, 1)
    most = most_hosts(outcomes)
    panels = top.subplots(1, len(SPLITS), sharey=True)
    for letter, split, panel in zip("abc", SPLITS, panels, strict=True):
        _draw_split(panel, outcomes, split)
        panel.set(title=f"2({letter}) {split} of the hosts at Repo-1", xlabel="hosts")
    panels[0].set(ylabel="mean completion, s")
    left, right = bottom.subplots(1, 2, width_ratios=[2, 3])
    _draw_difference(left, outcomes, most)
    _draw_traffic(right, outcomes, most)


def _draw_split(panel: mpl_axes.Axes, outcomes: experiment.Outcomes, split: str) -> None:
    all_hosts = sorted({one["hosts"] for ways in outcomes.values() for one in ways.values()})
    for way, colour in COLOURS.items():
        points = {
            hosts: found
            for hosts in all_hosts
            if (found := found_of(outcomes, way, hosts, split)) is not None
        }
        panel.plot(
            list(points),
            [found["mean_s"] for found in points.values()],
            marker="o",
            color=colour,
            label=way,
        )
    panel.set(xticks=all_hosts, yscale="log", yticks=(4, 5, 10, 20, 50))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.legend()


def _draw_difference(panel: mpl_axes.Axes, outcomes: experiment.Outcomes, most: int) -> None:
    at = {
        counts: outcomes[name_of((counts, most - counts))]
        for counts in range(most + 1)
        if name_of((counts, most - counts)) in outcomes
    }
    for way in WAYS:
        heights = [ways[way]["mean_s"] for ways in at.values()]
        panel.plot(list(at), heights, marker="o", color=COLOURS[way], label=way)
    panel.set(
        title=f"2(d) {most} hosts",
        xlabel="hosts at Repo-1",
        xticks=list(at),
        ylabel="mean completion, s",
        ylim=(0, None),
    )
    panel.legend()


def _draw_traffic(panel: mpl_axes.Axes, outcomes: experiment.Outcomes, most: int) -> None:
    bars = {
        f"{way}\n{split}": found
        for split in SPLITS
        for way in COLOURS
        if (found := found_of(outcomes, way, most, split)) is not None
    }
    bottoms = [0.0] * len(bars)
    for (key, label), colour in zip(RECEIVED.items(), COLOURS.values(), strict=True):
        heights = [found[key] for found in bars.values()]
        panel.bar(list(bars), heights, bottom=bottoms, label=label, color=colour)
        bottoms = [low + height for low, height in zip(bottoms, heights, strict=True)]
    panel.set(title=f"3: received by the mean of {most} hosts / the package", ylim=(0, 1.2))
    panel.legend(loc="upper center", ncols=len(RECEIVED))
