# SPDX-License-Identifier: Apache-2.0
"""Takes away what vaults keep for this host of disks that have no checkpoint any more.

A disk that began anew, or whose server is gone, has chunks in vaults that no later checkpoint of
it drops.  They count for what vaults keep of this host, until nothing more fits.

The one rule: what the decision service knows stays, and what this host is at stays.  Without a
clear and complete answer of the service nothing goes.
"""

import logging
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Protocol

from acstor_checkpoint import names
from acstor_checkpoint import record
from acstor_checkpoint import states as states_
from acstor_checkpoint import vault_client
from acstor_common import errors
from acstor_common import ids

LOG = logging.getLogger(__name__)

Kept = Callable[[], Collection[str]]
"""Returns all disks of this host, as vaults know them, that have checkpoints.

Raises an error of acstor's if that is not known, or not of all."""


class Vaults(Protocol):
    """All vaults of the cloud."""

    def every(self) -> Sequence[record.Holder]:
        """Return the other hosts of the table."""

    def client(self, holder: record.Holder) -> vault_client.VaultClient:
        """Return who asks the vault of a holder."""


class Sweeping:
    """For one thread, the one that takes checkpoints: so none is on meanwhile.

    :param host: this one
    """

    def __init__(
        self, host: ids.HostId, states: states_.States, kept: Kept, vaults: Vaults
    ) -> None:
        self._host, self._states, self._kept, self._vaults = host, states, kept, vaults
        self._absent: set[ids.ImageId] = set()

    def once(self, here: Collection[ids.ImageId]) -> int:
        """Take away what nobody needs; return of how many disks.

        What is kept of a server that is not here, and has no checkpoint, goes the second time that
        it is not: it may be on its way.

        :param here: the servers of this host
        :raises errors.AcstorError: it is not known what stays
        """
        kept = set(self._kept())
        stay, absent = set(kept), set[ids.ImageId]()
        for instance in self._states.known():
            state = self._states.load(instance)
            if instance in here or (state and state.disk in kept) or instance not in self._absent:
                stay.update([state.disk] if state else [])
                absent.update(() if instance in here else [instance])
            else:
                self._states.forget(instance)
        self._absent = absent
        return sum(self._swept(holder, stay) for holder in self._vaults.every())

    def _swept(self, holder: record.Holder, stay: Collection[str]) -> int:
        """Take away what one vault keeps in vain; another time if it is away."""
        gone = 0
        try:
            with self._vaults.client(holder) as client:
                for disk in client.disks(self._host):
                    if disk not in stay:
                        things = client.drop(names.Disk(self._host, disk))
                        LOG.info("%s keeps disk %s no more: %d things", holder.host, disk, things)
                        gone += 1
        except (errors.AcstorError, OSError) as e:
            LOG.info("what %s keeps is not looked at now: %s", holder.host, e)
        return gone
