# SPDX-License-Identifier: Apache-2.0
"""Leases: images of which this host keeps its share for other hosts, until they expire."""

import collections
import math

from acstor_common.model import ids
from acstor_common.wire.peer import replica_messages

IMAGES_OF_HOST = replica_messages.MAX_REQUESTS
IMAGES = 1024  # beyond these, the host with the most images loses one
LEASES = 1 << 18  # enough for 1,000 hosts with as many leases as they may have
STEPS = 16  # most candidates to evict that are examined for one lease
LEASE_S = float(replica_messages.MAX_LEASE_S)
"""Long enough to restart the instances of a failed host on another one."""
FORMER = ids.HostId("former-worker")
"""Stands for all hosts with leases from before this worker started; their names are not stored."""


class Leases:
    """The leases of all hosts.

    >>> leases, h2 = Leases(), ids.HostId("h2")
    >>> image = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> leases.grant_lease(h2, image, lease_s=60.0, now_s=10.0), leases.until_s(image)
    (True, 70.0)
    >>> leases.grant_lease(h2, image, lease_s=0.0, now_s=20.0), image in leases
    (True, False)
    """

    def __init__(self) -> None:
        self._until_s: dict[ids.ImageId, dict[ids.HostId, float]] = {}
        self._counts: collections.Counter[ids.HostId] = collections.Counter()
        self._total = 0
        self._charged_to: dict[ids.ImageId, ids.HostId] = {}
        """The host that each image is charged to, one of those that lease it."""
        self._charges: collections.Counter[ids.HostId] = collections.Counter()

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._until_s

    def __len__(self) -> int:
        return len(self._until_s)

    def leased_images(self) -> list[ids.ImageId]:
        """Return the leased images, in order of their first lease."""
        return list(self._until_s)

    def hosts_of(self, image_id: ids.ImageId) -> list[ids.HostId]:
        """Return the hosts that lease an image."""
        return list(self._until_s.get(image_id, ()))

    def has_lease(self, host: ids.HostId, image_id: ids.ImageId) -> bool:
        """Return whether a host leases an image."""
        return host in self._until_s.get(image_id, ())

    def until_s(self, image_id: ids.ImageId) -> float:
        """Return when the last lease of an image ends."""
        return max(self._until_s.get(image_id, {}).values(), default=-math.inf)

    def grant_lease(
        self, host: ids.HostId, image_id: ids.ImageId, lease_s: float, now_s: float
    ) -> bool:
        """Grant a lease of at most LEASE_S, or end it (0); return whether there was capacity."""
        holders = self._until_s.get(image_id, {})
        if lease_s <= 0:
            self._end(host, image_id)
            return True
        if host not in holders and not self._make_room(host, image_id):
            return False
        if host not in holders:
            self._counts[host] += 1
            self._total += 1
        self._until_s.setdefault(image_id, {})[host] = now_s + min(lease_s, LEASE_S)
        payer = self._charged_to.get(image_id, FORMER)
        if payer == FORMER or self._charges[host] + 1 < self._charges[payer]:
            self._charge(image_id, host)
        return True

    def _make_room(self, host: ids.HostId, image_id: ids.ImageId) -> bool:
        limit = IMAGES if host == FORMER else IMAGES_OF_HOST
        if self._counts[host] >= limit or self._total >= LEASES:
            return False
        if image_id in self._until_s or len(self._until_s) < IMAGES:
            return True
        for _ in range(STEPS):
            most = self._who_has_most(host)
            if most is None:
                return False
            newest = next(
                candidate
                for candidate in reversed(self._until_s)
                if self._charged_to[candidate] == most
            )
            heir = min(self._until_s[newest], key=lambda candidate: self._charges[candidate])
            if self._charges[heir] + 1 < self._charges[most]:
                self._charge(newest, heir)
                continue
            for holder in self.hosts_of(newest):
                self._end(holder, newest)
            return True
        return False

    def _who_has_most(self, host: ids.HostId) -> ids.HostId | None:
        """Return the host to take an image from, one with more images than ``host``."""
        enough = self._charges[host] + 1
        others = [candidate for candidate in self._charges if candidate not in (host, FORMER)]
        most = max(others, key=lambda candidate: self._charges[candidate], default=FORMER)
        for candidate in (most, FORMER):
            if candidate != host and self._charges[candidate] > enough:
                return candidate
        return None

    def _charge(self, image_id: ids.ImageId, host: ids.HostId | None) -> None:
        before = self._charged_to.pop(image_id, None)
        if before is not None:
            self._charges[before] -= 1
            if not self._charges[before]:
                del self._charges[before]
        if host is not None:
            self._charged_to[image_id] = host
            self._charges[host] += 1

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
            self._charge(image_id, None)
        elif self._charged_to[image_id] == host:
            self._charge(image_id, min(holders, key=lambda candidate: self._charges[candidate]))

    def end_expired(self, now_s: float) -> None:
        """End expired leases."""
        over = [
            (host, image_id)
            for image_id, holders in self._until_s.items()
            for host, until_s in holders.items()
            if until_s <= now_s
        ]
        for host, image_id in over:
            self._end(host, image_id)
