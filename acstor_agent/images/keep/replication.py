# SPDX-License-Identifier: Apache-2.0
"""Replication: hosts ask each other to keep their shares of images.

This host regularly leases from the others the images that its instances use, and reports to each
the state of its leases here (``core/images/replica_holders.py``, ``replica_leases.py``).
Leased images are filled after its own (:mod:`hydration`). A lease only names an image: the contents
come from this host's own source, and all effects of leases are bounded.
"""

import collections
import dataclasses
import logging
import time
from typing import NamedTuple

import trio

from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import replica_holders
from acstor_agent.core.images import replica_leases
from acstor_agent.core.images import replica_placement
from acstor_agent.engine_io import exchange
from acstor_agent.images.image import mirrors
from acstor_agent.images.keep import background_fill
from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import lru_table
from acstor_common.util import token_buckets
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import replica_messages

LOG = logging.getLogger(__name__)

ATTACH_S = 10.0
AT_A_TIME = 16  # hosts answered at once, because each may need a new connection

MAP_BYTES = 32 * geometry.MIB
"""Longest chunk map to download for another host: of 51 GiB raw in chunks of 64 KiB."""
MAPS_BYTES_OF_HOST = 64 * geometry.MIB  # limit of maps that are here because of one other host
MAPS_BYTES = 256 * geometry.MIB  # limit of maps that are here because of all other hosts
NEW_OF_HOST = token_buckets.Rate(per_s=256 / 3600, burst=2.0 * replica_leases.MAX_IMAGES_PER_HOST)
"""New images per host, each of which may cause a source access."""
HOSTS = 4096
REMEMBERED = 4 * replica_leases.MAX_IMAGES

State = replica_messages.ShareState


@dataclasses.dataclass(frozen=True)
class ReplicationLimits:
    """Intervals of replication."""

    tick_s: float = 0.25
    request_interval_s: float = replica_holders.INTERVAL_S  # of leases from one host
    report_interval_s: float = 10.0  # least one for a share that is being filled
    grace_s: float = 900.0  # after a start, until 1,000 hosts have renewed their leases


class LocalShare(NamedTuple):
    """State of this host's share of an image."""

    state: State
    total_bytes: int
    left_bytes: int
    table: hash_ring.Ring | None


class _Failed(NamedTuple):
    state: State
    backoff: fill_rate.Backoff


