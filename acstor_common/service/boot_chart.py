# SPDX-License-Identifier: Apache-2.0
"""Text chart of a boot's timeline: where the time until the last read went."""

import datetime
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from acstor_common.model import boot_timeline
from acstor_common.util import printable_text

WIDTH = 56
LABEL = 24
MIB = 1024 * 1024
_SHADES = " .-=#"
_LETTERS = {"boot": "b", "frame": "f", "cache": "c", "peer": "p", "home": "h", "source": "s"}
_WAITS = {
    "zero": "zeros",
    "boot": "boot image, in memory",
    "cache": "cache of this host",
    "frame": "boot image, on its way",
    "peer": "another host",
    "home": "another host, the chunk's home",
    "source": "source",
    boot_timeline.FAILED: "reads that failed",
    boot_timeline.PENDING: "reads in progress",
}


class Event(NamedTuple):
    """A step of Nova for a server; wall-clock times."""

    what: str
    from_at_s: float
    to_at_s: float


class TimeShare(NamedTuple):
    """A share of the boot's time."""

    what: str
    took_s: float


def draw(timeline: boot_timeline.Timeline, events: Sequence[Event] = ()) -> str:
    """Return a boot's chart in lines of text; ``events`` are Nova's, from the request on."""
    return "\n".join(
        [
            *_head(timeline),
            "",
            *_lanes(timeline, events),
            "",
            *_accounts(timeline, events),
            "",
            *_bytes(timeline),
            "",
            *_longest(timeline, _offset_s(timeline, events)),
        ]
    )


def shares(timeline: boot_timeline.Timeline, events: Sequence[Event] = ()) -> list[TimeShare]:
    """Return the shares of the time from the beginning to the last read, in order."""
    ready_s = _covered_s(span for span in timeline.spans if span.what == "attach")
    ready_s = min(ready_s, timeline.opened_s)
    found = [
        TimeShare("agent: until the image was ready for Nova", ready_s),
        TimeShare("Nova and QEMU: until the guest opened its disk", timeline.opened_s - ready_s),
    ]
    if events:
        found.insert(0, TimeShare("Nova: until it asked the agent", _offset_s(timeline, events)))
    running_s = max(0.0, timeline.last_s - timeline.opened_s)
    found += [
        TimeShare(f"guest waits: {_WAITS.get(what, what)}", waited_s)
        for what, waited_s in sorted(timeline.waited_s.items(), key=lambda item: -item[1])
    ]
    waited_s = sum(timeline.waited_s.values())
    return [*found, TimeShare("guest: by itself", max(0.0, running_s - waited_s))]


def _offset_s(timeline: boot_timeline.Timeline, events: Iterable[Event]) -> float:
    first_s = min((event.from_at_s for event in events), default=timeline.began_at_s)
    return max(0.0, timeline.began_at_s - first_s)


def _covered_s(spans: Iterable[boot_timeline.Span]) -> float:
    covered_s = until_s = 0.0
    for span in sorted(spans, key=lambda span: span.from_s):
        covered_s += max(0.0, span.to_s - max(span.from_s, until_s))
        until_s = max(until_s, span.to_s)
    return covered_s


def _head(timeline: boot_timeline.Timeline) -> Iterator[str]:
    began = datetime.datetime.fromtimestamp(timeline.began_at_s, datetime.UTC)
    whose = f"server {timeline.instance_id}" if timeline.instance_id else "a guest outside Nova"
    state = "" if timeline.is_over else " (in progress)"
    yield f"Boot of {whose}{state}"
    yield f"Image   {timeline.image_id}, boot image: {timeline.boot_image or 'unknown'}"
    yield f"On its host from {began:%Y-%m-%d %H:%M:%S} UTC"


def _lanes(timeline: boot_timeline.Timeline, events: Sequence[Event]) -> Iterator[str]:
    offset_s = _offset_s(timeline, events)
    spans = [(span.what, span.from_s + offset_s, span.to_s + offset_s) for span in timeline.spans]
    first_s = timeline.began_at_s - offset_s
    theirs = [(event.what, event.from_at_s - first_s, event.to_at_s - first_s) for event in events]
    ends = [to_s for _, _, to_s in (*spans, *theirs)]
    end_s = max(0.001, timeline.last_s + offset_s, timeline.opened_s + offset_s, *ends)
    scale = f"0 s{f'{end_s:.1f} s':>{WIDTH - 3}}"
    yield f"{'':{LABEL}} {scale}"
    for what, from_s, to_s in theirs:
        yield _lane(f"Nova: {what}", _bar(from_s, to_s, end_s))
    for what, from_s, to_s in spans:
        yield _lane(f"agent: {what}", _bar(from_s, to_s, end_s))
    opened_s = timeline.opened_s + offset_s
    yield _lane(
        "guest: disk is open", _bar(opened_s, max(opened_s, timeline.last_s + offset_s), end_s)
    )
    yield _lane("guest: waits", _shades(timeline, opened_s, end_s))
    yield _lane("guest: bytes are from", _letters(timeline, opened_s, end_s))
    legend = ", ".join(f"{letter} {via}" for via, letter in _LETTERS.items())
    yield f"{'':{LABEL}} ({legend}; waits {_SHADES[1:]}: up to a quarter … all of the time)"


