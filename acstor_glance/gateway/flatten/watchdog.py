# SPDX-License-Identifier: Apache-2.0
"""Watchdog of a job: stops it when it stalls, or at its deadline."""

import http
import math
import time

from acstor_common.model import clocks
from acstor_glance.gateway import http_errors


class Watchdog:
    """Watchdog of one job, which stalls after ``stall_s`` without progress."""

    def __init__(self, stall_s: float, clock: clocks.Clock = time) -> None:
        self.stall_s, self._clock = stall_s, clock
        self._moved_s = clock.monotonic()
        self._why: http_errors.HttpError | None = None
        self._ends_s, self._deadline_s = math.inf, math.inf

    def set_deadline(self, deadline_s: float) -> None:
        """Stop the job after ``deadline_s``, even if it makes progress."""
        self._ends_s, self._deadline_s = self._clock.monotonic() + deadline_s, deadline_s

    @property
    def is_stalled(self) -> bool:
        """Whether there was no progress for too long."""
        return self._clock.monotonic() - self._moved_s > self.stall_s

    @property
    def left_s(self) -> float:
        """Time until the job counts as stalled."""
        return max(0.0, self._moved_s + self.stall_s - self._clock.monotonic())

    def note_progress(self) -> None:
        """Record progress; raises HttpError if the job was stopped."""
        self.raise_if_stopped()
        self._moved_s = self._clock.monotonic()

    def stop_work(self, why: http_errors.HttpError) -> None:
        """Stop the job at its next check; the first reason counts."""
        self._why = self._why or why

    def raise_if_stopped(self) -> None:
        """Raise HttpError if the job was stopped, or is past its deadline."""
        if self._clock.monotonic() > self._ends_s:
            words = f"it did not finish in {self._deadline_s:.0f} s"
            self.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.GATEWAY_TIMEOUT, words, "base")
            )
        if self._why is not None:
            raise self._why
