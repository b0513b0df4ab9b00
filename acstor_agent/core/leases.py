# SPDX-License-Identifier: Apache-2.0
"""Which images other hosts have asked this one to keep its shares of, and for how long.

The one rule: what others can make this host remember is bounded, for each of them and for all, and
ends by itself.

Times are seconds of one clock that never goes back, given by the caller.
"""

import collections
import math

from acstor_common import ids
from acstor_common import peer_keeping

IMAGES_OF_HOST = peer_keeping.MAX_KEEPS
IMAGES = 1024
LEASES = 16384
LEASE_S = float(peer_keeping.MAX_LEASE_S)
"""A host that died may have its instances started again on another one: so long that is waited
for."""
FORMER = ids.HostId("former-worker")
"""Holds what was leased before this worker was started; which hosts did is not remembered."""


class Leases:
    """The leases of all hosts.

    >>> leases, h2 = Leases(), ids.HostId("h2")
    >>> image = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> leases.told(h2, image, lease_s=60.0, now_s=10.0), leases.until_s(image)
    (True, 70.0)
    >>> leases.told(h2, image, lease_s=0.0, now_s=20.0), image in leases
    (True, False)
    """

    def __init__(self) -> None:
        self._until_s: dict[ids.ImageId, dict[ids.HostId, float]] = {}
        self._counts: collections.Counter[ids.HostId] = collections.Counter()
        self._total = 0

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._until_s

    def __len__(self) -> int:
        return len(self._until_s)

    def images(self) -> list[ids.ImageId]:
        """Return the images that are leased, those asked for first before the others."""
        return list(self._until_s)

    def hosts(self, image_id: ids.ImageId) -> list[ids.HostId]:
        """Return who asked for an image."""
        return list(self._until_s.get(image_id, ()))

    def has(self, host: ids.HostId, image_id: ids.ImageId) -> bool:
        """Say whether a host asked for an image."""
        return host in self._until_s.get(image_id, ())

    def until_s(self, image_id: ids.ImageId) -> float:
        """Return when the last lease of an image ends."""
        return max(self._until_s.get(image_id, {}).values(), default=-math.inf)

    def told(self, host: ids.HostId, image_id: ids.ImageId, lease_s: float, now_s: float) -> bool:
        """Note what a host has asked for; say whether there was room for it.

        :param lease_s: longer than LEASE_S counts as that; 0 takes back what was asked for
        """
        holders = self._until_s.get(image_id, {})
        if lease_s <= 0:
            self._end(host, image_id)
            return True
        if host not in holders and not self._has_room(host, image_id):
            return False
        if host not in holders:
            self._counts[host] += 1
            self._total += 1
        self._until_s.setdefault(image_id, {})[host] = now_s + min(lease_s, LEASE_S)
        return True

    def _has_room(self, host: ids.HostId, image_id: ids.ImageId) -> bool:
        if image_id not in self._until_s and len(self._until_s) >= IMAGES:
            return False
        limit = IMAGES if host == FORMER else IMAGES_OF_HOST
        return self._counts[host] < limit and self._total < LEASES

    def _end(self, host: ids.HostId, image_id: ids.ImageId) -> None:
        holders = self._until_s.get(image_id, {})
        if holders.pop(host, None) is None:
            return
        self._counts[host] -= 1
        self._total -= 1
        if not self._counts[host]:
            del self._counts[host]
        if not holders:
            del self._until_s[image_id]

    def expire(self, now_s: float) -> None:
        """End what is over."""
        over = [
            (host, image_id)
            for image_id, holders in self._until_s.items()
            for host, until_s in holders.items()
            if until_s <= now_s
        ]
        for host, image_id in over:
            self._end(host, image_id)
