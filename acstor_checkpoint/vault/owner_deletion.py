# SPDX-License-Identifier: Apache-2.0
"""Drops what the vault keeps for hosts that are gone for good, and of which nothing is needed.

An owner has its holders drop what it needs no more.  Who is gone does so no more, so each vault
asks the decision service which of those for whom it keeps something are gone.

Only a clear word of the service lets anything go, and never what an owner has
spoken of since it was asked for: it may have come back.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Final

from acstor_checkpoint.vault import object_names
from acstor_checkpoint.vault import vault_files
from acstor_checkpoint.vault import vault_store
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_common.wire import checkpoint_messages as messages

LOG = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
FIRST_S: Final = 60.0
"""From the start of the daemon: then the broker is there, and what was asked for is under way."""
_ENDS_WITHIN_S: Final = 60.0

FindGone = Callable[[Collection[ids.HostId]], Collection[ids.HostId]]
"""Asks the decision service which of these hosts are gone and have no checkpoint any more.

Raises errors.DecisionUnreachable, or errors.NotAuthenticated, if it does not say it."""


class OwnerDeletion:
    """Asks now and then; for a thread of its own.

    :param ended: set when it is to end
    """

    def __init__(
        self, vault: vault_store.VaultStore, gone: FindGone, ended: threading.Event
    ) -> None:
        self._vault, self._gone, self._ended = vault, gone, ended
        self._faults = log_once.LogOnce(LOG)

    def run(self) -> None:
        """Ask until the end; what cannot be done now is tried the next time."""
        pause_s = FIRST_S
        while not self._ended.wait(pause_s):
            try:
                self.delete_departed()
                self._faults.log_warning("")
            except (errors.AcstorError, OSError) as e:
                self._faults.log_warning(f"orphaned data of hosts is not deleted yet: {e}")
            except Exception:
                LOG.exception("orphaned data of hosts is not deleted yet")
            pause_s = EVERY_S

    def delete_departed(self) -> None:
        """Ask of all for whom something is kept, and drop what is needed no more.

        :raises errors.AcstorError: the decision service does not say it
        :raises OSError: something cannot be removed
        """
        owners = sorted(vault_files.owners_in(self._vault.folder))
        for at in range(0, len(owners), messages.MAX_OWNERS):
            some = owners[at : at + messages.MAX_OWNERS]
            seen = {owner: self._seen(owner) for owner in some}
            for owner in set(self._gone(some)) & seen.keys():
                self._drop(owner, seen[owner])

    def _seen(self, owner: ids.HostId) -> dict[object_names.Disk, int]:
        """Return which connection spoke last of each disk of a host."""
        disks = [object_names.Disk(owner, disk) for disk in self._vault.list_disks(owner)]
        return {disk: self._vault.latest_connection(disk) for disk in disks}

    def _drop(self, owner: ids.HostId, seen: dict[object_names.Disk, int]) -> None:
        gone = 0
        with contextlib.suppress(errors.VaultRefused):  # it is back
            for disk, connection in seen.items():
                went = vault_store.MAX_REMOVED
                while went >= vault_store.MAX_REMOVED and not self._ended.is_set():
                    went = self._vault.drop(disk, connection)
                    gone += went
        if gone:
            LOG.info("%s is gone for good, and %d things that were kept for it", owner, gone)


@contextlib.contextmanager
def run_deletion(vault: vault_store.VaultStore, gone: FindGone) -> Iterator[None]:
    """Ask as long as the block lasts."""
    ended = threading.Event()
    forgetting = OwnerDeletion(vault, gone, ended)
    thread = supervision.start("forgetting", forgetting.run, ended)
    try:
        yield
    finally:
        ended.set()
        thread.join(_ENDS_WITHIN_S)
