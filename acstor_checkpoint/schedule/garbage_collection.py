# SPDX-License-Identifier: Apache-2.0
"""Garbage collection: deletes data of obsolete checkpoints from holders.

Each checkpoint deletes the data that it makes obsolete.  Garbage collection deletes the data of
deleted checkpoints and of servers that left.  A pass calls the holders of this host's disks one
after the other; the first one, and one each hour, calls all hosts, because some may have data that
this host forgot.

A pass, and each holder in it, has a deadline and a limit of disks, so a hostile holder delays the
next one by at most ``holder_s``.  A due checkpoint of the current disk ends the holder's turn.
Disks that a holder lists are handled in a fixed cyclic order, so each is reached.

Nothing is deleted without the decision service's complete answer.  An unreadable state is set
aside; until then unknown disks are kept: one may be that state's.
"""

import bisect
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple
from typing import Protocol

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import failures
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

EVERY_S: Final = 600.0  # between two passes
ALL_EVERY_S: Final = 3600.0
RETRY_S: Final = 60.0  # pause after a failure of the decision service
PASS_S: Final = 1800.0


class CollectionLimits(NamedTuple):
    """Limits of one holder in a pass."""

    holder_s: float = 60.0  # for listing its disks, and again for all deletions
    holder_disks: int = 1024  # the next pass continues after them


LIMITS = CollectionLimits()

_Known = Mapping[str, tuple[ids.ImageId, disk_states.DiskState]]
"""Instances and states by disk ID in vaults."""

_UNREADABLE: Final = disk_states.DiskState(0, "", "", "", 0)

ListRetained = Callable[[], Mapping[str, set[str]]]
"""Returns manifests to retain, in hex, by disk ID in vaults.

Raises errors.DecisionUnreachable or errors.Unusable."""


class HolderPool(Protocol):
    """Hosts that can keep checkpoints."""

    def other_hosts(self) -> Sequence[checkpoint_record.VaultHolder]:
        """Return all hosts but this one."""

    def client_of(self, holder: checkpoint_record.VaultHolder) -> vault_client.VaultClient:
        """Return a client of a holder's vault."""

    def record_failure(self, holder: ids.HostId, *, is_costly: bool) -> None:
        """Avoid a holder for a while; twice as long after each failure that ``is_costly``."""


class Servers(Protocol):
    """The servers of this host, their running checkpoints, and counters of failures."""

    failures: failures.Failures

    def list_servers(self) -> Collection[ids.ImageId] | None:
        """Return the servers that are or may be on this host; None: unknown."""

    def hold_server(
        self, instance: ids.ImageId, end_block: Callable[[], None] = lambda: None
    ) -> contextlib.AbstractContextManager[bool]:
        """Block checkpoints of a server during the block; yield False if one runs.

        :param end_block: called, maybe repeatedly, when a checkpoint is due; must not wait
        """


