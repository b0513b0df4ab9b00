# SPDX-License-Identifier: Apache-2.0
"""Scrubber: reads the vault's files slowly, and removes corrupt ones; owners send them again."""

import errno
import logging
import pathlib
import threading
import time
from typing import Final

from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import clocks

LOG = logging.getLogger(__name__)

BYTES_PER_S: Final = 4 << 20  # 100 GiB take seven hours
EVERY_S: Final = 86400.0  # between two passes
FIRST_S: Final = 3600.0  # least delay after the daemon's start, when the host is busy
MAX_UNREADABLE: Final = 100
"""Files per pass; more indicate a fault of the whole disk, maybe transient."""
_CORRUPT: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""Errors of corrupt data: medium error, or a file system's checksum."""
_LAST: Final = ".scrubbed"  # its modification time is the end of the last pass


def ended_s(folder: pathlib.Path) -> float | None:
    """Return the wall clock of the last pass's end; None: unknown."""
    try:
        return (folder / _LAST).stat().st_mtime
    except OSError:
        return None


class Scrubber:
    """The scrubbing loop."""

    def __init__(
        self,
        vault: vault_store.VaultStore,
        ended: threading.Event,
        clock: clocks.Clock = time,
        bytes_per_s: int = BYTES_PER_S,
        max_unreadable: int = MAX_UNREADABLE,
    ) -> None:
        self._vault, self._ended, self._clock = vault, ended, clock
        self._bytes_per_s, self._max_unreadable = bytes_per_s, max_unreadable

    def run(self) -> None:
        """Scrub periodically until ``ended`` is set."""
        pause_s = self.first_pause_s()
        while not self._ended.wait(pause_s):
            try:
                self.scrub_all()
                if not self._ended.is_set():
                    (self._vault.folder / _LAST).touch()
            except OSError as e:
                LOG.error("cannot scan the vault: %s", e)
            pause_s = EVERY_S

    def first_pause_s(self) -> float:
        """Return the delay after a start, at most EVERY_S even if the clock was set back."""
        last_s = ended_s(self._vault.folder)
        if last_s is None:
            return FIRST_S
        return min(max(FIRST_S, EVERY_S - (self._clock.time() - last_s)), EVERY_S)

    def scrub_all(self) -> int:
        """Read all; return how many files were removed, or raise OSError if many are unreadable."""
        gone, unreadable = 0, 0
        for path in self._vault.iter_all():
            try:
                with self._vault.open_object(*path) as kept:
                    length = kept.length
            except errors.ChunkInvalid:
                gone += 1
            except errors.ChunkMissing:
                continue  # deleted meanwhile
            except OSError as e:
                unreadable += 1
                if unreadable > self._max_unreadable:
                    raise
                gone += self._remove_unreadable(*path, e)
            else:
                if self._ended.wait(length / self._bytes_per_s):
                    break
        return gone

    def _remove_unreadable(
        self, disk: object_names.VaultDisk, kind: object_names.ObjectKind, name: bytes, why: OSError
    ) -> int:
        """Remove an unreadable file if its data is lost; return how many."""
        LOG.error("%s %s of %s cannot be read: %s", kind, name.hex(), disk.disk, why)
        if why.errno not in _CORRUPT:
            return 0
        try:
            return self._vault.remove(disk, kind, name)
        except OSError as e:
            LOG.error("%s %s of %s cannot be removed: %s", kind, name.hex(), disk.disk, e)
            return 0
