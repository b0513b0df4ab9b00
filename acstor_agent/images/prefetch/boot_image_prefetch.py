# SPDX-License-Identifier: Apache-2.0
"""Prefetches boot images before guests need them, as configured by the operator.

The decision service tells all hosts of a new boot image; each decides by
``core/boot/prefetch_policy.py``. A prefetch has the lowest priority, evicts neither boot images in
use nor pinned chunks, and leaves the verification of chunks to the boot.
"""

import collections
import dataclasses
import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

import trio

from acstor_agent.core.boot import boot_set
from acstor_agent.core.boot import prefetch_policy
from acstor_agent.core.cache import public_cache
from acstor_agent.core.images import fill_rate
from acstor_agent.engine import chunk_ref
from acstor_agent.engine_io import exchange
from acstor_agent.images.image import chunk_lookup
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.prefetch import bulk_fetch
from acstor_agent.images.prefetch import pre_seed
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import read_admission
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import lru_table
from acstor_common.util import token_buckets
from acstor_common.wire import decision_messages

LOG = logging.getLogger(__name__)

BYTES_S = 6_250_000.0  # 50 Mbit/s: a boot image of 40 MiB takes 7 s
MAX_IN_FLIGHT = 4
MAX_REPORTED = 128  # limit of prefetched boot images of which the cached part is reported
FETCH_S = 60.0  # a frame fails after this time; the booting guest requests it again

KeepClass = public_cache.KeepClass
Mode = prefetch_policy.Mode


@dataclasses.dataclass(frozen=True)
class PrefetchLimits:
    """Limits of prefetching boot images."""

    bytes_s: float = BYTES_S
    yield_s: float = 10.0  # longest pause before a frame while a guest waits for remote data
    yield_tick_s: float = 0.1


class _WantedFrames(NamedTuple):
    """Frames of a boot image to fetch; ``spare_bytes``: others, whose chunks are cached."""

    refs: list[chunk_ref.ChunkRef]
    spare_bytes: int


