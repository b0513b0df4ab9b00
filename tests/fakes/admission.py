# SPDX-License-Identifier: Apache-2.0
"""Which hosts a host admits, without a v-node table."""

from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType

from acstor_common.model import ids
from acstor_common.ring import hash_ring


class Admission:
    """Stands in for ``ring_store.RingStore``; ``hosts``: how many hosts addresses have."""

    def __init__(
        self,
        why_not: Callable[[ids.HostId, float], str] = lambda host, not_before_s: "",
        hosts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._why_not, self._hosts = why_not, hosts
        self.ring = hash_ring.Ring(0, ())

    def admission_error(self, host: ids.HostId, not_before_s: float) -> str:
        """Return why a host is refused; empty: it is not."""
        return self._why_not(host, not_before_s)

    def hosts_at(self, ip: str) -> int:
        """Return how many hosts an address has."""
        return self._hosts.get(ip, 0)
