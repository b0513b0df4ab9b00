# SPDX-License-Identifier: Apache-2.0
"""Has holders drop what no checkpoint of this host needs any more.

Checkpoints are deleted, and servers leave, so what registers nothing more would stay for ever.
A pass asks the holders of this host's disks one after the other; the first one, and one each hour,
asks all hosts, for others may have what this host knows nothing of any more.

A pass, and each holder in it, has a deadline and a number of disks it may name.  So a hostile
holder delays the next holder by HOLDER_S at most, and checkpoints of the disk that it is asked
for alone.  The disks that a holder names have their turns in one order, so each is reached.

A state that cannot be read is set aside.  Until then no disk goes of which nothing is known: it may
be that one's.  The decision service alone says which checkpoints there are, and what it does not
say clearly is no reason to drop anything.  A disk whose checkpoint is being taken is left out.
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
from typing import Protocol

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.holders import vault_client
from acstor_checkpoint.schedule import failures
from acstor_checkpoint.vault import object_names
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

EVERY_S: Final = 600.0
"""From the end of one pass to the next."""
ALL_EVERY_S: Final = 3600.0
AGAIN_S: Final = 60.0
"""After the decision service has not answered."""
PASS_S: Final = 1800.0
HOLDER_S: Final = 60.0
"""For the list of a holder's disks, and again for all that is dropped of them."""
HOLDER_DISKS: Final = 1024
"""Of one holder in a pass; the next pass goes on behind them."""

_Known = Mapping[str, tuple[ids.ImageId, disk_states.DiskState]]
"""Instances and their states, by the disk that vaults know."""

_UNREADABLE: Final = disk_states.DiskState(0, "", "", "", 0)

Kept = Callable[[], Mapping[str, set[str]]]
"""Returns what stays: names of manifests, in hex, by the vault's disk.

Raises errors.DecisionUnreachable or errors.Unusable if it is not known."""


class HolderPool(Protocol):
    """Hosts that can keep checkpoints."""

    def other_hosts(self) -> Sequence[checkpoint_record.Holder]:
        """Return all of them but this one."""

    def client_of(self, holder: checkpoint_record.Holder) -> vault_client.VaultClient:
        """Return who asks the vault of a holder."""

    def failed(self, holder: ids.HostId, *, is_costly: bool) -> None:
        """Choose this one no more for a while."""


class Servers(Protocol):
    """The servers of this host, and which of them have a checkpoint taken now.

    ``failures`` counts what failed.
    """

    failures: failures.Failures

    def list_servers(self) -> Collection[ids.ImageId] | None:
        """Return them; None: it is not known."""

    def hold_server(self, instance: ids.ImageId) -> contextlib.AbstractContextManager[bool]:
        """Let no checkpoint of one be taken in the block; False: one is being taken."""


