# SPDX-License-Identifier: Apache-2.0
"""Negative caches: images that the source denies, and chunks that hosts deny.

A chunk counts as lost only after repeated denials for ``lost_after_s``, during which no host has
left the v-node table: a source may deny an image wrongly for a while, and the host may restart.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

from acstor_common.model import ids
from acstor_common.util import lru_table

ASKED_EVERY_S = 60.0  # longest gap between two denials that count as one period
IMAGES = 1024  # images that are remembered; for a dropped one the period starts again


class NegativeCache:
    """The denied images, and the hosts that have left the table.

    >>> absences = NegativeCache(900.0)
    >>> image_id = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> absences.record_denial(image_id, 0.0), absences.record_denial(image_id, 50.0)
    (900.0, 850.0)
    >>> absences.record_denial(image_id, 200.0)  # the gap is too long
    900.0
    >>> absences.clear_denial(image_id)
    >>> absences.record_denial(image_id, 210.0)
    900.0
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._denied: lru_table.LruTable[ids.ImageId, tuple[float, float]] = lru_table.LruTable(
            IMAGES
        )
        self._hosts: dict[ids.HostId, float] = {}

    def __len__(self) -> int:
        return len(self._denied)

    def record_denial(self, image_id: ids.ImageId, now_s: float) -> float:
        """Record that the source denies an image; return the seconds until that counts.

        Once it counts, it keeps counting while the image is requested every ``lost_after_s``.
        """
        first_s, last_s = self._denied.get(image_id, (now_s, now_s))
        is_believed = last_s - first_s >= self._lost_after_s
        longest_s = max(ASKED_EVERY_S, self._lost_after_s) if is_believed else ASKED_EVERY_S
        if now_s - last_s > longest_s:
            first_s = now_s
        self._denied[image_id] = first_s, now_s
        return max(0.0, first_s + self._lost_after_s - now_s)

    def clear_denial(self, image_id: ids.ImageId) -> None:
        """Record that the source gave a chunk of an image."""
        self._denied.pop(image_id, None)

    def departed_hosts(self, hosts: Iterable[ids.HostId], now_s: float) -> list[ids.HostId]:
        """Return hosts of calls within ``lost_after_s`` that are not in ``hosts`` now.

        >>> absences = NegativeCache(900.0)
        >>> absences.departed_hosts(["h1", "h2"], 0.0), absences.departed_hosts(["h1"], 899.0)
        ([], ['h2'])
        >>> absences.departed_hosts(["h1"], 900.0)
        []
        """
        since_s = now_s - self._lost_after_s
        seen = {host: at_s for host, at_s in self._hosts.items() if at_s > since_s}
        own_host = dict.fromkeys(hosts, now_s)
        self._hosts = seen | own_host
        return sorted(seen.keys() - own_host.keys())


What = TypeVar("What", bound=Hashable)

REMEMBER_S = 10.0  # seconds for which a denial counts, however often a guest reads the chunk
DENIALS = 65_536  # denials that are remembered, over all chunks


class HostDenials(Generic[What]):
    """The hosts that have denied chunks, so that broadcast lookups ask each host once.

    >>> denials, cid = HostDenials(), ids.cid_of(b"a chunk")
    >>> denials.hosts_to_ask(cid, ["h2", "h3"], 0.0)
    ['h2', 'h3']
    >>> denials.record_denial(cid, "h3", 0.0)
    >>> denials.hosts_to_ask(cid, ["h2", "h3"], 9.9), denials.hosts_to_ask(cid, ["h2", "h3"], 10.0)
    (['h2'], ['h2', 'h3'])
    """

    def __init__(self, limit: int = DENIALS) -> None:
        self._denied = lru_table.LruTable[tuple[What, ids.HostId], float](limit)

    def __len__(self) -> int:
        return len(self._denied)

    def hosts_to_ask(
        self, what: What, hosts: Iterable[ids.HostId], now_s: float
    ) -> list[ids.HostId]:
        """Return those of ``hosts`` that have not denied a chunk recently."""
        denied, since_s = self._denied, now_s - REMEMBER_S
        return [host for host in hosts if denied.get((what, host), since_s) <= since_s]

    def record_denial(self, what: What, host: ids.HostId, now_s: float) -> None:
        """Record that a host denied a chunk."""
        self._denied[what, host] = now_s
