# SPDX-License-Identifier: Apache-2.0
"""Claims: of all plugins and listeners one works on a thing of an image at a time.

A claim saves work and guards nothing.  Who gets one reads the image again before
he begins; and two who work on one image all the same (a coordination service that
is away, listeners without a common one) leave one artefact in force.
"""

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

ANSWER_S = 20.0
"""The longest that the coordination service may take; most of tooz' drivers wait for ever."""


class WorkLeases:
    """This process's way to claim images, over any driver of tooz.

    Each thread that claims has a coordinator of its own at a time: not every driver can be
    shared.

    :param url: of the coordination service; without one, files below ``state_dir``
    :param what: is worked on; a claim to one thing of an image leaves the others free
    """

    def __init__(self, url: str | None, state_dir: pathlib.Path, what: str) -> None:
        self._what = what
        self._own_folder = None if url else state_dir / "claims"
        self._url = url or f"file://{self._own_folder}"
        self._deadline = call_deadline.CallDeadline("coordination", ANSWER_S)
        self._mine: set[ids.ImageId] = set()
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def lease_image(self, image_id: ids.ImageId) -> Iterator[bool]:
        """Yield whether the image is ours now; if so it stays ours until the block ends.

        :raises errors.ImageServiceUnreachable: the coordination service does not answer
        """
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
        """Delete the files of claims first made so long ago; return how many files that were.

        Each thing of an image that was ever claimed leaves one.  To take away that of a claim which
        is held still does no harm: a claim guards nothing.
        """
        removed = 0
        if self._own_folder is not None:
            for path in self._own_folder.glob("acstor-*"):
                with contextlib.suppress(OSError):  # somebody else did, or may not: it stays
                    if time.time() - path.stat().st_mtime > age_s:
                        path.unlink()
                        removed += 1
        return removed

    @contextlib.contextmanager
    def _locked(self, image_id: ids.ImageId) -> Iterator[bool]:
        # It takes a third of the start of a command, and most commands claim nothing.
        from tooz import coordination

        is_given_up = threading.Event()

        def claim() -> tuple[Any, Any, bool]:
            coordinator = coordination.get_coordinator(self._url, uuid.uuid4().bytes)
            coordinator.start(start_heart=True)
            lock = coordinator.get_lock(f"acstor-{self._what}-{image_id}".encode())
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
                _quietly(lambda: self._deadline.run_call(lambda: _let_go(coordinator, lock)))


def _let_go(coordinator: Any, lock: Any) -> None:
    _quietly(lock.release)
    _quietly(coordinator.stop)


def _quietly(end: Callable[[], object]) -> None:
    """Give up a claim or a connection; if that fails it ends by itself."""
    try:
        end()
    except Exception as exc:  # as below
        LOG.info("a claim ends by itself only: %s", exc)


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # drivers of tooz let errors of their own libraries through
        where = url.partition("://")[0]  # the rest may hold a password
        why = f"{str(exc) or type(exc).__name__} ([acstor_glance] coordination_url)"
        raise errors.ImageServiceUnreachable(f"claiming an image ({where})", why) from exc
