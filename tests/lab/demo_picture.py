# SPDX-License-Identifier: Apache-2.0
"""The demo's pictures: logins and chunk transfers; the effect of a remap."""

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib.figure
import numpy

from tests.lab import boot_methods
from tests.lab import demo_remap

MB = 1_000_000
COLOURS = {"copy": "#b0413e", "demand": "#d99a2b", "raw": "#8fbfae", "acstor": "#2f7f5f"}
ORIGIN_COLOURS = {
    "zero": "#e8e8e8",
    "boot": "#2f7f5f",
    "cache": "#6fb3a2",
    "peer": "#3b78b5",
    "home": "#7b6fb0",
    "source": "#b0413e",
}
SOURCE_COLOUR = "#b8b8b8"
HOST_COLOURS = ("#d99a2b", "#2f7f5f", "#3b78b5", "#7b6fb0", "#6fb3a2", "#8c6d3f", "#a34f7d")
TRAFFIC_COLOUR = "#b0413e"


def draw(words: str, results: Sequence[boot_methods.BootResult], path: pathlib.Path) -> None:
    """Draw the boots.

    :param words: the circumstances
    """
    exchange = results[-1].exchange
    rows = 2 if exchange else 1
    figure = matplotlib.figure.Figure(figsize=(11, 4.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    _draw_logins(axes[0, 0], results)
    _draw_server(axes[0, 1], results)
    if exchange:
        _draw_origins(axes[1, 0], results[-1].hosts)
        _draw_exchange(axes[1, 1], exchange)
    figure.suptitle(words, fontsize=9)
    figure.savefig(path, dpi=110)


def draw_remap(words: str, remap: demo_remap.RemapResult, path: pathlib.Path) -> None:
    """Draw the remap.

    :param words: the circumstances
    """
    figure = matplotlib.figure.Figure(figsize=(11, 5), layout="constrained")
    given, others = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    _draw_given(given, remap)
    _draw_traffic(others, remap)
    moved = f"{remap.moved} of {sum(remap.vnodes_before.values())} v-nodes move"
    for at_s, label in ((remap.traffic_s, "traffic begins"), (remap.remap_s, moved)):
        for axes in (given, others):
            axes.axvline(at_s, color="black", linewidth=0.8, linestyle="--")
        given.annotate(
            f" {label}", (at_s, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
    figure.suptitle(words, fontsize=9)
    figure.savefig(path, dpi=110)


def _draw_logins(axes: Any, results: Sequence[boot_methods.BootResult]) -> None:
    width = 0.8 / len(results)
    for number, result in enumerate(results):
        places = [host_no + number * width for host_no in range(len(result.hosts))]
        seconds = [host.login_s for host in result.hosts]
        bars = axes.bar(places, seconds, width, label=result.label, color=COLOURS[result.way])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    middle = 0.4 - width / 2
    names = [host.host for host in results[0].hosts]
    axes.set_xticks([place + middle for place in range(len(names))], names)
    axes.set_ylabel("seconds to login prompt")
    axes.margins(y=0.3)
    axes.legend(fontsize=7, loc="upper left")


def _draw_server(axes: Any, results: Sequence[boot_methods.BootResult]) -> None:
    labels = [result.label.replace(" ", "\n", 2) for result in results]
    sent = [result.server_bytes / MB for result in results]
    bars = axes.bar(labels, sent, color=[COLOURS[result.way] for result in results])
    notes = [
        f"{result.server_bytes / MB:.0f} MB\n{result.amplification:.2f} x unique\n"
        f"{result.of_raw:.2f} x raw"
        for result in results
    ]
    axes.bar_label(bars, notes, fontsize=7)
    axes.margins(y=0.25)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylabel("MB out of the image server")


def _draw_origins(axes: Any, hosts: Sequence[boot_methods.HostResult]) -> None:
    """Draw the origins of the bytes that guests read."""
    names = [host.host for host in hosts]
    bottom = [0.0] * len(names)
    for origin in hosts[0].read_origins:
        heights = [host.read_origins[origin] / MB for host in hosts]
        axes.bar(names, heights, bottom=bottom, label=origin, color=ORIGIN_COLOURS.get(origin))
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_ylabel("MB that a guest read, by origin (acstor)")
    axes.set_ylim(0, 1.3 * max(bottom))
    axes.legend(fontsize=7, loc="upper left", ncols=3)


def _draw_exchange(axes: Any, exchange: dict[str, dict[str, int]]) -> None:
    names = list(exchange)
    bottom = [0.0] * len(names)
    colours = zip(
        (boot_methods.SOURCE, *names), (SOURCE_COLOUR, *_host_colours(len(names))), strict=True
    )
    for sender, colour in colours:
        heights = [exchange[name].get(sender, 0) / MB for name in names]
        axes.bar(names, heights, bottom=bottom, label=f"from {sender}", color=colour)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_ylabel("MB of chunks that a host got (acstor)")
    axes.set_ylim(0, 1.3 * max(bottom))
    axes.legend(fontsize=7, loc="upper left", ncols=2)


def _draw_given(axes: Any, remap: demo_remap.RemapResult) -> None:
    """Draw the bytes that hosts sent each other, as stacked areas."""
    names = list(remap.vnodes_before)
    times = sorted(load.at_s for load in remap.loads)
    heights = []
    for name in names:
        own = [load for load in remap.loads if load.host == name]
        at_s, given = [load.at_s for load in own], [load.given / demo_remap.MBIT for load in own]
        heights.append(numpy.interp(times, at_s, given))
    labels = [
        f"by {name}: {remap.vnodes_before[name]}, then {remap.vnodes_after[name]} v-nodes"
        for name in names
    ]
    axes.stackplot(times, heights, labels=labels, colors=_host_colours(len(names)))
    axes.set(ylabel="chunks given, Mbit/s", xlim=(0, times[-1]))
    axes.margins(y=0.3)
    axes.legend(fontsize=7, loc="upper left")


def _draw_traffic(axes: Any, remap: demo_remap.RemapResult) -> None:
    """Draw the other traffic on the busy host's link."""
    own = [load for load in remap.loads if load.host == remap.busy]
    at_s = [load.at_s for load in own]
    axes.plot(at_s, [load.others / demo_remap.MBIT for load in own], color=TRAFFIC_COLOUR)
    axes.set(xlabel="s", ylabel=f"other traffic\nof {remap.busy}, Mbit/s", ylim=(0, None))


def _host_colours(count: int) -> list[str]:
    return [HOST_COLOURS[number % len(HOST_COLOURS)] for number in range(count)]
