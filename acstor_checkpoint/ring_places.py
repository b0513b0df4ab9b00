# SPDX-License-Identifier: Apache-2.0
"""Holders as the v-node table gives them.

A host that failed is left alone for a while, and then as good as any.
"""

import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Final

from acstor_checkpoint import holders
from acstor_checkpoint import record
from acstor_checkpoint import vault_client
from acstor_common import addresses
from acstor_common import credentials as credentials_
from acstor_common import ids
from acstor_common import ring as ring_

_AVOIDED_S: Final = 600.0


class RingPlaces:
    """Chooses among the hosts of the v-node table.

    :param ring: returns the table
    :param proof: what this host proves to vaults
    :param vault_port: on which each host's vault listens, at the address of its agent
    :param only: hosts that may be chosen; none: all
    """

    def __init__(
        self,
        host: ids.HostId,
        ring: Callable[[], ring_.Ring],
        proof: credentials_.Credentials,
        vault_port: int,
        only: Collection[ids.HostId] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._ring, self._proof = host, ring, proof
        self._vault_port, self._clock = vault_port, clock
        self._only = frozenset(only)
        self._avoided: dict[ids.HostId, float] = {}

    def choose(
        self, disk: ids.ImageId, copies: int, current: Sequence[ids.HostId]
    ) -> Sequence[record.Holder]:
        """Return holders of a disk.

        :raises errors.Unusable: there is no v-node table
        """
        ring = self._ring()
        chosen = holders.choose(ring, self._host, disk, copies, current, self._is_usable)
        return [record.Holder(host, self._address(ring, host)) for host in chosen]

    def others(self) -> Sequence[record.Holder]:
        """Return all hosts but this one.

        :raises errors.Unusable: there is no v-node table
        """
        ring = self._ring()
        hosts = [ids.HostId(host.host) for host in ring.hosts if host.host != self._host]
        return [record.Holder(host, self._address(ring, host)) for host in hosts]

    def client(self, holder: record.Holder) -> vault_client.VaultClient:
        """Return who asks the vault of a holder."""
        return vault_client.VaultClient(holder.host, addresses.parse(holder.address), self._proof)

    def failed(self, holder: ids.HostId) -> None:
        """Choose this one no more for a while."""
        self._avoided[holder] = self._clock() + _AVOIDED_S

    def _is_usable(self, host: ids.HostId) -> bool:
        is_allowed = not self._only or host in self._only
        return is_allowed and self._clock() >= self._avoided.get(host, 0.0)

    def _address(self, ring: ring_.Ring, host: ids.HostId) -> str:
        ip = addresses.parse(ring.address_of(host))[0]
        return f"[{ip}]:{self._vault_port}" if ":" in ip else f"{ip}:{self._vault_port}"
