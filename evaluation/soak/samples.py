# SPDX-License-Identifier: Apache-2.0
"""Samples the resources of acstor's processes: memory, descriptors, threads.

A restarted process starts a new series, so that a restart hides no growth.
"""

import collections
import contextlib
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from evaluation.soak import trend
from tests.lab import background
from tests.lab import runs

MIB_KIB = 1024
_FIELDS = re.compile(r"^(RssAnon|RssShmem|Threads):\s+(\d+)", re.MULTILINE)

Pids = Callable[[], Mapping[str, int]]
"""Returns the processes to sample now, by name."""


def usage_of(pid: int) -> dict[str, float]:
    """Return a process's ``memory_mib`` (anonymous), ``descriptors`` and ``threads``.

    :raises OSError: it has ended
    """
    fields = dict(_FIELDS.findall(pathlib.Path(f"/proc/{pid}/status").read_text()))
    if "RssAnon" not in fields:
        raise ProcessLookupError(f"process {pid} has ended")
    return {
        "memory_mib": (int(fields["RssAnon"]) + int(fields["RssShmem"])) / MIB_KIB,
        "descriptors": float(len(os.listdir(f"/proc/{pid}/fd"))),
        "threads": float(fields["Threads"]),
    }


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in children.split()]
    return []


class Sampler(background.Background):
    """Context manager: a thread that samples until the block ends.

    :param began_s: start of the soak, by the monotonic clock
    """

    def __init__(self, pids: Pids, began_s: float, interval_s: float) -> None:
        self._pids, self._began_s, self._interval_s = pids, began_s, interval_s
        self._series: dict[tuple[str, str], list[trend.Point]] = collections.defaultdict(list)
        self._starts: dict[str, list[int]] = collections.defaultdict(list)
        self._lock = threading.Lock()
        super().__init__([self._sample_until_over])

    def _sample_until_over(self) -> None:
        while not self.is_over.wait(self._interval_s):
            for name, pid in self._pids().items():
                with contextlib.suppress(OSError):
                    self.add(self._series_name(name, pid), usage_of(pid))

    def _series_name(self, name: str, pid: int) -> str:
        """Return a process's name and, from its second start on, its start's number."""
        start, starts = runs.start_ticks(pid), self._starts[name]
        if start is not None and start not in starts:
            starts.append(start)
        number = len(starts)
        return name if number <= 1 else f"{name} #{number}"

    def add(self, name: str, values: Mapping[str, float]) -> None:
        """Add values by resource, sampled now."""
        at_s = time.monotonic() - self._began_s
        with self._lock:
            for resource, value in values.items():
                self._series[name, resource].append(trend.Point(at_s, value))

    def series(self) -> dict[tuple[str, str], Sequence[trend.Point]]:
        """Return all samples so far, by process and resource."""
        with self._lock:
            return {key: list(points) for key, points in self._series.items()}