def _lane(label: str, cells: str) -> str:
    return f"{label[:LABEL]:{LABEL}} {cells}".rstrip()


def _bar(from_s: float, to_s: float, end_s: float) -> str:
    start = min(WIDTH - 1, int(max(0.0, from_s) / end_s * WIDTH))
    stop = min(WIDTH, max(start + 1, round(to_s / end_s * WIDTH)))
    return " " * start + "=" * (stop - start)


def _columns(
    timeline: boot_timeline.Timeline, opened_s: float, end_s: float
) -> list[list[tuple[float, boot_timeline.Slice]]]:
    """Return each column's overlapping slices, with the share that overlaps."""
    columns: list[list[tuple[float, boot_timeline.Slice]]] = [[] for _ in range(WIDTH)]
    each_s = end_s / WIDTH
    for place, part in enumerate(timeline.slices):
        from_s = opened_s + place * timeline.slice_s
        to_s = from_s + timeline.slice_s
        for column in range(int(from_s / each_s), min(WIDTH, int(to_s / each_s) + 1)):
            both_s = min(to_s, (column + 1) * each_s) - max(from_s, column * each_s)
            if both_s > 0:
                columns[column].append((both_s / timeline.slice_s, part))
    return columns


def _shades(timeline: boot_timeline.Timeline, opened_s: float, end_s: float) -> str:
    cells = ""
    for column in _columns(timeline, opened_s, end_s):
        waited_s = sum(share * part.waited_s for share, part in column)
        level = waited_s / (end_s / WIDTH)
        cells += " " if level < 0.01 else _SHADES[min(4, 1 + int(4 * level))]
    return cells


def _letters(timeline: boot_timeline.Timeline, opened_s: float, end_s: float) -> str:
    cells = ""
    for column in _columns(timeline, opened_s, end_s):
        found = dict.fromkeys(_LETTERS, 0.0)
        for share, part in column:
            for via, count in part.bytes.items():
                if via in found:
                    found[via] += share * count
        most = max(found, key=found.__getitem__)
        cells += _LETTERS[most] if found[most] else " "
    return cells


def _accounts(timeline: boot_timeline.Timeline, events: Sequence[Event]) -> Iterator[str]:
    found = shares(timeline, events)
    whole_s = sum(share.took_s for share in found)
    yield f"{'Where the time went':52} {'s':>8} {'%':>5}"
    for what, took_s in found:
        yield f"{what:52} {took_s:8.2f} {_percent(took_s, whole_s):>5}"
    yield f"{'until the last read':52} {whole_s:8.2f}"


def _bytes(timeline: boot_timeline.Timeline) -> Iterator[str]:
    whole = sum(timeline.bytes.values()) - timeline.bytes.get("zero", 0)
    yield f"{f'What {timeline.reads} reads got':52} {'MiB':>8} {'%':>5}"
    for via, count in sorted(timeline.bytes.items(), key=lambda item: -item[1]):
        percent = "" if via == "zero" else _percent(count, whole)
        yield f"{_WAITS.get(via, via):52} {count / MIB:8.1f} {percent:>5}"
    share = boot_timeline.boot_image_share(timeline.bytes)
    if share is not None:
        yield f"From the boot image: {100 * share:.1f} % of what is not zeros."


def _longest(timeline: boot_timeline.Timeline, offset_s: float) -> Iterator[str]:
    yield f"{'Longest reads: at s':>20} {'took s':>8} {'byte':>14} {'KiB':>6}  from"
    for read in timeline.longest:
        why = printable_text.text(read.why)
        where = f"{_from(read.bytes)}{f' ({why})' if why else ''}"
        yield (
            f"{read.at_s + offset_s:20.2f} {read.took_s:8.3f} {read.offset:14} "
            f"{read.length / 1024:6.0f}  {where}"
        )


def _from(counted: Mapping[str, int]) -> str:
    return ", ".join(counted) or "nowhere"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