class Replication:
    """Leases in both directions; keep :meth:`run` running."""

    def __init__(
        self,
        host: ids.HostId,
        images: mirrors.Mirrors,
        filler: background_fill.BackgroundFill,
        chunks: exchange.Exchange,
        rings: hash_ring.RingProvider,
        leases: replica_leases.Leases,
        *,
        clock: clocks.Clock = time,
        limits: ReplicationLimits = ReplicationLimits(),
    ) -> None:
        self.refused = self.ignored = 0
        self._limits = limits
        self._host, self._images, self._filler = host, images, filler
        self._chunks, self._rings, self._leases = chunks, rings, leases
        self._clock = trio.lowlevel.current_clock().current_time
        self._unix_time = clock.time
        self._holders = replica_holders.ReplicaHolders(limits.request_interval_s)
        self._table: hash_ring.Ring | None = None
        self._used: list[ids.ImageId] = []
        self._due_reports: dict[ids.HostId, dict[ids.ImageId, None]] = {}
        self._last: dict[ids.ImageId, tuple[LocalShare | State, float]] = {}
        self._failed = lru_table.LruTable[ids.ImageId, _Failed](REMEMBERED)
        self._new = token_buckets.TokenBuckets[ids.HostId](NEW_OF_HOST, HOSTS)

    def leased_until_s(self, image_id: ids.ImageId) -> float:
        """Return when the last lease of an image ends, wall clock; 0 if none."""
        if image_id not in self._leases:
            return 0.0
        return self._unix_time() + self._leases.expires_s(image_id) - self._clock()

    def restore_lease(self, image_id: ids.ImageId, until_s: float) -> None:
        """Restore a lease from before a restart."""
        left_s = max(self._limits.grace_s, until_s - self._unix_time())
        self._leases.grant_lease(replica_leases.FORMER_HOSTS, image_id, left_s, self._clock())

    def report_received(self, host: ids.HostId, notification: peer_wire.Notification) -> None:
        """Process an unsolicited message of a peer."""
        table = self._rings.current_ring()
        if host == self._host or self._host not in table or host not in table.group_of(self._host):
            self.ignored += 1
            return
        match notification:
            case peer_wire.ReplicaRequest(leases):
                for lease in leases:
                    self._record_lease(host, lease)
            case peer_wire.ReplicaReport():
                self._holders.record_report(host, notification, self._clock())

    def _record_lease(self, host: ids.HostId, lease: replica_messages.Lease) -> None:
        now_s = self._clock()
        is_new = lease.lease_s and not self._leases.has_lease(host, lease.image_id)
        if is_new and self._new.tokens_left(host, now_s) < 1:
            self.refused += 1
        elif not self._leases.grant_lease(host, lease.image_id, lease.lease_s, now_s):
            self.refused += 1
        elif is_new:
            self._new.charge_tokens(host, 1, now_s)
        if lease.lease_s:
            owed = self._due_reports.setdefault(host, {})
            if len(owed) < replica_leases.MAX_IMAGES_PER_HOST:
                owed[lease.image_id] = None

    def report_shares(self, image_id: ids.ImageId) -> replica_holders.Report:
        """Return the state of the other hosts' shares; any thread may call it."""
        table = self._rings.current_ring()
        return self._holders.report_shares(
            image_id, self._others(table), table.epoch, self._clock()
        )

    def _others(self, table: hash_ring.Ring) -> list[ids.HostId]:
        """Return the other hosts with shares; none if this host is not on the table."""
        if self._host not in table:
            return []
        return [
            host
            for host in replica_placement.replica_hosts(table, self._host)
            if host != self._host
        ]

    def count_copies(self) -> int:
        """Return the intended copies of each chunk; any thread may call it."""
        return replica_placement.copy_count(self._rings.current_ring(), self._host)

    def report_counts(self) -> dict[str, int]:
        """Return counters for status; any thread may call it."""
        return {
            "leased_images": len(self._leases),
            "refused": self.refused,
            "ignored": self.ignored,
        }

    async def run(self) -> None:
        """Send leases and reports, and attach leased images, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._attach_for_ever)
            while True:
                self.send_due_messages()
                await trio.sleep(self._limits.tick_s)

    def send_due_messages(self) -> None:
        """Send the messages that are due."""
        now_s, table = self._clock(), self._rings.current_ring()
        used, is_moved = self._images_in_use(), table is not self._table
        if is_moved or used != self._used:
            self._table, self._used = table, used
            self._holders.set_images(self._others(table), used, now_s)
        if is_moved:
            self._holders.shares_changed(now_s)
        for host, keep in self._holders.take_due(now_s):
            self._chunks.send_announcement(host, keep)
        self._leases.end_expired(now_s)
        self._note_changes(now_s)
        self._answer(table)

    def _note_changes(self, now_s: float) -> None:
        for image_id in self._leases.leased_images():
            share = self.share_of(image_id) or self._state_without_share(image_id)
            if share is None:
                continue  # it will be known soon
            last, at_s = self._last.get(image_id, (None, 0.0))
            is_rate_limited = (
                isinstance(share, LocalShare) and share.left_bytes and isinstance(last, LocalShare)
            )
            hosts = self._leases.hosts_of(image_id)
            every_s = max(self._limits.report_interval_s, replica_holders.PER_HOST_S * len(hosts))
            if share == last or (is_rate_limited and now_s < at_s + every_s):
                continue
            self._last[image_id] = share, now_s
            for host in hosts:
                self._due_reports.setdefault(host, {})[image_id] = None
        for image_id in self._last.keys() - set(self._leases.leased_images()):
            del self._last[image_id]

    def _images_in_use(self) -> list[ids.ImageId]:
        return [
            image_id for image_id, progress in self._filler.progress.items() if progress.is_used
        ]

    def share_of(self, image_id: ids.ImageId) -> LocalShare | None:
        """Return the state of this host's share; None: not pinned, or not counted yet."""
        progress = self._filler.progress.get(image_id)
        if progress is None:
            return None
        if progress.shortfall_bytes:
            return LocalShare(State.NO_ROOM, 0, 0, None)
        if progress.part is None or progress.left_bytes is None:
            return None
        if image_id == self._filler.current and not progress.left_bytes:
            return None  # it is recounted soon
        self._filler.update_unwritten(progress)
        left_bytes = min(progress.left_bytes + progress.unwritten_bytes, progress.total_bytes)
        is_failing = progress.left_bytes and progress.backoff.failure
        state = State.FAILING if is_failing else State.KEPT
        return LocalShare(state, progress.total_bytes, left_bytes, progress.part.table)

    def _state_without_share(self, image_id: ids.ImageId) -> State | None:
        failed = self._failed.get(image_id)
        return None if failed is None else failed.state

    def _answer(self, table: hash_ring.Ring) -> None:
        for host in list(self._due_reports)[:AT_A_TIME]:
            owed = list(self._due_reports.pop(host))
            if host == replica_leases.FORMER_HOSTS or host not in table:
                continue
            found = [self._share_for(host, image_id, table.epoch) for image_id in owed]
            for epoch in {epoch for epoch, _ in found}:
                reports = [share for its, share in found if its == epoch and share is not None]
                for at in range(0, len(reports), replica_messages.MAX_REPORTS):
                    part = tuple(reports[at : at + replica_messages.MAX_REPORTS])
                    self._chunks.send_announcement(host, peer_wire.ReplicaReport(epoch, part))

    def _share_for(
        self, host: ids.HostId, image_id: ids.ImageId, epoch: int
    ) -> tuple[int, replica_messages.ImageShare | None]:
        if not self._leases.has_lease(host, image_id):
            return epoch, replica_messages.ImageShare(image_id, State.CROWDED, 0, 0)
        share = self.share_of(image_id)
        if share is not None:
            its = share.table.epoch if share.table else epoch
            return its, replica_messages.ImageShare(image_id, *share[:3])
        state = self._state_without_share(image_id)
        return epoch, None if state is None else replica_messages.ImageShare(image_id, state, 0, 0)

    async def _attach_for_ever(self) -> None:
        while True:
            image_id = self._next_to_attach()
            if image_id is None:
                await trio.sleep(self._limits.tick_s)
            else:
                await self._attach(image_id)

    def _next_to_attach(self) -> ids.ImageId | None:
        """Return the next image to attach; those that never failed first."""
        again = None
        for image_id in self._leases.leased_images():
            if self._images.get_nowait(image_id) is not None:
                continue
            failed = self._failed.get(image_id)
            if failed is None:
                return image_id
            if again is None and failed.backoff.may_try(self._clock()):
                again = image_id
        return again

    async def _attach(self, image_id: ids.ImageId) -> None:
        before = self._failed.pop(image_id, None)
        backoff = before.backoff if before else self._filler.make_backoff()
        try:
            with trio.fail_after(ATTACH_S):
                await self._images.attach_image(image_id, self._room_for_map(image_id))
        except (errors.AcstorError, OSError, trio.TooSlowError) as e:
            if before is None:
                LOG.info("image %s: cannot be kept for other hosts now: %s", image_id, e)
            backoff.record_failure(str(e), self._clock())
            self._failed[image_id] = _Failed(_state_after(e), backoff)
        else:
            LOG.info("image %s: attached, because other hosts use it", image_id)

    def _room_for_map(self, image_id: ids.ImageId) -> int:
        used, total_bytes = set(self._images_in_use()), 0
        bytes_of: collections.Counter[ids.HostId] = collections.Counter()
        for image in self._images.open():
            other = image.map.image_id
            if other not in used:
                map_bytes = image.map.size_bytes
                total_bytes += map_bytes
                bytes_of.update(dict.fromkeys(self._leases.hosts_of(other)[:1], map_bytes))
        least = min((bytes_of[host] for host in self._leases.hosts_of(image_id)), default=0)
        return max(0, min(MAP_BYTES, MAPS_BYTES_OF_HOST - least, MAPS_BYTES - total_bytes))


def _state_after(fault: Exception) -> State:
    if isinstance(fault, errors.ChunkMissing):
        return State.REFUSED
    return State.NO_ROOM if isinstance(fault, errors.Unusable) else State.FAILING
