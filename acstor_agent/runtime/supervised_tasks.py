# SPDX-License-Identifier: Apache-2.0
"""Restarts failed parts that guests do not need; ``status`` and metrics show their failures."""

import logging
import pathlib
import time
from collections.abc import Awaitable
from collections.abc import Callable

import trio

from acstor_agent.core import health_issues
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.util import backoff
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)


class SupervisedTasks:
    """Supervised parts; their failures do not end the nursery."""

    def __init__(self, nursery: trio.Nursery, clock: clocks.Clock = time) -> None:
        self.issues = health_issues.HealthIssues()
        self._nursery = nursery
        self._clock = clock

    async def run_supervised(self, what: str, run: Callable[..., Awaitable[object]]) -> None:
        """Run a part forever; return when it called ``task_status.started()``, or failed once."""
        await self._nursery.start(self._run_forever, what, run)

    async def _run_forever(
        self,
        what: str,
        run: Callable[..., Awaitable[object]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        tried = _StartSignal(task_status)
        again = backoff.Restarts(most=None)
        while True:
            began_s = trio.current_time()
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(run)
                    tried.send()
                    self.clear_failure(what)
            except Exception as e:
                supervision.count_failure(what)
                self._failed(what, _first_cause(e))
            tried.send()
            await trio.sleep(again.next_pause(trio.current_time() - began_s) or 0.0)

    def note_failure(self, what: str, why: str, fault: BaseException | None = None) -> None:
        """Record that a part fails, and log it once, with the traceback of a bug (``fault``)."""
        if self.issues.record_failure(what, why, self._clock.time()):
            LOG.error("%s: %s; guests read without it", what, why, exc_info=fault)

    def _failed(self, what: str, cause: BaseException) -> None:
        is_known = isinstance(cause, errors.AcstorError | OSError)
        why = str(cause) or type(cause).__name__
        self.note_failure(what, why, None if is_known else cause)

    def set_state(self, what: str, why: str) -> None:
        """Record that a part fails; with an empty reason, that it works."""
        if why:
            self.note_failure(what, why)
        else:
            self.clear_failure(what)

    def set_logged_state(self, what: str, why: str) -> None:
        """Record the same for a part that logs it itself."""
        if why:
            self.issues.record_failure(what, why, self._clock.time())
        else:
            self.issues.clear_failure(what)

    def make_folder(self, path: pathlib.Path) -> pathlib.Path:
        """Create a folder; without it the agent remembers less after a restart."""
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            self.note_failure(str(path), f"cannot be created: {e.strerror}")
        return path

    def clear_failure(self, what: str) -> None:
        """Record that a part works."""
        if self.issues.clear_failure(what):
            LOG.info("%s: works again", what)


def start_at_once(run: Callable[[], Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """Return a part that counts as started as soon as it runs."""

    async def run_on(task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await run()

    return run_on


class _StartSignal:
    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status: trio.TaskStatus[None] | None = task_status

    def send(self) -> None:
        if self._task_status is not None:
            self._task_status.started()
            self._task_status = None


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
