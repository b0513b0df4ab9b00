# SPDX-License-Identifier: Apache-2.0
"""Show what the demo measured: a table for the terminal, a JSON file, a picture.

The rule: every figure says what it is a figure of, and software emulation is
named wherever seconds are shown.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib.figure
import prettytable

from tests.lab import ways

MB = 1_000_000
COLOURS = {"copy": "#b0413e", "demand": "#d99a2b", "acstor": "#2f7f5f"}
ORIGIN_COLOURS = {
    "zero": "#d8d8d8",
    "boot": "#7b6fb0",
    "cache": "#2f7f5f",
    "peer": "#6fb3a2",
    "home": "#3b78b5",
    "source": "#b0413e",
}
EMULATION = {
    "tcg": "software emulation (TCG): the guests' boots are bound by the processor",
    "kvm": "hardware virtualization (KVM)",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The circumstances that a reader of the figures must know."""

    hosts: int
    link_mbit: float
    accelerator: str
    cpus: int
    image: dict[str, object]
    qcow2_bytes: int

    @property
    def words(self) -> str:
        """All of that in a line."""
        return (
            f"{self.hosts} hosts and image server with {self.link_mbit:g} Mbit/s each, "
            f"{self.cpus} processors, {EMULATION[self.accelerator]}"
        )


def per_host(results: Sequence[ways.WayResult]) -> str:
    """Return a table: seconds to the login prompt, one row a host, one column a way."""
    table = prettytable.PrettyTable(["seconds to login", *(result.label for result in results)])
    table.align = "r"
    for row in zip(*(result.hosts for result in results), strict=True):
        table.add_row([row[0].host, *(f"{host.login_s:.1f}" for host in row)])
    slowest = (max(host.login_s for host in result.hosts) for result in results)
    table.add_row(["all", *(f"{seconds:.1f}" for seconds in slowest)])
    return table.get_string()


def totals(results: Sequence[ways.WayResult]) -> str:
    """Return a table: what the image server sent, one row a way."""
    columns = ["out of the image server", "sent MB", "unique MB", "sent / unique", "link MB"]
    table = prettytable.PrettyTable([*columns, "guests read MB"])
    table.align = "r"
    for result in results:
        read = sum(host.guest_read_bytes for host in result.hosts)
        counts = (result.server_bytes, result.unique_bytes, result.server_link_bytes, read)
        sent, unique, link, asked = (f"{count / MB:.1f}" for count in counts)
        table.add_row([result.label, sent, unique, f"{result.amplification:.2f}", link, asked])
    return table.get_string()


def origins(result: ways.WayResult) -> str:
    """Return a table: where the bytes came from that the guests got, one row a host."""
    names = list(result.hosts[0].read_origins)
    table = prettytable.PrettyTable(["MB read by origin", *names])
    table.align = "r"
    for host in result.hosts:
        table.add_row([host.host, *(f"{host.read_origins[name] / MB:.1f}" for name in names)])
    return table.get_string()


def text(setting: Setting, results: Sequence[ways.WayResult]) -> str:
    """Return the whole report for a terminal."""
    tables = [per_host(results), totals(results)]
    tables += [origins(result) for result in results if result.hosts[0].read_origins]
    return "\n".join([setting.words, *tables])


def as_json(setting: Setting, results: Sequence[ways.WayResult]) -> dict[str, Any]:
    """Return all figures as JSON's types."""
    plain = [
        {**dataclasses.asdict(result), "sent_per_unique_byte": round(result.amplification, 4)}
        for result in results
    ]
    return {"version": 1, "setting": dataclasses.asdict(setting), "ways": plain}


def _draw_logins(axes: Any, results: Sequence[ways.WayResult]) -> None:
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


def _draw_server(axes: Any, results: Sequence[ways.WayResult]) -> None:
    labels = [result.label.replace(" ", "\n", 2) for result in results]
    sent = [result.server_bytes / MB for result in results]
    bars = axes.bar(labels, sent, color=[COLOURS[result.way] for result in results])
    notes = [
        f"{result.server_bytes / MB:.0f} MB\n{result.amplification:.2f} x unique"
        for result in results
    ]
    axes.bar_label(bars, notes, fontsize=7)
    axes.margins(y=0.18)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylabel("MB out of the image server")


def _draw_origins(axes: Any, result: ways.WayResult) -> None:
    names = [host.host for host in result.hosts]
    bottom = [0.0] * len(names)
    for origin, colour in ORIGIN_COLOURS.items():
        heights = [host.read_origins.get(origin, 0) / MB for host in result.hosts]
        if any(heights):
            axes.bar(names, heights, bottom=bottom, label=origin, color=colour)
            bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_ylabel("MB that the guest got, by origin (acstor)")
    axes.margins(y=0.15)
    axes.legend(fontsize=7, loc="upper left", ncols=len(ORIGIN_COLOURS))


def draw(setting: Setting, results: Sequence[ways.WayResult], path: pathlib.Path) -> None:
    """Write the picture."""
    told = [result for result in results if result.hosts[0].read_origins]
    panels = 2 + len(told)
    figure = matplotlib.figure.Figure(figsize=(5 * panels, 4.2), layout="tight")
    axes = figure.subplots(1, panels)
    _draw_logins(axes[0], results)
    _draw_server(axes[1], results)
    for place, result in zip(axes[2:], told, strict=True):
        _draw_origins(place, result)
    figure.suptitle(setting.words, fontsize=9)
    figure.savefig(path, dpi=110)


def save(
    setting: Setting, results: Sequence[ways.WayResult], folder: pathlib.Path
) -> list[pathlib.Path]:
    """Write ``demo.json`` and ``demo.png`` into ``folder``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, picture = folder / "demo.json", folder / "demo.png"
    figures.write_text(json.dumps(as_json(setting, results), indent=1) + "\n")
    draw(setting, results, picture)
    return [figures, picture]
