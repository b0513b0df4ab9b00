# SPDX-License-Identifier: Apache-2.0
"""Deletes data of hosts that left the cloud, on the decision service's confirmation.

A host that has accessed its data since the question may have returned, so its data stays.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Final

from acstor_checkpoint.vault import vault_files
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import checkpoint_messages as messages

LOG = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
FIRST_S: Final = 60.0  # after the daemon's start, when the broker is connected
_ENDS_WITHIN_S: Final = 60.0

FindDeparted = Callable[[Collection[ids.HostId]], Collection[ids.HostId]]
"""Asks the decision service which hosts left and have no checkpoint any more.

Raises errors.DecisionUnreachable or errors.NotAuthenticated."""


class OwnerDeletion:
    """The deletion loop."""

    def __init__(
        self, vault: vault_store.VaultStore, find_departed: FindDeparted, ended: threading.Event
    ) -> None:
        self._vault, self._find_departed, self._ended = vault, find_departed, ended
        self._faults = log_once.LogOnce(LOG)

    def run(self, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        """Delete periodically until ``ended`` is set; retry failures next time."""
        pause_s = first_s
        while not self._ended.wait(pause_s):
            try:
                self.delete_departed()
                self._faults.log_warning("")
            except (errors.AcstorError, OSError) as e:
                self._faults.log_warning(f"orphaned data of hosts is not deleted yet: {e}")
            except Exception:
                LOG.exception("orphaned data of hosts is not deleted yet")
            pause_s = every_s

    def delete_departed(self, owners_per_request: int = messages.MAX_OWNERS) -> None:
        """Delete data of all owners that left; AcstorError or OSError on failure."""
        owners = sorted(vault_files.owners_in(self._vault.folder))
        for at in range(0, len(owners), owners_per_request):
            some = owners[at : at + owners_per_request]
            seen = {owner: self._seen(owner) for owner in some}
            for owner in set(self._find_departed(some)) & seen.keys():
                self._drop(owner, seen[owner])

    def _seen(self, owner: ids.HostId) -> dict[object_names.VaultDisk, int]:
        disks = [object_names.VaultDisk(owner, disk) for disk in self._vault.list_disks(owner)]
        return {disk: self._vault.latest_connection(disk) for disk in disks}

    def _drop(self, owner: ids.HostId, seen: dict[object_names.VaultDisk, int]) -> None:
        gone = 0
        with contextlib.suppress(errors.VaultRefused):  # the owner returned
            for disk, connection in seen.items():
                went = vault_store.MAX_REMOVED
                while went >= vault_store.MAX_REMOVED and not self._ended.is_set():
                    went = self._vault.delete_disk(disk, connection)
                    gone += went
        if gone:
            LOG.info("%s was removed permanently: deleted %d objects kept for it", owner, gone)


@contextlib.contextmanager
def run_deletion(vault: vault_store.VaultStore, find_departed: FindDeparted) -> Iterator[None]:
    """Run the loop in a thread during the block."""
    ended = threading.Event()
    deletion = OwnerDeletion(vault, find_departed, ended)
    thread = supervision.start("owner deletion", deletion.run, ended)
    try:
        yield
    finally:
        ended.set()
        thread.join(_ENDS_WITHIN_S)
