# SPDX-License-Identifier: Apache-2.0
"""Records boot traces: the reads of one image by each guest, told apart by opener numbers."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from acstor_common.image import boot_trace
from acstor_common.model import geometry

OPENERS = 7  # guests of one image recorded at a time; others get opener 0 and are not recorded


class FinishedTrace(NamedTuple):
    """The trace of a boot, and the Nova instance that booted, "" if it is unknown."""

    trace: tuple[int, ...]
    instance_id: str
    opened_s: float


@dataclasses.dataclass(slots=True)
class _Window:
    recorder: boot_trace.Recorder
    opened_s: float
    thread: int  # that opened the image
    instance_id: str = ""


class BootRecorder:
    """The boots of one image that are being recorded.

    >>> window = boot_trace.Window(longest_s=60.0, idle_s=10.0, limit_chunks=100)
    >>> recorder = BootRecorder(geometry.Geometry(1 << 20, 65536), window, least_chunks=2)
    >>> opener = recorder.open(0.0, thread=7)
    >>> recorder.record_guest_read(opener, 65536, 100, 1.0)
    >>> recorder.record_guest_read(opener, 0, 100, 2.0)
    >>> recorder.take_finished_traces(11.9), recorder.take_finished_traces(12.0), recorder.is_idle
    ([], [FinishedTrace(trace=(1, 0), instance_id='', opened_s=0.0)], True)
    """

    def __init__(
        self, cut: geometry.Geometry, window: boot_trace.Window, least_chunks: int
    ) -> None:
        self._cut, self._window, self._least_chunks = cut, window, least_chunks
        self._open: dict[int, _Window] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether no window is open."""
        return not self._open

    def open(self, now_s: float, thread: int) -> int:
        """Open a window for a guest; return its opener number, 0 if too many are open."""
        opener = next((n for n in range(1, OPENERS + 1) if n not in self._open), 0)
        if opener:
            recorder = boot_trace.Recorder(self._cut, self._window)
            self._open[opener] = _Window(recorder, now_s, thread)
        return opener

    def find_instances(self, instance_of: Callable[[int], str]) -> None:
        """Look up the instances of threads, which are known only while their boots last."""
        for window in self._open.values():
            window.instance_id = window.instance_id or instance_of(window.thread)

    def record_guest_read(self, opener: int, offset: int, length: int, now_s: float) -> None:
        """Record a read of a guest."""
        window = self._open.get(opener)
        if window is not None:
            window.recorder.record_read(offset, length, now_s)

    def close(self, opener: int) -> None:
        """Discard the window of a closed opener that read too little for a boot."""
        window = self._open.get(opener)
        if window is not None and window.recorder.chunk_count < self._least_chunks:
            del self._open[opener]

    def take_finished_traces(self, now_s: float) -> list[FinishedTrace]:
        """Close finished windows; return the traces that were boots."""
        traces = []
        for opener, window in list(self._open.items()):
            recorder, waits_s = window.recorder, now_s - window.opened_s
            never_read = not recorder.chunk_count and waits_s >= self._window.longest_s
            if recorder.is_over(now_s) or never_read:
                del self._open[opener]
                # Other openers inspected or copied the image.
                if recorder.chunk_count >= self._least_chunks and not recorder.is_full:
                    traces.append(
                        FinishedTrace(recorder.trace, window.instance_id, window.opened_s)
                    )
        return traces