class GarbageCollection:
    """The garbage collection loop."""

    def __init__(
        self,
        host: ids.HostId,
        states: disk_states.DiskStates,
        pool: HolderPool,
        list_retained: ListRetained,
        servers: Servers,
        ended: threading.Event,
        clock: clocks.Clock = time,
        limits: CollectionLimits = LIMITS,
    ) -> None:
        self._host, self._states, self._pool, self._limits = host, states, pool, limits
        self._list_retained, self._servers = list_retained, servers
        self._ended, self._clock = ended, clock
        self._left: list[checkpoint_record.VaultHolder] = []
        self._last: dict[ids.HostId, ids.ImageId] = {}
        """The last disk handled at each holder."""
        self._all_s = clock.monotonic()
        self._faults = log_once.LogOnce(LOG)

    def run(self) -> None:
        """Run passes periodically until ``ended`` is set."""
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            pause_s = EVERY_S if self.collect() else RETRY_S

    def collect(self) -> bool:
        """Run one pass; return False if it should be retried soon."""
        if self._servers.list_servers() is None:
            return False
        try:
            self._pass()
        except (errors.AcstorError, OSError) as e:
            self._faults.log_warning(f"obsolete checkpoints are not deleted yet: {e}")
            return False
        self._faults.log_warning("")
        return True

    def _pass(self) -> None:
        """Call the holders; the next pass continues after a timeout.

        :raises errors.AcstorError: the decision service failed
        :raises OSError: states cannot be listed
        """
        until_s = self._clock.monotonic() + PASS_S
        self._left = self._left or self._holders()
        while self._left and self._clock.monotonic() < until_s and not self._ended.is_set():
            self._collect_at(self._left[-1])
            self._left.pop()
        if not self._left:
            self._delete_departed_states()

    def _holders(self) -> list[checkpoint_record.VaultHolder]:
        others = list(self._pool.other_hosts())
        if self._clock.monotonic() < self._all_s:
            known, _ = self._known()
            holding = {host for _, state in known.values() for host in state.holders}
            return [holder for holder in others if holder.host in holding]
        self._all_s = self._clock.monotonic() + ALL_EVERY_S
        hosts = {holder.host for holder in others}
        self._last = {host: disk for host, disk in self._last.items() if host in hosts}
        return others

    def _collect_at(self, holder: checkpoint_record.VaultHolder) -> None:
        """Delete obsolete data at one holder; log its failure; raises as :meth:`_pass`."""
        with self._pool.client_of(holder) as client:
            if not (disks := self._disks(client)):
                return
            known, is_complete = self._known()  # before the list, which then covers each of them
            kept = self._list_retained()
            if not is_complete:
                disks = [disk for disk in disks if disk in known or disk in kept]
            self._with(client, lambda connected: self._collect_disks(connected, disks, kept, known))

    def _disks(self, client: vault_client.VaultClient) -> Sequence[ids.ImageId]:
        """Return this host's disks at a holder, beginning after the last one."""
        disks: list[ids.ImageId] = []
        self._with(client, lambda connected: disks.extend(connected.list_disks(self._host)))
        disks.sort()
        first = bisect.bisect_right(disks, self._last.get(client.holder, ""))
        return [*disks[first:], *disks[:first]][: self._limits.holder_disks]

    def _with(
        self,
        client: vault_client.VaultClient,
        work: Callable[[vault_client.VaultClient], None],
    ) -> None:
        """Run ``work`` with a holder; a slow one counts as failed only if a request stalls."""
        try:
            holder_group.call_holders([client], work, self._limits.holder_s)
        except holder_group.HolderSlow as e:
            LOG.info("%s", e)
            if e.is_stalled:
                self._pool.record_failure(e.holder, is_costly=True)
                self._servers.failures.note_holder(e)
        except (holder_group.HolderFailed, vault_client.HostFault) as e:
            LOG.info("%s", e)
        except Exception:
            supervision.count_failure("garbage collection")
            LOG.exception("%s keeps data that no checkpoint needs", client.holder)

    def _collect_disks(
        self,
        client: vault_client.VaultClient,
        disks: Sequence[ids.ImageId],
        kept: Mapping[str, set[str]],
        known: _Known,
    ) -> None:
        for disk in disks:
            self._last[client.holder] = disk
            with self._unchanged(client, disk, known) as is_unchanged:
                if is_unchanged:
                    retained = kept.get(disk, set()) | self._begun(disk, known)
                    self._mark_incomplete(disk, retained, known)
                    self._collect_disk(client, disk, retained, known)

    def _mark_incomplete(self, disk: ids.ImageId, retained: set[str], known: _Known) -> None:
        """Record that holders may lack chunks of the last manifest."""
        if disk in known:
            instance, state = known[disk]
            if state.manifest not in retained and not state.may_lack_chunks:
                state.may_lack_chunks = True
                self._states.save(instance, state)

    @contextlib.contextmanager
    def _unchanged(
        self, client: vault_client.VaultClient, disk: ids.ImageId, known: _Known
    ) -> Iterator[bool]:
        """Yield whether a disk's state is unchanged; a due checkpoint aborts the client."""
        if disk not in known:
            yield True
            return
        instance, state = known[disk]
        with self._servers.hold_server(instance, client.abort) as is_held:
            yield is_held and self._state(instance) == state

    def _known(self) -> tuple[_Known, bool]:
        """Return the states of all disks, and whether all are readable, or raise OSError."""
        known, is_complete = dict[str, tuple[ids.ImageId, disk_states.DiskState]](), True
        for instance in self._states.list_instances():
            state = self._state(instance)
            if state == _UNREADABLE:
                is_complete = False
            elif state is not None:
                known[state.disk] = instance, state
        return known, is_complete

    def _state(self, instance: ids.ImageId) -> disk_states.DiskState | None:
        """Return a state or None; set an unreadable one aside, return _UNREADABLE."""
        try:
            return self._states.read(instance)
        except OSError as e:
            LOG.warning("the state of server %s cannot be read: %s", instance, e)
            if e.errno not in vault_client.OWN_ERRORS:
                self._set_aside(instance)
            return _UNREADABLE

    def _set_aside(self, instance: ids.ImageId) -> None:
        with self._servers.hold_server(instance) as is_held, contextlib.suppress(OSError):
            if is_held:
                self._states.set_aside(instance)

    def _collect_disk(
        self, client: vault_client.VaultClient, disk: ids.ImageId, retained: set[str], known: _Known
    ) -> None:
        """Delete a disk; if manifests are retained, only objects that none of them needs."""
        folder = object_names.VaultDisk(self._host, disk)
        if not retained:
            if gone := client.delete_disk(folder):
                LOG.info("%s: deleted disk %s with %d objects", client.holder, disk, gone)
            return
        if disk not in known:
            return
        gone = 0
        try:
            for part in self._states.iter_needed(*known[disk], retained):
                gone += client.retain_only(folder, part)
        except errors.Unusable as e:
            LOG.warning("disk %s: obsolete data is not deleted: %s", disk, e)
        if gone:
            LOG.info("%s: deleted %d objects of disk %s", client.holder, gone, disk)

    def _begun(self, disk: ids.ImageId, known: _Known) -> set[str]:
        """Return the manifest of a partial capture of a server on this host."""
        if disk not in known:
            return set()
        instance, state = known[disk]
        return {state.manifest} if state.is_partial and not self._is_gone(instance) else set()

    def _is_gone(self, instance: ids.ImageId) -> bool:
        listed = self._servers.list_servers()
        return listed is not None and instance not in listed

    def _delete_departed_states(self) -> None:
        """Delete states of departed servers without checkpoints; raises as :meth:`_pass`."""
        gone = [instance for instance in self._states.list_instances() if self._is_gone(instance)]
        if not gone:
            return
        kept = self._list_retained()
        for instance in gone:
            with self._servers.hold_server(instance) as is_held:
                state = self._state(instance)
                is_needed = state is not None and (state == _UNREADABLE or kept.get(state.disk))
                if is_held and not is_needed and self._is_gone(instance):
                    self._states.delete_state(instance)