class BootImagePrefetch:
    """Prefetches boot images, one at a time, after the waiting reads of guests."""

    def __init__(
        self,
        mode: Mode,
        boots: boot_session.BootSessions,
        images: mirrors.Mirrors,
        uses: usage.ImageUsage,
        lookup: chunk_lookup.ChunkLookup,
        reads: read_admission.ReadAdmission,
        rings: hash_ring.RingProvider,
        *,
        limits: PrefetchLimits = PrefetchLimits(),
    ) -> None:
        self._limits = limits
        self._mode = mode if boots.memory.limit_bytes else Mode.NONE
        self._images, self._uses, self._lookup, self._reads = images, uses, lookup, reads
        self._chunks, self._cache, self._counters = boots.chunks, boots.cache, boots.counters
        self._own_host, self._rings = boots.chunks.own_host, rings
        self._prefetched = lru_table.LruTable[ids.ImageId, _WantedFrames](MAX_REPORTED)
        self._position = random.random()  # among the notified hosts
        self._pacer = fill_rate.Pacer()
        self._pacer.bytes_s = limits.bytes_s
        kept_bytes = (
            boots.cache.statistics.limit_bytes // public_cache.BOOT_SHARES[KeepClass.PREFETCHED]
        )
        self._daily = token_buckets.TokenBuckets[None](prefetch_policy.daily(kept_bytes), 1)

    def is_for(self, task: decision_messages.ImageTask) -> bool:
        """Return whether a task's boot image is for this host."""
        has_former = bool(self._formers(task))
        return prefetch_policy.is_for(self._mode, is_open=task.is_public, has_former=has_former)

    def _formers(self, task: decision_messages.ImageTask) -> list[ids.ImageId]:
        return [
            former
            for former in map(ids.parse_image_id, task.previous_images)
            if self._is_mirrored(former)
        ]

    def _is_mirrored(self, image_id: ids.ImageId) -> bool:
        is_attached = self._images.is_attached(image_id)
        return is_attached and not self._uses.is_only_replica(image_id)

    def delay_s(self) -> float:
        """Return this host's delay after a notification, equal for all boot images.

        With varying delays, the last of several boot images would be late on all hosts.
        """
        return self._position * prefetch_policy.spread_s(len(self._rings.current_ring().hosts))

    async def prefetch_boot_image(
        self, task: decision_messages.ImageTask, report: bulk_fetch.Report
    ) -> dict[str, int]:
        """Fetch an image's boot image into the cache; return the byte counts.

        :raises errors.Unusable: it is not for this host, or there is no capacity
        :raises errors.AcstorError: a frame is unavailable; fetched ones stay
        """
        image_id = ids.parse_image_id(task.image_id)
        if self._is_mirrored(image_id):  # its guests load it themselves
            return {"done_bytes": 0}
        begun_s = trio.current_time()
        wanted = await self._look_up(image_id, task)
        refs = self._in_order(wanted.refs)
        total_bytes = sum(ref.length for ref in refs)
        missing = [ref for ref in refs if not self._chunks.has_chunk(ref.cid)]
        self._take_room(image_id, total_bytes, sum(ref.length for ref in missing))
        for ref in refs:
            self._cache.keep_prefetched(ref.cid)
        received_bytes = await self._fetch(missing, report, total_bytes)
        self._counters.prefetched += 1
        self._prefetched[image_id] = wanted
        LOG.info(
            "image %s: its boot image was prefetched: %d bytes, %d of them fetched in %.1f s",
            *(image_id, total_bytes, received_bytes, trio.current_time() - begun_s),
        )
        return {"done_bytes": total_bytes}

    def boot_set_of(self, image_id: ids.ImageId) -> boot_set.BootSet | None:
        """Return the cached part of a prefetched boot image, as stored; any thread may call it.

        :returns: None if this worker has not prefetched it, or only longer ago
        """
        wanted = self._prefetched.get(image_id)
        if wanted is None:
            return None
        missing_bytes = sum(ref.length for ref in wanted.refs if ref.cid not in self._cache)
        total_bytes = wanted.spare_bytes + sum(ref.length for ref in wanted.refs)
        return boot_set.BootSet(total_bytes, total_bytes - missing_bytes)

    async def _look_up(
        self, image_id: ids.ImageId, task: decision_messages.ImageTask
    ) -> _WantedFrames:
        subject, head = await self._lookup.detached.boot_head(self._own_host, image_id)
        keys, chunk_ref_at = subject.scope_keys, self._chunks.chunk_ref_at
        formers = self._formers(task)
        if not prefetch_policy.is_served(keys, map(self._images.scope_keys, formers)):
            what = f"the boot image of image {image_id}"
            raise errors.Unusable(what, "is of a project without instances on this host")
        refs = [
            chunk_ref_at(
                image_id, keys, base.AT_BOOT_IMAGE + frame.offset, frame.stored_bytes, frame.cid
            )
            for frame in head.frames_of()
            if not (formers and await self._is_spare(subject, frame))
        ]
        stored_bytes = sum(frame.stored_bytes for frame in head.frames_of())
        return _WantedFrames(refs, stored_bytes - sum(ref.length for ref in refs))

    async def _is_spare(self, subject: chunk_map.Subject, frame: boot_image.Frame) -> bool:
        """Return whether all chunks of a frame are cached, so a boot skips it."""
        cut = subject.geometry
        for chunk_no in frame.chunk_nos:
            place = cut.chunk_offset(chunk_no), cut.chunk_length(chunk_no)
            found = await self._lookup.read_map_for_peer(self._own_host, subject.image_id, *place)
            if not self._chunks.has_chunk(found.cid):
                return False
        return True

    def _in_order(self, refs: Sequence[chunk_ref.ChunkRef]) -> list[chunk_ref.ChunkRef]:
        """Sort frames: those that this host is the home of first."""
        homes = bytearray(map(self._chunks.is_home_of, refs))
        first = pre_seed.first_chunk_of(self._own_host)
        return [refs[at] for at in pre_seed.chunks_in_order(homes, first)]

    def _take_room(self, image_id: ids.ImageId, total_bytes: int, missing_bytes: int) -> None:
        what = f"the boot image of image {image_id}"
        if total_bytes > (limit_bytes := self._cache.prefetched_limit_bytes):
            why = f"has {total_bytes} bytes, and at most {limit_bytes} are prefetched"
            raise errors.Unusable(what, why)
        if not self._daily.try_take(None, missing_bytes, trio.current_time()):
            raise errors.Unusable(what, "exceeds the daily limit of prefetches")

    async def _fetch(
        self, missing: Sequence[chunk_ref.ChunkRef], report: bulk_fetch.Report, total_bytes: int
    ) -> int:
        left, received_bytes = collections.deque(missing), 0
        here_bytes = total_bytes - sum(ref.length for ref in missing)
        with self._chunks.background_fetch(exchange.Priority.HYDRATE) as ahead:
            while left or ahead:
                if left and len(ahead) < MAX_IN_FLIGHT:
                    ref = left.popleft()
                    await self._wait_for_turn(ref.length)
                    ahead.request_items([(ref, ref)])
                    continue
                with trio.move_on_after(FETCH_S) as waiting:
                    for ref, outcome in await ahead.wait_for_arrivals():
                        if isinstance(outcome, errors.AcstorError):
                            raise outcome
                        received_bytes += self._keep(ref)
                await report(here_bytes + received_bytes, total_bytes)
                if waiting.cancelled_caught:
                    raise errors.DeadlineExceeded("a part of a boot image", FETCH_S)
        return received_bytes

    def _keep(self, ref: chunk_ref.ChunkRef) -> int:
        if not self._cache.keep_prefetched(ref.cid):
            raise errors.Unusable("a part of a boot image", "arrived, but the cache has no space")
        self._counters.prefetched_bytes += ref.length
        return ref.length

    async def _wait_for_turn(self, length: int) -> None:
        while wait_s := self._pacer.wait_s(length, trio.current_time()):  # noqa: ASYNC110 - it says when
            await trio.sleep(wait_s)
        with trio.move_on_after(self._limits.yield_s):
            while not self._reads.remote_idle_s():  # noqa: ASYNC110 - nothing says when it is
                await trio.sleep(self._limits.yield_tick_s)
