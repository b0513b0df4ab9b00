# SPDX-License-Identifier: Apache-2.0
"""A soak's report: samples as JSON, curves as a picture, a table, and findings."""

import collections
import json
import pathlib
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import prettytable
from matplotlib import figure

from evaluation.soak import trend

Series = Mapping[tuple[str, str], Sequence[trend.Point]]
JUDGED_SHARE = 0.25
"""Minimum share of the soak that a judged process ran."""
PANELS = {
    "memory_mib": "anonymous memory, MiB",
    "descriptors": "descriptors",
    "threads": "threads",
    "latency_s": "seconds",
}
LATENCY = "latency_s"
_HOST = re.compile(r"-agent-\S+ ")


def judged(series: Series, length_s: float) -> dict[tuple[str, str], Sequence[trend.Point]]:
    """Return the resources of the processes that ran long enough."""
    return {
        key: points
        for key, points in series.items()
        if key[1] != LATENCY and points[-1].at_s - points[0].at_s >= JUDGED_SHARE * length_s
    }


def table(series: Series, length_s: float) -> str:
    """Return the table of all judged resources and of all latencies."""
    shown = prettytable.PrettyTable(["What", "Of", "2nd quarter", "Last quarter", "Per hour"])
    shown.align = "r"
    shown.align["What"] = shown.align["Of"] = "l"
    latencies = {key: points for key, points in series.items() if key[1] == LATENCY}
    for (process, resource), points in sorted((judged(series, length_s) | latencies).items()):
        if found := trend.trend_of(points):
            shown.add_row(
                [process, resource, *(f"{value:.3g}" for value in found[:2]), f"{found[2]:+.2g}"]
            )
    return shown.get_string()


def write(
    folder: pathlib.Path, series: Series, counts: Mapping[str, int], findings: Sequence[str]
) -> None:
    """Write ``soak.json`` and ``soak.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    reported = {
        "actions": dict(counts),
        "findings": list(findings),
        "series": [
            {"process": process, "resource": resource, "points": list(points)}
            for (process, resource), points in series.items()
        ],
    }
    (folder / "soak.json").write_text(json.dumps(reported))
    picture = figure.Figure(figsize=(9, 10), layout="constrained")
    draw(picture, series)
    picture.savefig(folder / "soak.png", dpi=100)


def draw(picture: figure.Figure, series: Series) -> None:
    """Draw a panel for each resource, with a colour for each kind of process."""
    for axes, (resource, label) in zip(picture.subplots(4).flat, PANELS.items(), strict=True):
        kinds = collections.defaultdict(list)
        for (process, _), points in _of(series, resource):
            kinds[_HOST.sub("-agent ", process.split(" #")[0])].append(points)
        for number, (kind, parts) in enumerate(sorted(kinds.items())):
            style = "." if resource == LATENCY else "-"
            for part in parts:
                hours = [point.at_s / 3600 for point in part]
                name = kind if part is parts[0] else None
                values = [point.value for point in part]
                axes.plot(hours, values, style, color=f"C{number % 10}", label=name, linewidth=1)
        axes.set(xlabel="hours", ylabel=label)
        if resource == LATENCY:
            axes.set_yscale("log")
        if kinds:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _of(series: Series, resource: str) -> Iterator[tuple[tuple[str, str], Sequence[trend.Point]]]:
    return ((key, points) for key, points in series.items() if key[1] == resource)
