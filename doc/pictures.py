# SPDX-License-Identifier: Apache-2.0
"""The drawings of the operator's documents: ``python doc/pictures.py`` writes them as SVG.

They show where parts run and in which order work goes, and no numbers.
"""

import pathlib

import matplotlib as mpl
from matplotlib import axes as mpl_axes
from matplotlib import figure
from matplotlib import patches

FOLDER = pathlib.Path(__file__).resolve().parent / "source/_static"
BLUE, GREEN, GREY, ORANGE = "#d6e6f5", "#dcefdc", "#eeeeee", "#fbe6cd"
Point = tuple[float, float]


def main() -> None:
    """Write all drawings; the same files each time."""
    mpl.rcParams.update({"svg.hashsalt": "acstor", "svg.fonttype": "none"})
    for name, draw in (("overview", overview), ("roll_out", roll_out)):
        picture = draw()
        picture.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")


def overview() -> figure.Figure:
    """Draw what runs where, and the way of a read."""
    picture, panel = sheet(10.0, 5.4)
    box(panel, (0.2, 3.0), (4.4, 2.2), "compute host 1", GREY)
    box(panel, (0.5, 4.0), (1.6, 0.7), "guest (QEMU)", GREEN)
    box(panel, (2.7, 4.0), (1.6, 0.7), "acstor-agent", BLUE)
    box(panel, (2.7, 3.2), (1.6, 0.5), "cache on disk", ORANGE)
    box(panel, (0.2, 0.2), (4.4, 2.2), "compute host 2, 3, …", GREY)
    box(panel, (0.5, 1.2), (1.6, 0.7), "guest (QEMU)", GREEN)
    box(panel, (2.7, 1.2), (1.6, 0.7), "acstor-agent", BLUE)
    box(panel, (2.7, 0.4), (1.6, 0.5), "cache on disk", ORANGE)
    box(panel, (6.2, 3.0), (3.6, 2.2), "image service", GREY)
    box(panel, (6.5, 4.0), (3.0, 0.7), "Glance and its store", GREEN)
    box(panel, (6.5, 3.2), (3.0, 0.5), "acstor-glance-listener, gateway", BLUE)
    box(panel, (6.2, 0.2), (3.6, 2.2), "controller", GREY)
    box(panel, (6.5, 1.2), (3.0, 0.7), "acstor-decision, REST API", BLUE)
    box(panel, (6.5, 0.4), (3.0, 0.5), "Keystone, RabbitMQ, MariaDB", GREEN)
    arrow(panel, (2.1, 4.45), (2.7, 4.45), "1 read")
    arrow(panel, (3.0, 4.0), (3.0, 3.7), "2")
    arrow(panel, (4.0, 3.2), (4.0, 1.9), "3 another host")
    arrow(panel, (4.3, 4.45), (6.5, 4.45), "4 else Glance")
    arrow(panel, (6.5, 1.55), (4.3, 1.55), "who serves what")
    return picture


def roll_out() -> figure.Figure:
    """Draw the steps of a roll-out and the rollback from each."""
    picture, panel = sheet(10.0, 2.6)
    steps = ("prepare\nimages", "two canary\nhosts", "verify", "a rack\nat a time", "all hosts")
    for number, step in enumerate(steps):
        box(panel, (0.2 + 2.0 * number, 1.2), (1.5, 0.9), step, BLUE, middle=True)
        if number:
            arrow(panel, (2.0 * number - 0.3, 1.65), (2.0 * number + 0.2, 1.65), "")
    back = "rollback at each step: acstor-nova-manage disable, restart nova-compute"
    box(panel, (0.2, 0.2), (9.5, 0.6), back, ORANGE, middle=True)
    return picture


def sheet(width: float, height: float) -> tuple[figure.Figure, mpl_axes.Axes]:
    """Return an empty drawing, and what to draw on, in the same units."""
    picture = figure.Figure(figsize=(width, height))
    panel = picture.subplots()
    panel.set(xlim=(0, width), ylim=(0, height))
    panel.axis("off")
    return picture, panel


def box(
    panel: mpl_axes.Axes, at: Point, size: Point, text: str, colour: str, *, middle: bool = False
) -> None:
    """Draw a box; large ones have their name at the top."""
    panel.add_patch(patches.Rectangle(at, *size, facecolor=colour, edgecolor="#555555"))
    is_large = size[1] > 1.0 and not middle
    height = at[1] + (size[1] - 0.2 if is_large else size[1] / 2)
    panel.text(at[0] + size[0] / 2, height, text, ha="center", va="center", fontsize=10)


def arrow(panel: mpl_axes.Axes, begin: Point, end: Point, text: str) -> None:
    """Draw an arrow with a word beside its middle."""
    panel.annotate("", end, begin, arrowprops={"arrowstyle": "->", "linewidth": 1.4})
    is_upright = begin[0] == end[0]
    middle = ((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2)
    offset = (6, 0) if is_upright else (0, 6)
    panel.annotate(
        text,
        middle,
        offset,
        textcoords="offset points",
        ha="left" if is_upright else "center",
        va="center" if is_upright else "bottom",
        fontsize=9,
    )


if __name__ == "__main__":
    main()
