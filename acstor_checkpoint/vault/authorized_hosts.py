# SPDX-License-Identifier: Apache-2.0
"""Authorization of hosts by the last valid v-node table."""

import threading
import time
from typing import Final

from acstor_checkpoint import agent_files
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.model import clocks
from acstor_common.ring import hash_ring

CHECK_INTERVAL_S: Final = 10.0  # reading the table of a large cloud takes a second or two


class AuthorizedHosts:
    """Follows the v-node table in force; thread-safe."""

    def __init__(self, files: agent_files.AgentFiles, clock: clocks.Clock = time) -> None:
        self._files, self._clock = files, clock
        self._lock = threading.Lock()
        self._table: hash_ring.Ring | None = None
        self._why = ""
        self._looked_s = -CHECK_INTERVAL_S

    def why_refused(self, certificate: certificates.HostCertificate) -> str:
        """Return why an authenticated host is refused; "" if it is not."""
        with self._lock:
            if self._clock.monotonic() - self._looked_s >= CHECK_INTERVAL_S:
                self._look()
            table, why = self._table, self._why
        if table is None:
            return f"no other host is known: {why}"
        if certificates.is_revoked(certificate, table.revoked):
            return "its certificate was revoked"
        if certificate.host not in table:
            return f"it is not in v-node table {table.epoch}"
        return ""

    def hosts_at(self, ip: str) -> int:
        """Return how many hosts have an IP address; blocks only for the first table."""
        if self._table is None:
            with self._lock:
                if self._clock.monotonic() - self._looked_s >= CHECK_INTERVAL_S:
                    self._look()
        table = self._table
        return 0 if table is None else table.hosts_at(ip)

    def _look(self) -> None:
        self._looked_s = self._clock.monotonic()
        try:
            self._table = self._files.read_ring()
        except errors.Unusable as e:
            self._why = str(e)
