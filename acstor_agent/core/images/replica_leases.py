# SPDX-License-Identifier: Apache-2.0
"""Leases: other hosts lease this host's replicas of images until the leases expire."""

import collections
import math

from acstor_common.model import ids
from acstor_common.wire.peer import replica_messages

MAX_IMAGES_PER_HOST = replica_messages.MAX_REQUESTS
MAX_IMAGES = 1024  # of all hosts; beyond it, one of the host with the most is evicted
MAX_LEASES = 1 << 18  # enough for 1,000 hosts with as many leases as they may have
MAX_CANDIDATES = 16  # images examined for eviction, for one lease
MAX_LEASE_S = float(replica_messages.MAX_LEASE_S)
"""Long enough to restart the instances of a failed host on another one."""
FORMER_HOSTS = ids.HostId("former-worker")
"""Stands for all hosts with leases of a former worker, whose names are not stored."""


class Leases:
    """The leases of all hosts.

    >>> leases, h2 = Leases(), ids.HostId("h2")
    >>> image = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> leases.grant_lease(h2, image, lease_s=60.0, now_s=10.0), leases.expires_s(image)
    (True, 70.0)
    >>> leases.grant_lease(h2, image, lease_s=0.0, now_s=20.0), image in leases
    (True, False)
    """

    def __init__(self, max_images: int = MAX_IMAGES, max_leases: int = MAX_LEASES) -> None:
        self._max_images, self._max_leases = max_images, max_leases
        self._until_s: dict[ids.ImageId, dict[ids.HostId, float]] = {}
        self._counts: collections.Counter[ids.HostId] = collections.Counter()
        self._total = 0
        self._charged_to: dict[ids.ImageId, ids.HostId] = {}
        """The host that each image is charged to, one of those that lease it."""
        self._charges: collections.Counter[ids.HostId] = collections.Counter()
        self._hosts_by_charge: collections.Counter[int] = collections.Counter()
        self._highest_charge = 0

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

    def expires_s(self, image_id: ids.ImageId) -> float:
        """Return when the last lease of an image ends."""
        return max(self._until_s.get(image_id, {}).values(), default=-math.inf)

    def grant_lease(
        self, host: ids.HostId, image_id: ids.ImageId, lease_s: float, now_s: float
    ) -> bool:
        """Grant or extend a lease, or end it (0); return False beyond a limit."""
        holders = self._until_s.get(image_id, {})
        if lease_s <= 0:
            self._end(host, image_id)
            return True
        if host not in holders and not self._ensure_capacity(host, image_id):
            return False
        if host not in holders:
            self._counts[host] += 1
            self._total += 1
        self._until_s.setdefault(image_id, {})[host] = now_s + min(lease_s, MAX_LEASE_S)
        charged = self._charged_to.get(image_id, FORMER_HOSTS)
        if charged == FORMER_HOSTS or self._charges[host] + 1 < self._charges[charged]:
            self._charge(image_id, host)
        return True

    def _ensure_capacity(self, host: ids.HostId, image_id: ids.ImageId) -> bool:
        limit = self._max_images if host == FORMER_HOSTS else MAX_IMAGES_PER_HOST
        if self._counts[host] >= limit or self._total >= self._max_leases:
            return False
        if image_id in self._until_s or len(self._until_s) < self._max_images:
            return True
        for _ in range(MAX_CANDIDATES):
            most = self._most_charged_host(host)
            if most is None:
                return False
            newest = next(
                candidate
                for candidate in reversed(self._until_s)
                if self._charged_to[candidate] == most
            )
            next_host = min(self._until_s[newest], key=lambda candidate: self._charges[candidate])
            if self._charges[next_host] + 1 < self._charges[most]:
                self._charge(newest, next_host)
                continue
            for holder in self.hosts_of(newest):
                self._end(holder, newest)
            return True
        return False

    def _most_charged_host(self, host: ids.HostId) -> ids.HostId | None:
        """Return a host to evict an image of, one with more images than ``host``."""
        enough = self._charges[host] + 1
        if self._highest_charge <= enough:
            return None  # without a search, since a host may repeat refused requests
        others = [candidate for candidate in self._charges if candidate not in (host, FORMER_HOSTS)]
        most = max(others, key=lambda candidate: self._charges[candidate], default=FORMER_HOSTS)
        for candidate in (most, FORMER_HOSTS):
            if candidate != host and self._charges[candidate] > enough:
                return candidate
        return None

    def _charge(self, image_id: ids.ImageId, host: ids.HostId | None) -> None:
        before = self._charged_to.pop(image_id, None)
        if before is not None:
            self._change_charge(before, -1)
        if host is not None:
            self._charged_to[image_id] = host
            self._change_charge(host, 1)

    def _change_charge(self, host: ids.HostId, change: int) -> None:
        before = self._charges[host]
        after = self._charges[host] = before + change
        if not after:
            del self._charges[host]
        self._hosts_by_charge[before] -= 1
        self._hosts_by_charge[after] += 1
        self._highest_charge = max(self._highest_charge, after)
        if not self._hosts_by_charge[self._highest_charge]:
            self._highest_charge -= 1  # the host had the most, and has one less now

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
