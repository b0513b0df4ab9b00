# SPDX-License-Identifier: Apache-2.0
"""Work leases: one plugin or listener at a time works on an image, which saves work."""

import contextlib
import logging
import pathlib
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import call_deadline

LOG = logging.getLogger(__name__)

ANSWER_S = 20.0  # longest wait for the coordination service; most tooz drivers wait forever


class WorkLeases:
    """Leases on images for one kind of work: by tooz or, without ``url``, by files.

    Each lease has its own coordinator, because some drivers are not thread-safe.
    """

    def __init__(
        self,
        url: str | None,
        state_dir: pathlib.Path,
        work_kind: str,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._work_kind = work_kind
        self._own_folder = None if url else state_dir / "claims"
        self._url = url or f"file://{self._own_folder}"
        self._deadline = call_deadline.CallDeadline("coordination", answer_s)
        self._mine: set[ids.ImageId] = set()
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def lease_image(self, image_id: ids.ImageId) -> Iterator[bool]:
        """Yield whether this thread got the lease; raises errors.ImageServiceUnreachable."""
        with self._guard:
            is_free = image_id not in self._mine
            self._mine.add(image_id)
        if not is_free:
            yield False
            return
        try:
            with self._locked(image_id) as is_ours:
                yield is_ours
        finally:
            with self._guard:
                self._mine.discard(image_id)

    def remove_older(self, age_s: float) -> int:
        """Delete lease files older than ``age_s``, held or not; return their number."""
        removed = 0
        if self._own_folder is not None:
            for path in self._own_folder.glob("acstor-*"):
                with contextlib.suppress(OSError):  # removed by another process, or not permitted
                    if time.time() - path.stat().st_mtime > age_s:
                        path.unlink()
                        removed += 1
        return removed

    @contextlib.contextmanager
    def _locked(self, image_id: ids.ImageId) -> Iterator[bool]:
        # The import takes a third of a command's start, and most commands need no lease.
        from tooz import coordination

        is_given_up = threading.Event()

        def claim() -> tuple[Any, Any, bool]:
            coordinator = coordination.get_coordinator(self._url, uuid.uuid4().bytes)
            coordinator.start(start_heart=True)
            lock = coordinator.get_lock(f"acstor-{self._work_kind}-{image_id}".encode())
            is_ours = False
            try:
                is_ours = bool(lock.acquire(blocking=False))
            finally:
                if is_given_up.is_set() or not is_ours:
                    _quietly(coordinator.stop)
            return coordinator, lock, is_ours

        with _translated(self._url):
            try:
                coordinator, lock, is_ours = self._deadline.run_call(claim)
            except call_deadline.CallTimeout:
                is_given_up.set()
                raise
        try:
            yield is_ours
        finally:
            if is_ours:
                _quietly(lambda: self._deadline.run_call(lambda: _release(coordinator, lock)))


def _release(coordinator: Any, lock: Any) -> None:
    _quietly(lock.release)
    _quietly(coordinator.stop)


def _quietly(end: Callable[[], object]) -> None:
    """Release a lease or close a connection; if that fails, it expires."""
    try:
        end()
    except Exception as exc:  # drivers let errors of their libraries through
        LOG.info("a lease was not released, and expires: %s", exc)


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # drivers let errors of their libraries through
        where = url.partition("://")[0]  # the rest may hold a password
        why = f"{str(exc) or type(exc).__name__} ([acstor_glance] coordination_url)"
        raise errors.ImageServiceUnreachable(f"lease of an image ({where})", why) from exc
