# SPDX-License-Identifier: Apache-2.0
"""Recovers from faults of the cache's folder; the worker serves readable chunks meanwhile."""

import contextlib
import errno
import gc
import os
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Final

import trio
from oslo_log import log as logging

from acstor_agent.cache import slab_files
from acstor_agent.core.cache import folder_health
from acstor_agent.core.cache import public_cache
from acstor_common import errors

LOG = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

NewCore = Callable[[], public_cache.PublicCache]


class FolderRecovery:
    """Watches one folder; keep :meth:`run` running."""

    def __init__(
        self,
        files: slab_files.SlabFiles,
        make_core: NewCore,
        checks: folder_health.CheckIntervals = folder_health.CHECK_INTERVALS,
    ) -> None:
        self.core = make_core()
        self.write_lock = trio.Lock()
        self.takes_chunks = True  # whether new chunks can be written, as far as is known
        self._is_full = False
        self._files = files
        self._make_core = make_core
        self._health = folder_health.FolderHealth(checks)
        self._healthy_s = checks.healthy_s
        self._changed = trio.Event()

    @property
    def fault(self) -> folder_health.FolderFault | None:
        """The folder's fault, None if there is none."""
        return self._health.fault

    def open(self) -> None:
        """Open the folder; record a fault, or raise Unusable if another process uses it."""
        try:
            self.core.replace_contents(self._load())
            self._files.make_writable()
        except OSError as exc:
            self._record_failure(exc, now_s=0.0)  # checked again at once when served

    def record_fault(self, exc: OSError, is_full: bool = False) -> None:
        """Record a failed write; ``is_full``: only a new slab file failed, others are writable."""
        self._record(_words(exc), trio.current_time(), is_full)

    def _record_failure(self, exc: OSError, now_s: float) -> None:
        self._record(_words(exc), now_s, self._files.is_open and exc.errno in _FULL)

    def _record(
        self, what: str, now_s: float, is_full: bool = False, is_writable: bool = False
    ) -> None:
        took_chunks = self.takes_chunks
        self.takes_chunks = is_full and (took_chunks or is_writable)
        self._is_full = self._is_full or is_full
        is_news = self._health.record_fault(f"{self._files.folder}: {what}", now_s, time.time())
        if is_news or self.takes_chunks is not took_chunks:
            LOG.warning(
                "%s: %s",
                "The cache stops growing" if is_full else "The cache takes no new chunks",
                self._health.fault and self._health.fault.what,
            )
        self._changed.set()

    async def run(self) -> None:
        """Check the folder until cancelled."""
        while True:
            self._changed = trio.Event()
            next_s = self._health.next_check_s
            if self.fault is None:
                next_s = trio.current_time() + self._healthy_s
            with trio.move_on_at(next_s) as waited:
                await self._changed.wait()
            if waited.cancelled_caught:
                async with self.write_lock:
                    await self._check()

    async def _check(self) -> None:
        try:
            if not self._files.is_open:
                self.core.replace_contents(await trio.to_thread.run_sync(self._load))
            for number in await trio.to_thread.run_sync(self._files.find_deleted):
                self._forget(number)
            if self.fault is not None:
                await trio.to_thread.run_sync(self._files.make_writable)
            is_in_place, lacks_space = await trio.to_thread.run_sync(self._inspect)
        except OSError as exc:
            self._record_failure(exc, trio.current_time())
            return
        except errors.Unusable as exc:
            self._record(str(exc), trio.current_time())
            return
        if not is_in_place:
            self._record("the folder was removed or replaced", trio.current_time())
        elif lacks_space:
            self._record(os.strerror(errno.ENOSPC), trio.current_time(), True, is_writable=True)
        elif self._health.is_over(trio.current_time()):
            LOG.warning("The cache recovered: %s can be written again", self._files.folder)
            self.takes_chunks, self._is_full = True, False
            self.core.grow_again()

    def _inspect(self) -> tuple[bool, bool]:
        is_in_place = self._files.is_in_place()
        return is_in_place, is_in_place and self._is_full and not self._files.has_space()

    def _load(self) -> public_cache.PublicCache:
        self._files.open()
        try:
            core = self._make_core()
            with _no_garbage_collection():
                actions = core.restore_slabs(self._files.load())
        except BaseException:
            self._files.close()
            raise
        for action in actions:
            try:
                self._files.apply_action(action)
            except OSError as exc:
                LOG.warning("Slab file %d cannot be removed: %s", action.slab.number, exc)
        return core

    def _forget(self, number: int) -> None:
        slab = self.core.slab_by_number(number)
        if slab is not None and not slab.held:
            LOG.warning("Slab file %d was deleted; its chunks will be fetched again", number)
            self.core.forget_slab(slab)
            self._files.close_unused(slab)


def _words(exc: OSError) -> str:
    return exc.strerror or str(exc)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection; it takes a third of the time to open a large cache."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
