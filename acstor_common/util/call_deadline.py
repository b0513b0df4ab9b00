# SPDX-License-Identifier: Apache-2.0
"""Deadlines for calls of libraries that have none."""

import dataclasses
import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

from acstor_common import errors
from acstor_common.util import supervision

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class CallTimeout(errors.AcstorError):
    """A call did not return in time."""

    what: str
    timeout_s: float
    text = "{what} does not answer within {timeout_s:g} s"


class CallDeadline:
    """Runs one call at a time in a thread with a deadline; others fail while a late one runs."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self._what, self._timeout_s = what, timeout_s
        self._free = threading.Lock()
        self._is_late = False

    @property
    def is_busy(self) -> bool:
        """Whether a call runs, late or not."""
        return self._free.locked()

    def run_call(self, work: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """Return the result of ``work``, or raise its exception.

        :param undo: called before the next call if ``work`` succeeded too late
        :raises CallTimeout: the deadline passed, or the previous call still runs
        :raises RuntimeError: no thread can be started
        """
        if not self._free.acquire(timeout=0 if self._is_late else self._timeout_s):
            raise CallTimeout(self._what, self._timeout_s)
        answer: futures.Future[T] = futures.Future()

        def run() -> None:
            try:
                _do(work, undo, answer)
            finally:
                self._is_late = False
                self._free.release()

        try:
            supervision.start_once(self._what, run)
        except RuntimeError:
            self._free.release()
            raise
        futures.wait((answer,), self._timeout_s)
        if answer.cancel():
            self._is_late = True
            raise CallTimeout(self._what, self._timeout_s)
        return answer.result()


def _do(work: Callable[[], T], undo: Callable[[], None], answer: futures.Future[T]) -> None:
    try:
        found = work()
    except BaseException as e:
        if answer.set_running_or_notify_cancel():
            answer.set_exception(e)
        return
    if answer.set_running_or_notify_cancel():
        answer.set_result(found)
    else:
        undo()
