# SPDX-License-Identifier: Apache-2.0
"""Bounds how long a caller waits for a library that has no deadline of its own."""

import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

from acstor_common import errors
from acstor_common.util import supervision

T = TypeVar("T")


class CallTimeout(errors.AcstorError):
    """A call has not ended in time."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(what, timeout_s)
        self.what, self.timeout_s = what, timeout_s

    def __str__(self) -> str:
        return f"{self.what} does not answer within {self.timeout_s:g} s"


class CallDeadline:
    """Calls of one thing, one after the other, each in a thread.

    A thread cannot be stopped: a call that is late goes on, and the next one is made when it has
    ended. So a thing that hangs for ever costs one thread.

    :param what: is called, for errors and as the name of the thread
    """

    def __init__(self, what: str, timeout_s: float) -> None:
        self._what, self._timeout_s = what, timeout_s
        self._free = threading.Lock()
        self._is_late = False

    def run_call(self, work: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """Return what ``work`` returns; it may raise, too.

        :param undo: is called before the next call, if ``work`` succeeded too late
        :raises CallTimeout: it takes longer, or the former call has not ended yet
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
