# SPDX-License-Identifier: Apache-2.0
"""Guests of Ling 2015, scaled down, on a real agent with an emulated disk.

Each guest has its own disk over the same image, as in Nova, and is a process whose threads use it
through the agent's mount with O_DIRECT: SR and RR read the image in the agent's cache, SW and RW
write behind its end.  The policies take turns on one warm agent; the last turn repeats the first
policy, to check that the machine was steady.
"""

import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_common.model import geometry
from evaluation.bench import harness
from evaluation.bench import s1_lab
from tests.fakes import disk_applications as applications
from tests.lab import agents

POLICIES = ("none", "deadline", "cfq", "pregather")
GUESTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "four guests": {
        "VM1": ("SR", "SR"),
        "VM2": ("SW", "SW"),
        "VM3": ("SR", "RR", "RW"),
        "VM4": ("RR", "RW"),
    },
    "SRSR": {"VM1": ("SR", "SR")},
    "SWSW": {"VM1": ("SW", "SW")},
    "SRRR": {"VM1": ("SR", "RR")},
    "SWRW": {"VM1": ("SW", "RW")},
}
"""Scenarios: all guests of table 1, and single guests of table 3."""
FILE_BYTES = 16 * geometry.MIB
BLOCKS = 160
THREADS = 4
AREA_BYTES = s1_lab.IMAGE_BYTES // s1_lab.PARTS // applications.WINDOW * applications.WINDOW
DISK_BYTES = 12 << 30
WRITTEN_APART_BYTES = 2 << 30
"""Distance of applications' written areas, as in the paper's guests."""


def run(name: str, share: float, say: harness.Say) -> dict[str, Any]:
    """Run a scenario with all policies in turn.

    :param share: of each application's work
    """
    with (
        tempfile.TemporaryDirectory(prefix="acstor-s1-") as folder,
        s1_lab.started(pathlib.Path(folder)) as lab,
    ):
        lab.warm()
        wanted = wanted_of(GUESTS[name], share)
        turns = [measure(lab, policy, wanted) for policy in (*POLICIES, POLICIES[0])]
        for policy, found in zip((*POLICIES, "again"), turns, strict=True):
            say(f"{name}: {policy}: {found['all_mb_s']:.1f} MB/s, seeks {found['seeks']}")
    return {"policies": dict(zip(POLICIES, turns, strict=False)), "again": turns[-1]}


Wanted = Mapping[str, Sequence[applications.Application]]


def wanted_of(guests: Mapping[str, Sequence[str]], share: float) -> Wanted:
    """Assign a separate area to each application of the guests."""
    areas = {False: 0, True: 0}
    found: dict[str, list[applications.Application]] = {}
    for guest, kinds in guests.items():
        for kind in kinds:
            is_write = kind.endswith("W")
            number, areas[is_write] = areas[is_write], areas[is_write] + 1
            start = number * AREA_BYTES
            if is_write:
                start = s1_lab.IMAGE_BYTES + number * WRITTEN_APART_BYTES
            found.setdefault(guest, []).append(_application(kind, start, share))
    return found


def _application(kind: str, start: int, share: float) -> applications.Application:
    if kind.startswith("R"):
        blocks = max(THREADS, int(BLOCKS * share))
        return applications.Application(kind, start, AREA_BYTES, blocks, THREADS)
    windows = max(1, int(FILE_BYTES * share) // applications.WINDOW)
    return applications.Application(kind, start, windows * applications.WINDOW)


def measure(lab: s1_lab.Lab, policy: str, wanted: Wanted) -> dict[str, Any]:
    """Run the guests with a policy on new disks."""
    agents.request(lab.agent.control_socket, "set-disk-policy", policy=policy)
    with disks(lab, list(wanted)) as paths:
        counts, waits = lab.counts(), _waits(lab)
        took_s = _run_all(paths, wanted)
        counts = {name: n - counts[name] for name, n in lab.counts().items()}
        waits = {name: n - waits[name] for name, n in _waits(lab).items()}
    mb_s = {
        guest: sum(one.bytes for one in wanted[guest]) / max(times) / 1e6
        for guest, times in took_s.items()
    }
    return {
        "took_s": {
            guest: {f"{at} {one.kind}": round(s, 3) for at, (one, s) in enumerate(both)}
            for guest, times in took_s.items()
            if (both := list(zip(wanted[guest], times, strict=True)))
        },
        "mb_s": {guest: round(rate, 3) for guest, rate in mb_s.items()},
        "all_mb_s": round(sum(mb_s.values()), 3),
        "seeks": {name: counts[name] for name in ("zero", "near", "far")},
        "busy_s": round(counts["busy_us"] / 1e6, 3),
        "waits": waits,
    }


def _waits(lab: s1_lab.Lab) -> dict[str, int]:
    return dict(lab.agent.status()["disk_io"]["waits"])


@contextlib.contextmanager
def disks(lab: s1_lab.Lab, guests: Sequence[str]) -> Iterator[dict[str, pathlib.Path]]:
    """Make a disk for each guest, dropped after the block."""
    made = {guest: str(uuid.uuid4()) for guest in guests}
    socket = lab.agent.control_socket
    try:
        found = {}
        for guest, disk_id in made.items():
            fields = {"disk_id": disk_id, "image_id": lab.image_id, "size_bytes": DISK_BYTES}
            found[guest] = pathlib.Path(agents.request(socket, "make-disk", **fields)["path"])
        yield found
    finally:
        for disk_id in made.values():
            agents.request(socket, "drop-disk", disk_id=disk_id)


def _run_all(paths: Mapping[str, pathlib.Path], wanted: Wanted) -> dict[str, list[float]]:
    """Run all guests in parallel; return the times of their applications."""
    with contextlib.ExitStack() as started:
        running = {}
        for guest, path in paths.items():
            argv = [sys.executable, "-m", "tests.fakes.disk_applications", str(path), guest]
            running[guest] = started.enter_context(_Guest(argv, wanted[guest]))
        for one in running.values():
            one.begin()
        return {guest: one.took_s() for guest, one in running.items()}


class _Guest:
    """Context manager: a guest's process."""

    def __init__(self, argv: list[str], wanted: Sequence[applications.Application]) -> None:
        self._argv = argv
        self._wanted = json.dumps([dataclasses.asdict(one) for one in wanted])

    def __enter__(self) -> "_Guest":
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._argv, cwd=harness.ROOT, stdin=pipe, stdout=pipe, text=True
        )
        self._say(self._wanted)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def begin(self) -> None:
        """Start the applications."""
        self._say("begin")

    def took_s(self) -> list[float]:
        """Return the seconds of each application.

        :raises harness.CannotRun: it could not read or write
        """
        said, _ = self._process.communicate(timeout=s1_lab.DEADLINE_S)
        if self._process.returncode:
            raise harness.CannotRun("a guest could not use its disk")
        return list(json.loads(said))
