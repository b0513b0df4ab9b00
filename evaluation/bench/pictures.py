# SPDX-License-Identifier: Apache-2.0
"""The three panels of Nicolae 2016 for each access pattern (figures 2 to 4).

Completion, read throughput from the slowest to the fastest host, and received bytes by origin; for
several ways, or over the number of hosts.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib import axes as mpl_axes
from matplotlib import figure

from acstor_common.model import geometry
from evaluation.bench import collective

ORIGIN_COLOURS = {"source": "tab:red", "home": "tab:orange", "peer": "tab:green"}
LOG_FROM_RATIO = 5
Outcomes = Mapping[str, Mapping[str, Any]]


def compare(
    picture: figure.Figure, title: str, found: Outcomes, completion_target: float | None = None
) -> None:
    """Draw ways side by side."""
    picture.set_size_inches(14, 4.8)
    picture.suptitle(title)
    left, middle, right = picture.subplots(1, 3)
    names = list(found)
    bars = left.bar(names, [found[name]["completion"] for name in names], color="tab:blue")
    left.bar_label(bars, fmt="%.2f")
    left.axhline(1.0, color="black", linewidth=0.8, label="limit of the links")
    if completion_target is not None:
        left.axhline(
            completion_target,
            color="tab:red",
            linestyle="--",
            label=f"target {completion_target:g}",
        )
    left.set(title="Completion / limit (lower is better)")
    left.margins(y=0.15)
    heights = [found[name]["completion"] for name in names]
    if max(heights) > LOG_FROM_RATIO * min(heights):
        left.set(yscale="log", ylim=(0.5, None))
        left.yaxis.set_major_formatter("{x:g}")
    left.legend()
    throughput(middle, names, [found[name] for name in names])
    transfers(right, names, [found[name] for name in names])
    for panel in (left, middle, right):
        panel.tick_params(axis="x", labelrotation=35)


def throughput(
    panel: mpl_axes.Axes, names: Sequence[str], ways: Sequence[Mapping[str, Any]]
) -> None:
    """Draw mean throughput, with its range over the hosts."""
    rates = [way["rate_over_link"] for way in ways]
    means = [rate["mean"] for rate in rates]
    below = [rate["mean"] - rate["min"] for rate in rates]
    above = [rate["max"] - rate["mean"] for rate in rates]
    panel.bar(names, means, yerr=[below, above], capsize=5, color="tab:cyan")
    panel.set(title="Throughput of a host / link rate: min, mean, max")


def transfers(
    panel: mpl_axes.Axes, names: Sequence[str], ways: Sequence[Mapping[str, Any]]
) -> None:
    """Draw the mean host's received bytes, by origin."""
    bottoms = [0.0] * len(names)
    for origin in collective.REMOTE_ORIGINS:
        heights = [
            way["transfers_bytes"][origin] / geometry.MIB / way["region_mib"] for way in ways
        ]
        panel.bar(names, heights, bottom=bottoms, color=ORIGIN_COLOURS[origin], label=origin)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set(title="Received by a host / bytes it reads, by origin")
    panel.legend()


def over_hosts(picture: figure.Figure, title: str, sweep: Mapping[str, Outcomes]) -> None:
    """Draw ways over the number of hosts; ``sweep`` is by way, then by that number."""
    picture.set_size_inches(14, 4.8)
    picture.suptitle(title)
    left, middle, right = picture.subplots(1, 3)
    for way, by_hosts in sweep.items():
        counts = [int(hosts) for hosts in by_hosts]
        left.plot(counts, [by_hosts[n]["completion"] for n in by_hosts], marker="o", label=way)
        for bound, line in (("max", "-"), ("min", "--")):
            middle.plot(
                counts,
                [by_hosts[n]["rate_over_link"][bound] for n in by_hosts],
                line,
                marker="o",
                color=left.lines[-1].get_color(),
                label=f"{way}, {bound}",
            )
    for panel in (left, middle):
        panel.set(xscale="log", xlabel="hosts", xticks=counts, xticklabels=counts)
        panel.minorticks_off()
        panel.legend()
    left.set(yscale="log", title="Completion / limit (lower is better)")
    middle.set(title="Throughput of a host / link rate", ylim=(0, None))
    first = next(iter(sweep))
    transfers(right, list(sweep[first]), list(sweep[first].values()))
    right.set(xlabel=f"hosts ({first})")
