# SPDX-License-Identifier: Apache-2.0
"""Parts of the agent that guests do not need: they are begun, and begun again when they fail.

Whatever becomes of such a part, the worker goes on and guests are served.  What does not
work is told once in the log, is in ``status`` and in the metrics until it works.
"""

import logging
import pathlib
import time
from collections.abc import Awaitable
from collections.abc import Callable

import trio

from acstor_agent.core import health_issues
from acstor_common import errors
from acstor_common.util import restart_backoff
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)


class SupervisedTasks:
    """The parts, in a nursery that none of them ends."""

    def __init__(self, nursery: trio.Nursery, clock: Callable[[], float] = time.time) -> None:
        self.troubles = health_issues.HealthIssues()
        self._nursery = nursery
        self._clock = clock

    async def run_supervised(self, what: str, run: Callable[..., Awaitable[object]]) -> None:
        """Have a part run for ever; return when it has begun, or failed for the first time.

        :param what: its name, as it is shown to the operator
        :param run: tells by ``task_status.started()`` that it has begun
        """
        await self._nursery.start(self._keep, what, run)

    async def _keep(
        self,
        what: str,
        run: Callable[..., Awaitable[object]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        tried = _Once(task_status)
        again = restart_backoff.Restarts(most=None)
        while True:
            began_s = trio.current_time()
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(run)
                    tried.tell()
                    self.clear_failure(what)
            except Exception as e:
                supervision.count_failure(what)
                self._failed(what, _first_cause(e))
            tried.tell()
            await trio.sleep(again.next_pause(trio.current_time() - began_s) or 0.0)

    def note_failure(self, what: str, why: str, fault: BaseException | None = None) -> None:
        """Note that a part does not work; the operator is told once.

        :param fault: a defect of the part, whose traceback is logged
        """
        if self.troubles.record_failure(what, why, self._clock()):
            LOG.error("%s: %s; guests read without it", what, why, exc_info=fault)

    def _failed(self, what: str, cause: BaseException) -> None:
        is_known = isinstance(cause, errors.AcstorError | OSError)
        why = str(cause) or type(cause).__name__
        self.note_failure(what, why, None if is_known else cause)

    def set_state(self, what: str, why: str) -> None:
        """Note why a part does not work, or with no reason that it does."""
        if why:
            self.note_failure(what, why)
        else:
            self.clear_failure(what)

    def set_logged_state(self, what: str, why: str) -> None:
        """Note what :meth:`tell` does, of a part that has logged it itself."""
        if why:
            self.troubles.record_failure(what, why, self._clock())
        else:
            self.troubles.clear_failure(what)

    def make_folder(self, path: pathlib.Path) -> pathlib.Path:
        """Make a folder where it is missing; without it the agent remembers less."""
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            self.note_failure(str(path), f"cannot be made: {e.strerror}")
        return path

    def clear_failure(self, what: str) -> None:
        """Note that a part works."""
        if self.troubles.clear_failure(what):
            LOG.info("%s: works again", what)


def start_at_once(run: Callable[[], Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """Return a part that has begun as soon as it runs."""

    async def run_on(task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await run()

    return run_on


class _Once:
    """Says once that a task has begun."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status: trio.TaskStatus[None] | None = task_status

    def tell(self) -> None:
        if self._task_status is not None:
            self._task_status.started()
            self._task_status = None


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
