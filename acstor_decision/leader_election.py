# SPDX-License-Identifier: Apache-2.0
"""Which of the instances leads: the one that holds tooz' lock.

Who is not sure does not lead.  Two may think so for a moment (a lock service
that restarts forgets who held it); the database gives each epoch once, and who
comes second steps down.
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
ANSWER_S = 20.0
"""The longest that where instances agree may take; most of tooz' drivers wait for ever."""


def check_driver(url: str) -> None:
    """Check that what instances agree by is installed; connects to nothing.

    :raises errors.Unusable: it is not, or the URL is none
    """
    try:
        coordination.get_coordinator(url, LOCK)
    except (exception.NoMatches, tooz.ToozError, ImportError, ValueError) as e:
        raise errors.Unusable(
            "[acstor_decision] coordination_url",
            f"{parse.urlsplit(url).scheme}: {e}",
            "Install the driver (the extras of tooz bring them), or choose another one",
        ) from e


class LeaderElection:
    """This instance's part in the choice.

    :param url: where instances agree, as tooz wants it
    :param lease_s: how long a lock of a dead instance stays its own, where the lock service is not
        told of its end
    """

    def __init__(self, url: str, instance: str, lease_s: float = 5.0) -> None:
        self._url = _with_lease(url, lease_s)
        self._instance = instance
        self._coordinator: coordination.CoordinationDriver | None = None
        self._lock: Any = None  # a locking.Lock, all of which have acquired
        self._leads = False
        self._was_reachable = True
        self._deadline = call_deadline.CallDeadline("coordination", ANSWER_S)

    def is_leader(self) -> bool:
        """Say whether this instance leads now; takes the lead if nobody has it."""
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
            ):  # else the call goes on, and is looked at
                self.step_down()
        else:
            self._was_reachable = True
        return self._leads

    def step_down(self) -> None:
        """Let another one lead; this instance may try again later."""
        self._leads = False
        try:
            self._deadline.run_call(self._let_go)
        except call_deadline.CallTimeout as e:
            LOG.debug("%s", e)

    def _let_go(self) -> None:
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
            LOG.warning("%s has lost the leadership", self._instance)
            self._let_go()
        return owns

    def _shown_url(self) -> str:
        """Return the URL without a password."""
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


def _with_lease(url: str, lease_s: float) -> str:
    """Return the URL with tooz' option for leases, where etcd grants them and none is given.

    >>> _with_lease("etcd3+http://controller:2379", 5.0)
    'etcd3+http://controller:2379?lock_timeout=5'
    """
    parts = parse.urlsplit(url)
    if not parts.scheme.startswith("etcd3") or "lock_timeout" in parse.parse_qs(parts.query):
        return url
    given = f"{parts.query}&" if parts.query else ""
    return parse.urlunsplit(parts._replace(query=f"{given}lock_timeout={max(1, round(lease_s))}"))
