# SPDX-License-Identifier: Apache-2.0
"""Pictures of Ling 2015 for guests that share a disk.

Runs come by policy; a panel shows one policy, or a group of bars for each.
"""

from collections.abc import Mapping
from collections.abc import Sequence

from matplotlib import axes as mpl_axes
from matplotlib import figure

from evaluation.bench import disk_simulation as simulation

Runs = Mapping[str, simulation.Simulation]
SEEKS = {"zero": "tab:green", "to 12 GB": "tab:orange", "farther": "tab:red"}
REQUESTS_SHOWN = 3000
"""Per guest, in a panel of offsets over time."""


def regions(picture: figure.SubFigure, runs: Runs, until_s: float) -> None:
    """Draw the offsets of each guest's requests over time (figure 1)."""
    panels = picture.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for panel, (policy, found) in zip(panels, runs.items(), strict=True):
        for guest in found.guests:
            done = [(when_s, offset) for when_s, offset, _ in guest.done if when_s < until_s]
            shown = done[:: max(1, len(done) // REQUESTS_SHOWN)]
            times, offsets = [when_s for when_s, _ in shown], [at / 1e9 for _, at in shown]
            panel.plot(times, offsets, ".", markersize=1, label=guest.name)
        panel.set(title=f"{policy}: places over time (figure 1)", xlabel="s", xlim=(0, until_s))
    panels[0].set(ylabel="GB")
    panels[0].legend(markerscale=8, loc="upper right")


def throughput(picture: figure.SubFigure, runs: Runs, until_s: float) -> None:
    """Draw each guest's requests per second (figure 7)."""
    panels = picture.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for panel, (policy, found) in zip(panels, runs.items(), strict=True):
        for guest in found.guests:
            rates = simulation.requests_per_s(guest, min(until_s, guest.ended_s))
            panel.plot(rates, linewidth=1, label=guest.name)
        panel.set(title=f"{policy}: requests/s (figure 7)", xlabel="s")
    panels[0].set(ylim=(0, None))
    panels[0].legend(loc="upper right")


def seek_shares(
    panel: mpl_axes.Axes,
    model: Mapping[str, Sequence[float]],
    paper: Mapping[str, Sequence[float]],
) -> None:
    """Draw the distribution of seek distances: model on the left, paper on the right."""
    for shares, shift, hatch in ((model, -0.2, None), (paper, 0.2, "//")):
        bottoms = [0.0] * len(model)
        for at, (name, colour) in enumerate(SEEKS.items()):
            heights = [shares[policy][at] for policy in model]
            places = [number + shift for number in range(len(model))]
            panel.bar(
                places,
                heights,
                width=0.36,
                bottom=bottoms,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=None if hatch else name,
            )
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    panel.set(title="Seek distances, %: model, paper hatched (table 4)")
    panel.set_xticks(range(len(model)), list(model))
    panel.legend(loc="lower right")


def bars(panel: mpl_axes.Axes, title: str, values: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a group of bars for each name, with one bar for each policy."""
    names = list(next(iter(values.values())))
    width = 0.8 / len(values)
    for number, (policy, found) in enumerate(values.items()):
        places = [at + (number - (len(values) - 1) / 2) * width for at in range(len(names))]
        panel.bar(places, [found[name] for name in names], width=width, label=policy)
    panel.set(title=title)
    panel.margins(y=0.25)
    panel.set_xticks(range(len(names)), names)
    panel.legend(ncols=2, loc="upper left")
