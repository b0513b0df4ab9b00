# SPDX-License-Identifier: Apache-2.0
"""S0's four panels of each access pattern."""

from collections.abc import Sequence

from matplotlib import axes
from matplotlib import figure

from evaluation.papers import experiment
from evaluation.papers import s0_pattern_rows
from evaluation.papers import s0_patterns as played

COLOURS = {
    played.ACSTOR: "tab:blue",
    played.DIRECT: "tab:red",
    played.BROADCAST: "tab:gray",
    played.BY_0: "tab:orange",
    played.BY_512: "tab:green",
    played.BY_INF: "tab:purple",
}
LOG_FROM_RATIO = 10
SPLIT_COLOURS = ("tab:red", "tab:orange", "tab:green")


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Fill the picture: completion, throughput, strategies, origins of bytes."""
    picture.set_size_inches(15, 4.2)
    completion, throughput, strategies, split = picture.subplots(1, 4)
    _completion(completion, outcomes)
    _throughput(throughput, outcomes, (played.DIRECT, played.ACSTOR))
    throughput.set(title="(b) Read throughput / link")
    _throughput(strategies, outcomes, played.STRATEGIES)
    strategies.set(title="(c) The same for each strategy")
    _split(split, outcomes)
    hosts = sorted({count for way in COLOURS for count in counts(outcomes, way)})
    for panel in (completion, throughput, strategies):
        panel.set(xlabel="hosts", xticks=hosts, xlim=(0, max(hosts, default=0) + 1))


def counts(outcomes: experiment.Outcomes, way: str) -> list[int]:
    """Return the numbers of hosts with an outcome of a way."""
    return sorted(
        int(hosts) for case in outcomes for name, _, hosts in [case.rpartition(", ")] if name == way
    )


def _completion(panel: axes.Axes, outcomes: experiment.Outcomes) -> None:
    for way in (played.BROADCAST, played.DIRECT, played.ACSTOR):
        hosts = counts(outcomes, way)
        times = [s0_pattern_rows.got(outcomes, way, count, "completion") for count in hosts]
        panel.plot(hosts, times, "o-", color=COLOURS[way], label=way)
    _scale(panel)
    panel.set(title="(a) Completion / limit of the links")
    panel.legend()


def _throughput(panel: axes.Axes, outcomes: experiment.Outcomes, ways: Sequence[str]) -> None:
    """Draw the range from the slowest to the fastest host."""
    for way in ways:
        hosts = counts(outcomes, way)
        for end, line in (("min", "v--"), ("max", "^-")):
            rates = [s0_pattern_rows.got(outcomes, way, count, "rate", end) for count in hosts]
            panel.plot(hosts, rates, line, color=COLOURS[way], label=f"{way}, {end}")
    _scale(panel)
    panel.legend(fontsize="small")


def _scale(panel: axes.Axes) -> None:
    """Use a logarithmic scale for widely different values, else a linear one from 0."""
    drawn = [value for line in panel.lines for value in line.get_ydata()]
    if drawn and max(drawn) > LOG_FROM_RATIO * min(drawn):
        panel.set(yscale="log")
        panel.yaxis.set_major_formatter("{x:g}")
    else:
        panel.set(ylim=(0, None))


def _split(panel: axes.Axes, outcomes: experiment.Outcomes) -> None:
    names, below = [], []
    bars: dict[str, list[float]] = {}
    for hosts in sorted({count for way in played.STRATEGIES for count in counts(outcomes, way)}):
        for way in played.STRATEGIES:
            split = s0_pattern_rows.got(outcomes, way, hosts, "split")
            if isinstance(split, dict):
                names.append(f"{way.removeprefix('acstor')}\n{hosts}")
                for kind, share in split.items():
                    bars.setdefault(kind, []).append(share)
    below = [0.0] * len(names)
    for (kind, shares), colour in zip(bars.items(), SPLIT_COLOURS, strict=False):
        panel.bar(range(len(names)), shares, bottom=below, color=colour, label=kind)
        below = [one + more for one, more in zip(below, shares, strict=True)]
    panel.set(title="(d) Bytes received / read, mean host", xticks=range(len(names)))
    panel.set_xticklabels(names, fontsize="small")
    if names:
        panel.set_ylim(0, 1.25 * max(below))  # space for the legend
        panel.legend(fontsize="x-small", loc="upper center", ncols=len(bars))
