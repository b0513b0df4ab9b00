# SPDX-License-Identifier: Apache-2.0
"""Table 1 of S0: delays of chunk reads after the first guest, in concurrent boots.

The times are QEMU's, which traces each read of the virtual disk.
"""

import contextlib
import functools
import pathlib
import re
import statistics
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from matplotlib import figure

from acstor_agent.engine.gossip import announcements
from acstor_common.model import geometry
from evaluation.bench import boots
from evaluation.bench import collective
from evaluation.bench import harness
from evaluation.papers import experiment
from tests.lab import guest
from tests.lab import guest_image

CHUNK_BYTES = 256 * geometry.KIB
LINK_MBIT = 100.0
GUESTS = 4
EVENT = "blk_co_preadv"
_READ = re.compile(r"\d+@([0-9.]+):" + EVENT + r" .* offset (\d+) bytes (\d+) ")
EDGES_S = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
NAMES = ("0 s", "0-1 s", "1-2 s", "2-3 s", "3-4 s", "4-5 s", "over 5 s")
PAPER = (0, 4, 10, 0, 2, 447, 2)
LONG_S = 4.0
Touched = Mapping[int, float]
"""Time of a guest's first read of each chunk, by chunk number."""


class TracedGuest(guest.Guest):
    """A guest whose reads QEMU traces."""

    @property
    def trace(self) -> pathlib.Path:
        """The path of the trace."""
        return self._folder / "trace.log"

    def _argv(self) -> list[str]:
        return [
            *super()._argv(),
            *("-msg", "timestamp=on", "-trace", f"enable={EVENT},file=trace.log"),
        ]


def touched(lines: Iterable[str], chunk_bytes: int = CHUNK_BYTES) -> dict[int, float]:
    """Return the time of the first read of each chunk, by QEMU's clock.

    >>> line = "7@12.5:blk_co_preadv blk 0x1 bs 0x2 offset 524287 bytes 2 flags 0x0"
    >>> touched([line, "another line", line.replace("12.5", "13.0")])
    {1: 12.5, 2: 12.5}
    """
    found: dict[int, float] = {}
    for line in lines:
        if match := _READ.match(line):
            at_s, offset, length = float(match[1]), int(match[2]), int(match[3])
            for chunk_no in range(offset // chunk_bytes, -(-(offset + length) // chunk_bytes)):
                found.setdefault(chunk_no, at_s)
    return found


def delays(guests: Sequence[Touched]) -> list[float]:
    """Return the delays after the first guest's read, for chunks of several guests.

    >>> delays([{1: 0.0, 2: 1.0}, {1: 2.0}, {1: 4.0}])
    [3.0]
    """
    found = []
    for chunk_no in sorted(set().union(*guests)):
        times = sorted(one[chunk_no] for one in guests if chunk_no in one)
        if len(times) > 1:
            found.append(statistics.mean(at_s - times[0] for at_s in times[1:]))
    return found


def distribution(waits_s: Iterable[float]) -> list[int]:
    """Return the number of delays in each class of the table.

    >>> distribution([0.0, 0.5, 4.2, 9.0])
    [1, 1, 0, 0, 0, 1, 1]
    """
    counts = [0] * len(NAMES)
    for wait_s in waits_s:
        counts[sum(wait_s > edge for edge in EDGES_S)] += 1
    return counts


def run(guests: int, say: harness.Say) -> experiment.Outcome:
    """Boot guests concurrently on their own hosts, from mirrors that exchange chunks."""
    raw = guest_image.ensure(say).raw
    with collective.images() as images:
        images.ids.append(images.files.adopt(raw))
        cloud = collective.Cloud(guests, LINK_MBIT, images, [range(guests)])
        with cloud.running(), contextlib.ExitStack() as stack:
            booting = []
            for number, host in enumerate(cloud.network.hosts):
                backing = cloud.agents[number].image_path(images.ids[0])
                disk = boots.overlay(host, backing)
                booting.append(stack.enter_context(TracedGuest(host, disk, cache="writeback")))
            milestones = guest.boot_all(booting)
            reads = [touched(one.trace.read_text().splitlines()) for one in booting]
            source_bytes = cloud.source_bytes()
    waits_s = delays(reads)
    return {
        "guests": guests,
        "login_s": [round(one.login_s or 0.0, 2) for one in milestones],
        "chunks_read": [len(one) for one in reads],
        "distribution": distribution(waits_s),
        "median_s": round(statistics.median(waits_s), 3),
        "over_long": sum(wait_s > LONG_S for wait_s in waits_s),
        "over_news": sum(wait_s > announcements.DELAY_S for wait_s in waits_s),
        "shared_chunks": len(waits_s),
        "source_mib": round(source_bytes / geometry.MIB, 1),
    }


def cases(scale: experiment.Scale) -> Sequence[experiment.Case]:
    """Return the cases."""
    counts = (GUESTS,) if scale is experiment.Scale.WHOLE else ()
    return [experiment.Case(name(count), functools.partial(run, count), 150.0) for count in counts]


def name(guests: int) -> str:
    """Return the name of a case."""
    return f"{guests} guests"


def rows(outcomes: experiment.Outcomes) -> Sequence[experiment.Row]:
    """Return the table's row, and its consequences."""
    found = []
    for case, got in outcomes.items():
        shared = got["shared_chunks"]
        table = ", ".join(
            f"{words}: {count}" for words, count in zip(NAMES, got["distribution"], strict=True)
        )
        found += [
            experiment.Row(
                "Table 1",
                f"share of chunks whose average delay is over 4 s, {case} ({table})",
                "449 of 465 chunks, 120 guests",
                got["over_long"] / shared,
                baseline=sum(PAPER[5:]) / sum(PAPER),
                baseline_name="the paper's",
            ),
            experiment.Row(
                "3.1.3",
                "share of chunks whose delay is longer than agents gather advertisements "
                f"({announcements.DELAY_S:g} s), {case}",
                "the delay is enough to send the chunk",
                got["over_news"] / shared,
            ),
        ]
    return found


def draw(picture: figure.Figure, outcomes: experiment.Outcomes) -> None:
    """Draw the distributions as shares."""
    panel = picture.subplots()
    series = {"the paper, 120 guests": PAPER}
    series |= {case: got["distribution"] for case, got in outcomes.items()}
    width = 0.8 / len(series)
    for at, (label, counts) in enumerate(series.items()):
        places = [place + at * width for place in range(len(NAMES))]
        panel.bar(places, [count / sum(counts) for count in counts], width, label=label)
    panel.set(xticks=range(len(NAMES)), title="Chunks by average delay after the first guest")
    panel.set_xticklabels(NAMES)
    panel.legend()


EXPERIMENT = experiment.Experiment(
    key="S0-table-1",
    title="Table 1: delay of the other guests after the first read of a chunk",
    paper_has=(
        "120 guests boot Debian at once from an image of 2 GB; chunks of 256 KiB that several "
        "guests read, by their average delay after the first read."
    ),
    here=(
        "Four guests boot the lab's Debian at once on two cores, in emulation, since there is no "
        "hardware virtualization: a boot takes more than a minute, and delays grow accordingly. "
        "Each is on a host of its own with links of 100 Mbit/s, on mirrors that exchange chunks. "
        "The times of reads are from QEMU's traces."
    ),
    cases=cases,
    rows=rows,
    draw=draw,
)
