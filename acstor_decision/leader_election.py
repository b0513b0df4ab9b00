# SPDX-License-Identifier: Apache-2.0
"""Leader election: the instance that holds tooz' lock leads; one that is unsure does not.

Two may lead for a moment; the database accepts each epoch once, and the second one steps down.
"""

import logging
from typing import Any
from urllib import parse

import tooz
from stevedore import exception
from tooz import coordination
from tooz import locking

from acstor_common import errors
from acstor_common.util import call_deadline

LOG = logging.getLogger(__name__)

LOCK = b"acstor-decision"
ANSWER_S = 20.0  # timeout of calls to the lock service; most drivers of tooz have none


def check_driver(url: str) -> None:
    """Check that the tooz driver of a URL is installed, or raise Unusable; connects to nothing."""
    try:
        coordination.get_coordinator(url, LOCK)
    except (exception.NoMatches, tooz.ToozError, ImportError, ValueError) as e:
        raise errors.Unusable(
            "[acstor_decision] coordination_url",
            f"{parse.urlsplit(url).scheme}: {e}",
            "Install the driver (an extra of tooz), or choose another one",
        ) from e


class LeaderElection:
    """The candidacy of an instance; its lock ends at most ``lease_s`` after the instance."""

    def __init__(
        self, url: str, instance: str, lease_s: float = 5.0, answer_s: float = ANSWER_S
    ) -> None:
        self._url = _with_lease(url, lease_s)
        self.instance = instance
        self._coordinator: coordination.CoordinationDriver | None = None
        self._lock: Any = None  # a locking.Lock; its subclasses have ``acquired``
        self._leads = False
        self._was_reachable = True
        self._deadline = call_deadline.CallDeadline("coordination", answer_s)

    def is_leader(self) -> bool:
        """Return whether this instance leads now; acquire the lock if it is free."""
        try:
            self._leads = self._deadline.run_call(self._hold)
        except (tooz.ToozError, OSError, call_deadline.CallTimeout) as e:
            if self._was_reachable:
                LOG.warning(
                    "%s cannot determine the leader: %s; trying again", self._shown_url(), e
                )
            self._was_reachable = False
            self._leads = False
            if not isinstance(
                e, call_deadline.CallTimeout
            ):  # after a timeout the call is still running
                self.step_down()
        else:
            self._was_reachable = True
        return self._leads

    def step_down(self) -> None:
        """Release the lock; this instance may acquire it again later."""
        self._leads = False
        try:
            self._deadline.run_call(self._release_lock)
        except call_deadline.CallTimeout as e:
            LOG.debug("%s", e)

    def _release_lock(self) -> None:
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
            self._coordinator = coordination.get_coordinator(self._url, self.instance.encode())
            self._coordinator.start(start_heart=True)
            self._lock = self._coordinator.get_lock(LOCK)
        if self._lock.acquired:
            return self._is_still_owner(self._lock)
        if self._lock.acquire(blocking=False):
            LOG.info("%s is the leader", self.instance)
            return True
        return False

    def _is_still_owner(self, lock: locking.Lock) -> bool:
        try:
            owns = bool(lock.is_still_owner())
        except tooz.NotImplemented:
            owns = _is_held(lock)
        if not owns:
            LOG.warning("%s lost the leadership", self.instance)
            self._release_lock()
        return owns

    def _shown_url(self) -> str:
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


def _is_held(lock: Any) -> bool:
    """Return whether a lock of tooz that cannot tell still has its lease or its connection."""
    try:
        if lease := getattr(lock, "_lease", None):  # etcd; heartbeats do not notice its end
            return bool(lease.ttl() > 0)
        if link := getattr(lock, "_conn", None):  # of a database, whose lock ends with it
            link.cursor().execute("SELECT 1")
    except Exception as e:  # of the driver's library
        raise tooz.ToozError(str(e)) from e
    return True


def _with_lease(url: str, lease_s: float) -> str:
    """Return an etcd URL with tooz' lease option, unless the URL has it.

    >>> _with_lease("etcd3+http://controller:2379", 5.0)
    'etcd3+http://controller:2379?lock_timeout=5'
    """
    parts = parse.urlsplit(url)
    if not parts.scheme.startswith("etcd3") or "lock_timeout" in parse.parse_qs(parts.query):
        return url
    given = f"{parts.query}&" if parts.query else ""
    return parse.urlunsplit(parts._replace(query=f"{given}lock_timeout={max(1, round(lease_s))}"))
