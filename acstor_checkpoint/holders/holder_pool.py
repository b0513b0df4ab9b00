# SPDX-License-Identifier: Apache-2.0
"""Holders from the v-node table, with backoff after failures.

After failures that cost a read of a whole disk the backoff doubles from FIRST_BACKOFF_S to
MAX_BACKOFF_S, so a hostile host costs one such read per disk and day.
"""

import math
import time
from collections.abc import Collection
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from acstor_checkpoint import agent_files
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.holders import holder_placement
from acstor_checkpoint.holders import vault_client
from acstor_common.identity import credentials
from acstor_common.model import addresses
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import backoff

FIRST_BACKOFF_S: Final = 600.0
MAX_BACKOFF_S: Final = 86400.0  # a host that is usable for this time has its failures forgotten


class _Backoff(NamedTuple):
    until_s: float = -math.inf
    costly_failures: int = 0


class HolderPool:
    """Chooses holders among the v-node table's hosts, only ``allowed`` ones if any are named."""

    def __init__(
        self,
        host: ids.HostId,
        files: agent_files.AgentFiles,
        proof: credentials.Credentials,
        vault_port: int,
        allowed: Collection[ids.HostId] = (),
        clock: clocks.Clock = time,
    ) -> None:
        self._host, self._files, self._proof = host, files, proof
        self._vault_port, self._clock = vault_port, clock
        self._allowed = frozenset(allowed)
        self._backoffs: dict[ids.HostId, _Backoff] = {}

    def choose_holders(
        self, disk: ids.ImageId, copies: int, current: Sequence[ids.HostId]
    ) -> Sequence[checkpoint_record.VaultHolder]:
        """Return holders of a disk; Unusable without v-node table."""
        ring = self._files.read_ring()
        chosen = holder_placement.choose_holders(
            ring, self._host, disk, copies, current, self._is_usable
        )
        return [checkpoint_record.VaultHolder(host, self._address(ring, host)) for host in chosen]

    def other_hosts(self) -> Sequence[checkpoint_record.VaultHolder]:
        """Return all hosts but this one; Unusable without v-node table."""
        ring = self._files.read_ring()
        hosts = [ids.HostId(host.host) for host in ring.hosts if host.host != self._host]
        return [checkpoint_record.VaultHolder(host, self._address(ring, host)) for host in hosts]

    def client_of(self, holder: checkpoint_record.VaultHolder) -> vault_client.VaultClient:
        """Return a client of a holder's vault."""
        return vault_client.VaultClient(holder.host, addresses.parse(holder.address), self._proof)

    def record_failure(self, holder: ids.HostId, *, is_costly: bool) -> None:
        """Avoid a holder for a while; see :meth:`holder_group.HolderChooser.record_failure`."""
        now_s, last = self._clock.monotonic(), self._backoffs.get(holder, _Backoff())
        if now_s < last.until_s:  # several workers may report one failure
            return
        failures = last.costly_failures if now_s < last.until_s + MAX_BACKOFF_S else 0
        pause_s = backoff.pause_s(failures if is_costly else 0, FIRST_BACKOFF_S, MAX_BACKOFF_S)
        self._backoffs[holder] = _Backoff(now_s + pause_s, failures + is_costly)

    def _is_usable(self, host: ids.HostId) -> bool:
        is_allowed = not self._allowed or host in self._allowed
        return (
            is_allowed and self._clock.monotonic() >= self._backoffs.get(host, _Backoff()).until_s
        )

    def _address(self, ring: hash_ring.Ring, host: ids.HostId) -> str:
        ip = addresses.parse(ring.address_of(host))[0]
        return addresses.with_port(ip, self._vault_port)
