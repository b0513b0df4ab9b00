# SPDX-License-Identifier: Apache-2.0
"""Which of the instances leads: the one that holds tooz' lock.

The one rule: who is not sure does not lead.  Two may think so for a moment (a
lock service that restarts forgets who held it); the database gives each epoch
once, and who comes second steps down.
"""

import logging

import tooz
from tooz import coordination
from tooz import locking

LOG = logging.getLogger(__name__)

LOCK = b"acstor-decision"


class Leadership:
    """This instance's part in the choice.

    :param url: where instances agree, as tooz wants it
    """

    def __init__(self, url: str, instance: str) -> None:
        self._url = url
        self._instance = instance
        self._coordinator: coordination.CoordinationDriver | None = None
        self._lock: locking.Lock | None = None
        self._leads = False
        self._was_reachable = True

    def is_leader(self) -> bool:
        """Say whether this instance leads now; takes the lead if nobody has it."""
        try:
            self._leads = self._hold()
        except (tooz.ToozError, OSError) as e:
            if self._was_reachable:
                LOG.warning("%s cannot say who leads: %s; trying again", self._shown_url(), e)
            self._was_reachable = False
            self.step_down()
        else:
            self._was_reachable = True
        return self._leads

    def step_down(self) -> None:
        """Let another one lead; this instance may try again later."""
        self._leads = False
        coordinator, self._coordinator = self._coordinator, None
        lock, self._lock = self._lock, None
        try:
            if lock is not None and lock.acquired:
                lock.release()
            if coordinator is not None:
                coordinator.stop()
        except (tooz.ToozError, OSError) as e:
            LOG.debug("%s", e)

    def _hold(self) -> bool:
        if self._coordinator is None or self._lock is None:
            self._coordinator = coordination.get_coordinator(self._url, self._instance.encode())
            self._coordinator.start(start_heart=True)
            self._lock = self._coordinator.get_lock(LOCK)
        if self._lock.acquired:
            return self._is_still_owner(self._lock)
        if self._lock.acquire(blocking=False):
            LOG.info("%s leads", self._instance)
            return True
        return False

    def _is_still_owner(self, lock: locking.Lock) -> bool:
        try:
            owns = bool(lock.is_still_owner())
        except tooz.NotImplemented:
            return True  # this kind cannot tell
        if not owns:
            LOG.warning("%s has lost the lead", self._instance)
            self.step_down()
        return owns

    def _shown_url(self) -> str:
        """Return the URL without a password."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"
