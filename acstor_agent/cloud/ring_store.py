# SPDX-License-Identifier: Apache-2.0
"""Keeps the current v-node table, from the service, a file or the control socket.

A table of the service must be signed; the next start verifies the stored one again, and deletes an
invalid one. :mod:`acstor_agent.core.cloud.table_rules` decides which table replaces
which. The replaced one stays valid for a while: its homes have chunks that the new ones lack.
"""

import contextlib
import logging
import pathlib
import time

import msgspec
import trio

from acstor_agent.cloud import message_signing
from acstor_agent.core.cloud import table_rules
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import atomic_file
from acstor_common.wire import decision_messages

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
FORMER_TABLE_LIFETIME_S = 3600.0
"""How long the replaced table stays valid; the next table ends it earlier.

Meanwhile, new homes ask its homes before the source, and its hosts may connect.
"""
MAX_STORED_BYTES = 2 * hash_ring.MAX_FILE_BYTES + 1024
"""Limit of the stored file: a JSON string with the table's JSON, whose quotes are escaped."""

_Stamp = tuple[int, int, int, int]


class RingStore:
    """Holds the current table.

    :param stored_path: stores the current table, unless it came from the operator's file
    :param operator_file: a table that the operator may change, checked every second; or None
    :param identity: has the trusted signers; without any, a stored signed table is not used
    """

    def __init__(
        self,
        stored_path: pathlib.Path,
        operator_file: pathlib.Path | None,
        former_lifetime_s: float = 0.0,
        clock: clocks.Clock = time,
        *,
        identity: identity_files.IdentityFiles | None = None,
    ) -> None:
        self.ring = hash_ring.Ring(0, ())
        self.is_signed = False
        self._former: hash_ring.Ring | None = None
        self._former_until = 0.0
        self._former_lifetime_s = former_lifetime_s
        self._clock = clock
        self._stored_path = stored_path
        self._operator_file = operator_file
        self._identity = identity
        self._file_stamp: _Stamp | None = None
        if stored_path.exists():
            self._load_stored()
        self._check_file()

    def current_ring(self) -> hash_ring.Ring:
        """Return the current table."""
        return self.ring

    def former_ring(self) -> hash_ring.Ring | None:
        """Return the replaced table while it is valid, else None."""
        if self._former is not None and self._clock.monotonic() >= self._former_until:
            self._former = None
        return self._former

    def reported_epoch(self) -> int:
        """Return the epoch to report to the decision service; 0 for an operator's table."""
        return self.ring.epoch if self.is_signed else 0

    def admission_error(self, host: ids.HostId, not_before_s: float) -> str:
        """Return why a host may not connect; "" if it may (see ``hello_exchange.Admission``)."""
        return table_rules.admission_error(host, not_before_s, self.ring, self.former_ring())

    def hosts_at(self, ip: str) -> int:
        """Return how many hosts have an IP address: by the current or former table, if more."""
        former = self.former_ring()
        return max(self.ring.hosts_at(ip), former.hosts_at(ip) if former else 0)

    def set_operator_table(self, data: bytes) -> hash_ring.Ring:
        """Activate and store a table; a host with trusted signers drops it at the next start.

        :raises errors.RingFormatError: it is malformed
        :raises ValueError: it may not replace the current one
        """
        new = hash_ring.decode(data, "the table that was sent")
        self._replace_table(new, decision_messages.RingTable(new.epoch, data.decode(), ""))
        return new

    def rejection_reason(self, epoch: int) -> str:
        """Return why a signed table with this epoch cannot replace the current one, or ""."""
        return table_rules.rejection_reason(
            epoch, self.ring.epoch, is_signed=True, is_current_signed=self.is_signed
        )

    def accept_table(self, new: hash_ring.Ring, sent: decision_messages.RingTable) -> None:
        """Activate and store a table of the service; raise ValueError if it may not replace ours.

        The caller has verified ``sent`` by :func:`message_signing.verify_table`.
        """
        self._replace_table(new, sent)

    def _replace_table(self, new: hash_ring.Ring, sent: decision_messages.RingTable) -> None:
        is_signed = bool(sent.signature)
        why = table_rules.rejection_reason(
            new.epoch, self.ring.epoch, is_signed=is_signed, is_current_signed=self.is_signed
        )
        if why:
            raise ValueError(why)
        self._store_table(sent)
        self._activate(new, is_signed=is_signed)

    def _store_table(self, sent: decision_messages.RingTable) -> None:
        try:
            with atomic_file.atomic_write(self._stored_path, 0o600, is_durable=False) as file:
                file.write(msgspec.json.encode(sent))
        except OSError as e:
            LOG.warning("ring epoch %d cannot be stored for the next start: %s", sent.epoch, e)

    def _load_stored(self) -> None:
        try:
            new, is_signed = self._decode_stored()
        except errors.Unusable as e:
            LOG.warning("%s; it is not used", e)
        except (OSError, msgspec.DecodeError, UnicodeError, errors.AcstorError) as e:
            LOG.warning("dropping the stored table: %s: %s", self._stored_path, e)
            with contextlib.suppress(OSError):  # a read-only folder: the next start drops it again
                self._stored_path.unlink(missing_ok=True)
        else:
            self._activate(new, is_signed=is_signed)

    def _decode_stored(self) -> tuple[hash_ring.Ring, bool]:
        """Return the stored table and whether it is signed; raise Unusable without signers."""
        with self._stored_path.open("rb") as file:
            raw = file.read(MAX_STORED_BYTES + 1)
        if len(raw) > MAX_STORED_BYTES:
            raise errors.RingFormatError("the stored table", MAX_STORED_BYTES, "it is too long")
        sent = msgspec.json.decode(raw, type=decision_messages.RingTable)
        signers = self._identity.signer_keys() if self._identity else ()
        if sent.signature and not signers:
            raise errors.Unusable(
                f"the v-node table in {self._stored_path}", message_signing.NO_SIGNERS
            )
        if signers:
            new = message_signing.verify_table(sent, signers)
        else:
            new = hash_ring.decode(sent.table.encode(), "the stored table")
        if why := table_rules.rejection_reason(
            new.epoch, 0, is_signed=bool(sent.signature), is_current_signed=False
        ):
            raise errors.NotAuthenticated("the stored table", why)
        return new, bool(sent.signature)

    async def watch_file(self) -> None:
        """Check the operator's file every second, forever."""
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self._check_file()

    def _check_file(self) -> None:
        if self._operator_file is None:
            return
        try:
            status = self._operator_file.stat()
        except OSError as e:
            stamp = None
            if self._file_stamp is not None:
                LOG.warning(
                    "ring_file %s: %s; keeping the last table", self._operator_file, e.strerror
                )
        else:
            times_ns = status.st_mtime_ns, status.st_ctime_ns  # ctime: it became readable
            stamp = status.st_ino, status.st_size, *times_ns
            if stamp != self._file_stamp:
                self._load_file(self._operator_file)
        self._file_stamp = stamp

    def _load_file(self, path: pathlib.Path) -> None:
        try:
            new = hash_ring.decode(path.read_bytes(), str(path))
        except (OSError, errors.RingFormatError) as e:
            LOG.warning("%s; keeping the last table", e)
            return
        why = table_rules.rejection_reason(
            new.epoch, self.ring.epoch, is_signed=False, is_current_signed=self.is_signed
        )
        if not why:
            self._activate(new, is_signed=False)
        elif self.is_signed or new.epoch >= table_rules.EPOCH_END:
            LOG.warning("%s is not accepted: %s", path, why)
        elif new.epoch < self.ring.epoch:
            LOG.warning(
                "%s has epoch %d, older than %d in use; not accepted",
                path,
                new.epoch,
                self.ring.epoch,
            )
        elif new.hosts != self.ring.hosts:
            LOG.warning(
                "%s has epoch %d, but differs from the table of this epoch in use; not accepted",
                path,
                new.epoch,
            )

    def _activate(self, new: hash_ring.Ring, *, is_signed: bool) -> None:
        LOG.info("ring epoch %d with %d hosts is in force", new.epoch, len(new.hosts))
        self.is_signed = is_signed
        self._former = self.ring if self.ring.hosts and self._former_lifetime_s else None
        self._former_until = self._clock.monotonic() + self._former_lifetime_s
        self.ring = new
