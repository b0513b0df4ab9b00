# SPDX-License-Identifier: Apache-2.0
"""Has holders drop what no checkpoint of this host needs any more, while nothing is registered.

Checkpoints are deleted, and servers leave, so what registers nothing more would stay for ever.
One holder is asked at a time, between checkpoints: those that its disks have, and when the daemon
starts and each hour all hosts, for others may have what this host knows nothing of any more.

The decision service alone says which checkpoints there are, and what it does not
say clearly is no reason to drop anything.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import Protocol

from acstor_checkpoint import copies
from acstor_checkpoint import names
from acstor_checkpoint import record
from acstor_checkpoint import states as states_
from acstor_checkpoint import vault_client
from acstor_common import errors
from acstor_common import ids
from acstor_common import log_once

LOG = logging.getLogger(__name__)

EVERY_S: Final = 600.0
"""From the end of one pass to the next; each holder is then asked for its list of disks."""
ALL_EVERY_S: Final = 3600.0
AGAIN_S: Final = 60.0
"""After the decision service has not answered."""

_Known = Mapping[str, tuple[ids.ImageId, states_.State]]
"""Instances and their states, by the disk that vaults know."""

Kept = Callable[[], Mapping[str, set[str]]]
"""Returns what stays: names of manifests, in hex, by the vault's disk.

Raises errors.DecisionUnreachable or errors.Unusable if it is not known."""


class Places(Protocol):
    """Hosts that can keep checkpoints."""

    def others(self) -> Sequence[record.Holder]:
        """Return all of them but this one."""

    def client(self, holder: record.Holder) -> vault_client.VaultClient:
        """Return who asks the vault of a holder."""


class Sweeping:
    """Passes over the holders; for the thread that takes checkpoints.

    :param host: this one
    :param kept: asks the decision service
    :param clock: monotonic
    """

    def __init__(
        self,
        host: ids.HostId,
        states: states_.States,
        places: Places,
        kept: Kept,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._states, self._places = host, states, places
        self._kept, self._clock = kept, clock
        self._left: list[record.Holder] = []
        self._present: frozenset[ids.ImageId] = frozenset()
        self._next_s = self._all_s = clock()
        self._faults = log_once.LogOnce(LOG)

    def step(self, present: Collection[ids.ImageId]) -> bool:
        """Ask one holder, if it is time; say whether it was.

        :param present: the instances that are on this host
        """
        if self._clock() < self._next_s:
            return False
        self._next_s, self._present = self._clock() + AGAIN_S, frozenset(present)
        try:
            self._left = self._left or self._holders()
            if self._left:
                self._ask(self._left[-1])
                self._left.pop()
            if not self._left:
                self._forget()
        except (errors.AcstorError, OSError) as e:
            self._faults.say(f"checkpoints that were deleted stay for now: {e}")
            return True
        self._faults.say("")
        self._next_s = self._clock() + (0.0 if self._left else EVERY_S)
        return True

    def _holders(self) -> list[record.Holder]:
        """Return who is to be asked in this pass."""
        others = list(self._places.others())
        if self._clock() < self._all_s:
            states = filter(None, map(self._states.load, self._states.known()))
            holding = {host for state in states for host in state.holders}
            return [holder for holder in others if holder.host in holding]
        self._all_s = self._clock() + ALL_EVERY_S
        return others

    def _ask(self, holder: record.Holder) -> None:
        """Have one holder drop what does not stay; one that does not answer is asked later.

        :raises errors.AcstorError: the decision service does not say what stays
        """
        try:
            with self._places.client(holder) as client:
                if disks := client.disks(self._host):
                    kept, known = self._kept(), self._known()
                    for disk in disks:
                        stay = kept.get(disk, set()) | self._begun(disk, known)
                        self._tidy(client, disk, stay, known)
        except copies.FAULTS as e:
            LOG.info("%s: %s", holder.host, e)

    def _known(self) -> _Known:
        """Return what there is of all disks now; each file is read once for a holder."""
        loaded = ((instance, self._states.load(instance)) for instance in self._states.known())
        return {state.disk: (instance, state) for instance, state in loaded if state is not None}

    def _tidy(
        self, client: vault_client.VaultClient, disk: ids.ImageId, stay: set[str], known: _Known
    ) -> None:
        """Drop all of a disk, or what its manifests that stay do not name, if they are here."""
        folder = names.Disk(self._host, disk)
        if not stay:
            if gone := client.drop(folder):
                LOG.info("%s: disk %s: all %d things went", client.holder, disk, gone)
            return
        needed = self._needed(disk, stay, known)
        if needed and (gone := client.keep(folder, needed)):
            LOG.info("%s: disk %s: %d things went", client.holder, disk, gone)

    def _needed(self, disk: ids.ImageId, stay: set[str], known: _Known) -> set[bytes]:
        """Return the names of all that manifests need; nothing if that is not known."""
        if disk not in known:
            return set()
        kept = [self._states.manifest(*known[disk], name) for name in sorted(stay)]
        needed = {bytes.fromhex(name) for name in stay}
        for manifest in filter(None, kept):
            needed.update(manifest.names())
        return needed if all(kept) else set()

    def _begun(self, disk: ids.ImageId, known: _Known) -> set[str]:
        """Return the manifest of what is there of a checkpoint that is not whole yet."""
        if disk not in known:
            return set()
        instance, state = known[disk]
        return {state.manifest} if state.is_part and instance in self._present else set()

    def _forget(self) -> None:
        """Forget disks whose servers are gone from here, and of which nothing stays.

        :raises errors.AcstorError: the decision service does not say what stays
        """
        gone = [instance for instance in self._states.known() if instance not in self._present]
        if not gone:
            return
        kept = self._kept()
        for instance in gone:
            state = self._states.load(instance)
            if state is None or not kept.get(state.disk):
                self._states.forget(instance)