class GarbageCollection:
    """Passes over the holders, in a thread of its own.

    :param host: this one
    :param kept: asks the decision service
    :param ended: set when it is to end
    :param clock: monotonic
    """

    def __init__(
        self,
        host: ids.HostId,
        states: disk_states.DiskStates,
        places: HolderPool,
        kept: Kept,
        servers: Servers,
        ended: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._states, self._places = host, states, places
        self._kept, self._servers, self._ended, self._clock = kept, servers, ended, clock
        self._left: list[checkpoint_record.Holder] = []
        self._last: dict[ids.HostId, ids.ImageId] = {}
        """The disk that each holder was asked for last."""
        self._all_s = clock()
        self._faults = log_once.LogOnce(LOG)

    def run(self) -> None:
        """Pass over the holders until the end."""
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            pause_s = EVERY_S if self.collect() else AGAIN_S

    def collect(self) -> bool:
        """Do one pass; return False if it is to be done again soon."""
        if self._servers.list_servers() is None:
            return False
        try:
            self._pass()
        except (errors.AcstorError, OSError) as e:
            self._faults.log_warning(f"checkpoints that were deleted stay for now: {e}")
            return False
        self._faults.log_warning("")
        return True

    def _pass(self) -> None:
        """Ask the holders; those for which there is no time are asked in the next pass.

        :raises errors.AcstorError: the decision service does not say what stays
        :raises OSError: the states cannot be listed
        """
        until_s = self._clock() + PASS_S
        self._left = self._left or self._holders()
        while self._left and self._clock() < until_s and not self._ended.is_set():
            self._ask(self._left[-1])
            self._left.pop()
        if not self._left:
            self._forget()

    def _holders(self) -> list[checkpoint_record.Holder]:
        """Return who is to be asked in this pass."""
        others = list(self._places.other_hosts())
        if self._clock() < self._all_s:
            known, _ = self._known()
            holding = {host for _, state in known.values() for host in state.holders}
            return [holder for holder in others if holder.host in holding]
        self._all_s = self._clock() + ALL_EVERY_S
        hosts = {holder.host for holder in others}
        self._last = {host: disk for host, disk in self._last.items() if host in hosts}
        return others

    def _ask(self, holder: checkpoint_record.Holder) -> None:
        """Have one holder drop what does not stay; one that does not answer is asked later.

        :raises errors.AcstorError: the decision service does not say what stays
        :raises OSError: the states cannot be listed
        """
        with self._places.client_of(holder) as client:
            if not (disks := self._disks(client)):
                return
            known, is_complete = self._known()  # before what stays: so each checkpoint is told of
            kept = self._kept()
            if not is_complete:
                disks = [disk for disk in disks if disk in known or disk in kept]
            self._with(client, lambda one: self._tidy_all(one, disks, kept, known))

    def _disks(self, client: vault_client.VaultClient) -> Sequence[ids.ImageId]:
        """Return disks that a holder has of this host, from the one behind the last one on."""
        disks: list[ids.ImageId] = []
        self._with(client, lambda one: disks.extend(one.list_disks(self._host)))
        disks.sort()
        first = bisect.bisect_right(disks, self._last.get(client.holder, ""))
        return [*disks[first:], *disks[:first]][:HOLDER_DISKS]

    def _with(
        self,
        client: vault_client.VaultClient,
        work: Callable[[vault_client.VaultClient], None],
    ) -> None:
        """Do something with a holder; what fails, or takes too long, is logged.

        One that holds up a single request is replaced; one that has much to delete is not.
        """
        try:
            holder_group.call_all([client], work, HOLDER_S)
        except holder_group.HolderSlow as e:
            LOG.info("%s", e)
            if e.is_stalled:
                self._places.failed(e.holder, is_costly=True)
                self._servers.failures.note_holder(e)
        except (holder_group.HolderFailed, vault_client.HostFault) as e:
            LOG.info("%s", e)
        except Exception:
            supervision.count_failure("garbage collection")
            LOG.exception("%s keeps data that no checkpoint needs", client.holder)

    def _tidy_all(
        self,
        client: vault_client.VaultClient,
        disks: Sequence[ids.ImageId],
        kept: Mapping[str, set[str]],
        known: _Known,
    ) -> None:
        for disk in disks:
            self._last[client.holder] = disk
            with self._unchanged(disk, known) as is_unchanged:
                if is_unchanged:
                    stay = kept.get(disk, set()) | self._begun(disk, known)
                    self._note_drop(disk, stay, known)
                    self._tidy(client, disk, stay, known)

    def _note_drop(self, disk: ids.ImageId, stay: set[str], known: _Known) -> None:
        """Note that holders will rightly lack chunks of the last manifest, unless it stays."""
        if disk in known:
            instance, state = known[disk]
            if state.manifest not in stay and not state.is_dropped:
                state.is_dropped = True
                self._states.save(instance, state)

    @contextlib.contextmanager
    def _unchanged(self, disk: ids.ImageId, known: _Known) -> Iterator[bool]:
        """Yield whether no checkpoint of a disk was begun since it was looked at; none is then."""
        if disk not in known:
            yield True
            return
        instance, state = known[disk]
        with self._servers.hold_server(instance) as is_held:
            yield is_held and self._state(instance) == state

    def _known(self) -> tuple[_Known, bool]:
        """Return what there is of all disks now, and whether all of it can be read.

        :raises OSError: the states cannot be listed
        """
        known, is_complete = dict[str, tuple[ids.ImageId, disk_states.DiskState]](), True
        for instance in self._states.list_instances():
            state = self._state(instance)
            if state == _UNREADABLE:
                is_complete = False
            elif state is not None:
                known[state.disk] = instance, state
        return known, is_complete

    def _state(self, instance: ids.ImageId) -> disk_states.DiskState | None:
        """Return a state, None if there is none; _UNREADABLE, if it cannot be read, set aside."""
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

    def _tidy(
        self, client: vault_client.VaultClient, disk: ids.ImageId, stay: set[str], known: _Known
    ) -> None:
        """Drop all of a disk, or what its manifests that stay do not name, if they are here."""
        folder = object_names.Disk(self._host, disk)
        if not stay:
            if gone := client.drop(folder):
                LOG.info("%s: disk %s: all %d things went", client.holder, disk, gone)
            return
        if disk not in known:
            return
        gone = 0
        try:
            for part in self._states.iter_needed(*known[disk], stay):
                gone += client.retain_only(folder, part)
        except errors.Unusable as e:
            LOG.warning("disk %s: what it needs no more stays: %s", disk, e)
        if gone:
            LOG.info("%s: disk %s: %d things went", client.holder, disk, gone)

    def _begun(self, disk: ids.ImageId, known: _Known) -> set[str]:
        """Return the manifest of what is there of a checkpoint that is not whole yet."""
        if disk not in known:
            return set()
        instance, state = known[disk]
        return {state.manifest} if state.is_part and not self._is_gone(instance) else set()

    def _is_gone(self, instance: ids.ImageId) -> bool:
        """Say whether a server is known not to be here; it may arrive during a pass."""
        here = self._servers.list_servers()
        return here is not None and instance not in here

    def _forget(self) -> None:
        """Forget disks whose servers are gone from here, and of which nothing stays.

        :raises errors.AcstorError: the decision service does not say what stays
        :raises OSError: the states cannot be listed
        """
        gone = [instance for instance in self._states.list_instances() if self._is_gone(instance)]
        if not gone:
            return
        kept = self._kept()
        for instance in gone:
            with self._servers.hold_server(instance) as is_held:
                state = self._state(instance)
                is_needed = state is not None and (state == _UNREADABLE or kept.get(state.disk))
                if is_held and not is_needed and self._is_gone(instance):
                    self._states.forget_disk(instance)
