# SPDX-License-Identifier: Apache-2.0
"""Disk I/O traces as workloads: blkparse's text, fio's latency logs and iologs.

A trace has the time of each request, and is replayed open-loop: at these times, independent of
earlier responses.
"""

import re
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from evaluation.bench import disk_simulation as simulation

SECTOR = 512
_BLKPARSE = re.compile(
    r"\s*\d+,\d+\s+\d+\s+\d+\s+(?P<time>\d+\.\d+)\s+(?P<pid>\d+)\s+(?P<action>\w+)\s+"
    r"(?P<kind>\w+)\s+(?P<sector>\d+)\s+\+\s+(?P<count>\d+)"
)
_QUEUED = "Q"
_IOLOG = "fio version 3 iolog"
_FIO_DIRECTIONS = {"0": False, "1": True}


class Traced(NamedTuple):
    """A request of a trace."""

    when_s: float
    guest: str
    access: simulation.Access


def from_blkparse(lines: Iterable[str]) -> Iterator[Traced]:
    """Yield queued (action Q) reads and writes in ``blkparse``'s output, by process.

    All other lines (other actions, discards, flushes, the summary) are ignored.
    """
    for line in lines:
        found = _BLKPARSE.match(line)
        if found is None or found["action"] != _QUEUED or "D" in found["kind"]:
            continue
        is_write = "W" in found["kind"]
        if found["count"] == "0" or not (is_write or "R" in found["kind"]):
            continue
        access = simulation.Access(
            int(found["sector"]) * SECTOR, int(found["count"]) * SECTOR, is_write
        )
        yield Traced(float(found["time"]), f"pid-{found['pid']}", access)


def from_fio(lines: Iterable[str], guest: str) -> Iterator[Traced]:
    """Yield the requests of fio 3's latency log with ``log_offset=1``, unaveraged.

    A line has the millisecond of the response and the latency in ns; the request's time is their
    difference.

    :raises ValueError: a line has no offset
    """
    for number, line in enumerate(lines, 1):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""]:
            continue
        if len(fields) < 5:
            raise ValueError(f"line {number}: no offset: fio needs log_offset=1")
        ended_ms, took_ns, direction, length, offset = fields[:5]
        if direction in _FIO_DIRECTIONS and int(length):
            access = simulation.Access(int(offset), int(length), _FIO_DIRECTIONS[direction])
            came_s = int(ended_ms) / 1e3 - int(took_ns) / 1e9
            yield Traced(max(0.0, came_s), guest, access)


def from_iolog(lines: Iterable[str]) -> Iterator[Traced]:
    """Yield the reads and writes of fio's ``write_iolog`` (version 3), by file.

    :raises ValueError: another version; version 2 has no times
    """
    rest = iter(lines)
    version = next(rest, "").strip()
    if version != _IOLOG:
        raise ValueError(f"{version!r}: it must begin with {_IOLOG!r}")
    for fields in map(str.split, rest):
        if len(fields) == 5 and fields[2] in ("read", "write") and int(fields[4]):
            when_us, name, action, offset, length = fields
            access = simulation.Access(int(offset), int(length), action == "write")
            yield Traced(int(when_us) / 1e6, name, access)


def guests(trace: Iterable[Traced]) -> list[simulation.Guest]:
    """Return guests that replay a trace."""
    found: dict[str, simulation.Guest] = {}
    for when_s, name, access in trace:
        guest = found.setdefault(name, simulation.Guest(name, []))
        guest.applications.append(simulation.Application("trace", _once(when_s, access)))
    return list(found.values())


def _once(when_s: float, access: simulation.Access) -> simulation.Steps:
    yield simulation.Think(when_s)
    yield [access]
