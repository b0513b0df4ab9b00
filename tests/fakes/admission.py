# SPDX-License-Identifier: Apache-2.0
"""A host admission check without a v-node table."""

from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType

from acstor_common.model import ids
from acstor_common.ring import hash_ring


class Admission:
    """Stands in for ``ring_store.RingStore``.

    :param hosts: the number of hosts, by IP address
    """

    def __init__(
        self,
        why_not: Callable[[ids.HostId, float], str] = lambda host, not_before_s: "",
        hosts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._why_not, self._hosts = why_not, hosts
        self.ring = hash_ring.Ring(0, ())

    def admission_error(self, host: ids.HostId, not_before_s: float) -> str:
        """Return why a host is refused, "" if it is admitted."""
        return self._why_not(host, not_before_s)

    def hosts_at(self, ip: str) -> int:
        """Return the number of hosts at an IP address."""
        return self._hosts.get(ip, 0)
