# SPDX-License-Identifier: Apache-2.0
"""Reads what the vault keeps, again and again, so that what a disk forgot is found in time.

The one rule: it takes little of the disk, whatever the vault holds.  What it finds altered is
removed by the vault; its owner, who asks what is missing before each checkpoint, sends it anew.
"""

import logging
import threading
from typing import Final

from acstor_checkpoint import vault as vault_
from acstor_common import errors

LOG = logging.getLogger(__name__)

BYTES_PER_S: Final = 4 << 20
"""100 GiB are read in seven hours."""
EVERY_S: Final = 86400.0
"""From the end of one pass to the next, so that a small vault is not read all day."""


class Scrubbing:
    """Passes over a vault; for a thread of its own.

    :param ended: set when it is to end
    """

    def __init__(self, vault: vault_.Vault, ended: threading.Event) -> None:
        self._vault, self._ended = vault, ended

    def run(self) -> None:
        """Go over the vault until the end; what cannot be read now is tried in the next pass."""
        while not self._ended.wait(EVERY_S):
            try:
                self.once()
            except OSError as e:
                LOG.error("the vault cannot be looked through: %s", e)

    def once(self) -> int:
        """Read everything once; return how much was removed.

        :raises OSError: something cannot be read
        """
        gone = 0
        for disk, kind, name in self._vault.everything():
            try:
                with self._vault.opened(disk, kind, name) as kept:
                    length = kept.length
            except errors.ChunkInvalid:
                gone += 1
            except errors.ChunkMissing:
                continue  # dropped meanwhile
            else:
                if self._ended.wait(length / BYTES_PER_S):
                    break
        return gone
