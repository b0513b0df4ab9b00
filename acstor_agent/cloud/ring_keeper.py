# SPDX-License-Identifier: Apache-2.0
"""The v-node table in force: the newest that came, from a file or from the control socket.

An older table never replaces a newer one.  The table that was replaced is
remembered for a while, because its homes hold what the new ones have not got yet;
the one before that is forgotten.  What came over the control socket is
kept in the state folder, so a worker that restarts goes on with the last table.
"""

import logging
import pathlib
import time
from collections.abc import Callable

import trio

from acstor_common import errors
from acstor_common import ring
from acstor_common import whole_file

LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0

_Stamp = tuple[int, int, int]


class RingKeeper:
    """Holds the ring.

    :param kept: where a table from the control socket is kept
    :param file: the operator's file, looked at every second; None if there is none
    :param former_s: how long the table that was replaced is remembered
    """

    def __init__(
        self,
        kept: pathlib.Path,
        file: pathlib.Path | None,
        former_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ring = ring.Ring(0, ())
        self._former: ring.Ring | None = None
        self._former_until = 0.0
        self._former_s = former_s
        self._clock = clock
        self._kept = kept
        self._file = file
        self._stamp: _Stamp | None = None
        if kept.exists():
            self._read(kept)
        self._look()

    def current(self) -> ring.Ring:
        """Return the ring in force."""
        return self.ring

    def former(self) -> ring.Ring | None:
        """Return the table before the one in force, if that was replaced not long ago."""
        if self._former is not None and self._clock() >= self._former_until:
            self._former = None
        return self._former

    def put(self, data: bytes) -> ring.Ring:
        """Take a table that was sent, and keep it.

        :raises errors.RingFormatError: it cannot be used
        :raises ValueError: its epoch is not higher than that of the one in force
        """
        new = ring.decode(data, "the table that was sent")
        self.take(new, data)
        return new

    def take(self, new: ring.Ring, data: bytes) -> None:
        """Take a table that was decoded elsewhere from ``data``, and keep it.

        :raises ValueError: its epoch is not higher than that of the one in force
        """
        if new.epoch <= self.ring.epoch:
            raise ValueError(f"epoch {new.epoch} is not higher than {self.ring.epoch}")
        with whole_file.written(self._kept, is_durable=False) as file:
            file.write(data)
        self._use(new)

    async def watch(self) -> None:
        """Follow the operator's file."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            self._look()

    def _look(self) -> None:
        if self._file is None:
            return
        try:
            status = self._file.stat()
        except OSError as e:
            stamp = None
            if self._stamp is not None:
                LOG.warning("ring_file %s: %s; the last table stays in use", self._file, e.strerror)
        else:
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._read(self._file)
        self._stamp = stamp

    def _read(self, path: pathlib.Path) -> None:
        try:
            new = ring.decode(path.read_bytes(), str(path))
        except (OSError, errors.RingFormatError) as e:
            LOG.warning("%s; the last table stays in use", e)
            return
        if new.epoch > self.ring.epoch:
            self._use(new)
        elif new.epoch < self.ring.epoch:
            LOG.warning(
                "%s has epoch %d, older than %d in use; not taken", path, new.epoch, self.ring.epoch
            )
        elif new.hosts != self.ring.hosts:
            LOG.warning(
                "%s has epoch %d, the epoch of a table that differs and is in use; not taken",
                path,
                new.epoch,
            )

    def _use(self, new: ring.Ring) -> None:
        LOG.info("ring epoch %d with %d hosts is in force", new.epoch, len(new.hosts))
        self._former = self.ring if self.ring.hosts and self._former_s else None
        self._former_until = self._clock() + self._former_s
        self.ring = new
