# SPDX-License-Identifier: Apache-2.0
"""Reads what the vault keeps, again and again, so that what a disk forgot is found in time.

It takes little of the disk, whatever the vault holds.  What it finds altered is removed by the
vault; its owner, who asks what is missing before each checkpoint, sends it anew.  So is what
the disk cannot read any more.
"""

import errno
import logging
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Final

from acstor_checkpoint.vault import object_names
from acstor_checkpoint.vault import vault_store
from acstor_common import errors

LOG = logging.getLogger(__name__)

BYTES_PER_S: Final = 4 << 20
"""100 GiB are read in seven hours."""
EVERY_S: Final = 86400.0
"""From the end of one pass to the next, so that a small vault is not read all day."""
FIRST_S: Final = 3600.0
"""From the start of the daemon at least: a host that was just started has other things to read.
Not a day, for who starts a daemon every day would have none."""
MAX_UNREADABLE: Final = 100
"""Files of one pass.  Where there are more it is the disk as a whole, or the way to it, which may
come back; the rest of what it keeps is not removed."""
_SPOILT: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""How kernels say that the bytes of a file are gone: the medium, a file system's own checksum."""
_LAST: Final = ".scrubbed"
"""When it was changed is when the last pass ended."""


def ended_s(folder: pathlib.Path) -> float | None:
    """Return when the last pass over a vault ended, by the wall clock; None: it is not known."""
    try:
        return (folder / _LAST).stat().st_mtime
    except OSError:
        return None


class Scrubber:
    """Passes over a vault; for a thread of its own.

    :param ended: set when it is to end
    :param wall: wall clock
    """

    def __init__(
        self,
        vault: vault_store.VaultStore,
        ended: threading.Event,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._vault, self._ended, self._wall = vault, ended, wall

    def run(self) -> None:
        """Go over the vault until the end; what cannot be read now is tried in the next pass."""
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
        """Return how long a daemon that was just started waits: a pass may have ended not long ago.

        A clock that was set back makes it no longer than from one pass to the next.
        """
        last_s = ended_s(self._vault.folder)
        if last_s is None:
            return FIRST_S
        return min(max(FIRST_S, EVERY_S - (self._wall() - last_s)), EVERY_S)

    def scrub_all(self) -> int:
        """Read everything once; return how much was removed.

        :raises OSError: more than MAX_UNREADABLE files cannot be read
        """
        gone, unreadable = 0, 0
        for one in self._vault.iter_all():
            try:
                with self._vault.open_object(*one) as kept:
                    length = kept.length
            except errors.ChunkInvalid:
                gone += 1
            except errors.ChunkMissing:
                continue  # dropped meanwhile
            except OSError as e:
                unreadable += 1
                if unreadable > MAX_UNREADABLE:
                    raise
                gone += self._given_up(*one, e)
            else:
                if self._ended.wait(length / BYTES_PER_S):
                    break
        return gone

    def _given_up(
        self, disk: object_names.Disk, kind: object_names.Kind, name: bytes, why: OSError
    ) -> int:
        """Have what cannot be read removed, if its bytes are gone; return how much was."""
        LOG.error("%s %s of %s cannot be read: %s", kind, name.hex(), disk.disk, why)
        if why.errno not in _SPOILT:
            return 0
        try:
            return self._vault.remove(disk, kind, name)
        except OSError as e:
            LOG.error("%s %s of %s cannot be removed: %s", kind, name.hex(), disk.disk, e)
            return 0
