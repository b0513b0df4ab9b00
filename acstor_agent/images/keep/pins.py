# SPDX-License-Identifier: Apache-2.0
"""Pins: images of which this host keeps all or its share, in file and cache.

A pin ends when its image is unused or an operator says so, not for lack of capacity; but an
image kept for other hosts makes room for one used here. Pins are derived before the cache is
opened, from the pin file and the chunk maps in ``state_dir``, and shares from the v-node table.
Without the pin file, all attached images that fit are pinned, most recently touched first.
"""

import collections
import dataclasses
import logging
import math
import pathlib
import time
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Mapping

import msgspec
import trio

from acstor_agent.cache import cache_files
from acstor_agent.core.cache import cache_pins
from acstor_agent.core.images import capacity
from acstor_agent.core.images import pin_record
from acstor_agent.core.images import replica_placement
from acstor_agent.images.keep import pin_file
from acstor_agent.runtime import interpreter
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import lru_table

LOG = logging.getLogger(__name__)

REPLICA_DIVISOR = 2  # 1/REPLICA_DIVISOR of the cache's limit may be pinned for other hosts
CONTENTS_PER_STEP = 1000  # contents pinned between two checkpoints: less than a millisecond

ImagePin = pin_record.ImagePin
Contents = capacity.Contents


@dataclasses.dataclass(frozen=True)
class PinLimits:
    """Limits of the shares that are remembered."""

    former_share_s: float = 3600.0  # while others fetch new shares, perhaps without a source
    former_shares: int = 8  # of an image with own expiries; older ones are merged
    unpinned_parts: int = 256  # of images for which there was no capacity


class ImagePins:
    """The pins of this host."""

    def __init__(
        self,
        state_dir: pathlib.Path,
        limit_bytes: int,
        slab_bytes: int,
        *,
        shares: replica_placement.ReplicaPlacement | None = None,
        limits: PinLimits = PinLimits(),
    ) -> None:
        self.pins = cache_pins.Pins()
        self._limits = limits
        self._changes = 0
        self.report_write: Callable[[str], None] = lambda why: None
        """Called after each write of the file, with the failure or ""."""
        self.cache: cache_files.CacheFiles  # the cache with these pins; set once it is open
        self._file = pin_file.PinFile(state_dir)
        self._limit_bytes, self._slab_bytes = limit_bytes, min(slab_bytes, limit_bytes)
        self._shares = shares
        self._kept: dict[ids.ImageId, ImagePin] = {}
        self._pinned: dict[ids.ImageId, replica_placement.ReplicaPart] = {}
        """Pinned part of each image, with its map, independent of later maps."""
        self._former: dict[ids.ImageId, list[tuple[float, replica_placement.ReplicaPart]]] = {}
        """Parts pinned by former tables, with their expiries."""
        self._found = lru_table.LruTable[ids.ImageId, replica_placement.ReplicaPart](
            limits.unpinned_parts
        )
        self._changing = trio.Lock()

    def load(self) -> None:
        """Pin images of the pin file that have chunk maps, before the cache is opened; blocks."""
        kept = self._file.read()
        all_pins = self._file.pins_of_attached() if kept is None else kept
        # Images used here have precedence.
        for image_id, pin in sorted(all_pins.items(), key=lambda item: item[1].is_replica):
            image_map = self._file.open_map(image_id)
            if image_map is None:
                if kept is not None:
                    self._kept[image_id] = pin
                continue
            if pin.is_replica and not self.is_in_table:
                if self._shares is not None:  # the table may arrive later
                    self._kept[image_id] = pin
                continue
            part = self._part_of(image_map, self._table_for(pin))
            if kept is None and self._beyond_bytes(part):
                continue
            contents = part.list_contents()
            lacking_bytes = self._lacking_bytes(capacity.slots_of(contents, self.pins))
            if kept is None and lacking_bytes:
                continue
            self._kept[image_id] = pin
            if lacking_bytes and self._waits_for_table(pin):
                continue
            if pin.is_replica and (lacking_bytes or self._replica_excess_bytes(pin, part)):
                LOG.warning("image %s: not kept for other hosts now: no space", image_id)
                continue
            self._pinned[image_id] = part
            self._add(contents)
        self._kept = {
            image_id: self._kept[image_id] for image_id in all_pins if image_id in self._kept
        }

    def _add(self, contents: Contents) -> None:
        for cid, length in contents.items():
            self.pins.add(cid, length)

    def _waits_for_table(self, pin: ImagePin) -> bool:
        return self._shares is not None and not self.is_in_table and not pin.is_operator_pin

    def _lacking_bytes(self, more: Mapping[int, int]) -> int:
        slots = collections.Counter(self.pins.slot_counts) + collections.Counter(more)
        return cache_pins.lacking_bytes(slots, self._limit_bytes, self._slab_bytes)

    def _beyond_bytes(self, part: replica_placement.ReplicaPart) -> int:
        return max(0, part.total_bytes - self._limit_bytes)

    def list_pins(self) -> dict[ids.ImageId, ImagePin]:
        """Return the pins, oldest first; any thread may call it."""
        return self._kept.copy()

    def get(self, image_id: ids.ImageId) -> ImagePin | None:
        """Return the pin of an image; any thread may call it."""
        return self._kept.get(image_id)

    def pinned_part(self, image_id: ids.ImageId) -> replica_placement.ReplicaPart | None:
        """Return the pinned part of an image, if any; any thread may call it."""
        return self._pinned.get(image_id)

    def replica_totals(self) -> tuple[int, int]:
        """Return number of replica images, and bytes of pinned ones."""
        images = [pin.image_id for pin in self.list_pins().values() if pin.is_replica]
        parts = [part for pin in images if (part := self._pinned.get(ids.ImageId(pin)))]
        return len(images), sum(part.total_bytes for part in parts)

    @property
    def changes(self) -> tuple[int, hash_ring.Ring | None]:
        """A value that differs whenever the room for a pin may have changed."""
        return self._changes, None if self._shares is None else self._shares.share_table()

    @property
    def is_in_table(self) -> bool:
        """Whether this host is in the v-node table, and so has shares of images."""
        return self._shares is not None and self._shares.share_table() is not None

    def _table_for(self, pin: ImagePin) -> hash_ring.Ring | None:
        """Return the table that defines the pinned part; None: the whole image."""
        return None if self._shares is None or pin.is_operator_pin else self._shares.share_table()

    def _part_of(
        self, image_map: chunk_map.ChunkMap, table: hash_ring.Ring | None
    ) -> replica_placement.ReplicaPart:
        if self._shares is None:
            return replica_placement.whole_image(image_map, interpreter.release)
        return self._shares.part_of(image_map, table, interpreter.release)

    async def pin_image(
        self,
        image_id: ids.ImageId,
        image_map: chunk_map.ChunkMap,
        *,
        is_operator_pin: bool = False,
        is_replica: bool = False,
    ) -> int:
        """Pin an image; if there is no capacity, unpin images kept for other hosts.

        :param is_replica: ignored if it is pinned for this host's instances already
        :return: bytes that the cache lacks; if not 0, nothing is pinned
        """
        async with self._changing:
            before = self._kept.get(image_id)
            now = before or ImagePin(image_id, time.time(), is_replica=is_replica)
            now = msgspec.structs.replace(
                now,
                is_operator_pin=now.is_operator_pin or is_operator_pin,
                is_replica=now.is_replica and is_replica,
            )
            if lacking_bytes := await self._pin(now, image_map):
                return lacking_bytes
            await self._set(now)
            return 0

    async def apply_ring(self, image_id: ids.ImageId) -> int:
        """Adapt the pinned part to the current table; return the bytes that the cache lacks."""
        async with self._changing:
            now, part = self._kept.get(image_id), self._pinned.get(image_id)
            if now is None or part is None or (now.is_replica and not self.is_in_table):
                return 0  # without a table, the part by the former one stays
            return await self._pin(now, part.map)

    async def _pin(self, pin: ImagePin, image_map: chunk_map.ChunkMap) -> int:
        image_id, table = ids.ImageId(pin.image_id), self._table_for(pin)
        before = self._pinned.get(image_id)
        if before is not None and before.table is table:
            return 0
        if before is not None:
            image_map = before.map
        part = self._found.pop(image_id, None)
        if part is None or part.map is not image_map or part.table is not table:
            part = await trio.to_thread.run_sync(self._part_of, image_map, table)
        is_pinned = before is not None and await trio.to_thread.run_sync(self._is_pinned, part)
        if not is_pinned and (lacking_bytes := await self._make_room(pin, part)):
            self._found[image_id] = part
            return lacking_bytes
        contents = await trio.to_thread.run_sync(part.list_contents)
        self._pinned[image_id] = part
        self._changes += 1
        await _for_each(contents, self.cache.pin_chunk)
        if before is not None:
            formers = self._former.setdefault(image_id, [])
            formers.append((trio.current_time() + self._limits.former_share_s, before))
            if len(formers) > self._limits.former_shares:
                await self._merge_oldest(formers)
        return 0

    def _is_pinned(self, part: replica_placement.ReplicaPart) -> bool:
        return all(part.map.cid_of(number) in self.pins for number in part.numbers)

    async def _make_room(self, pin: ImagePin, part: replica_placement.ReplicaPart) -> int:
        """Unpin others' images if needed; return the bytes that the cache lacks."""
        if too_many_bytes := self._replica_excess_bytes(pin, part):
            return too_many_bytes
        if beyond_bytes := self._beyond_bytes(part):
            return beyond_bytes
        image_id = ids.ImageId(pin.image_id)
        contents = await trio.to_thread.run_sync(part.list_contents)
        slots = await trio.to_thread.run_sync(capacity.slots_of, contents, self.pins)
        gives_way = any(other.is_replica for other in self._kept.values())
        if gives_way and self.cache.lacking_bytes(slots) and not pin.is_replica:
            for other in await trio.to_thread.run_sync(self._in_the_way, image_id, contents):
                LOG.warning(
                    "image %s: no longer kept for other hosts: image %s needs the space",
                    other,
                    image_id,
                )
                await self._unpin_image(other)
            slots = await trio.to_thread.run_sync(capacity.slots_of, contents, self.pins)
        return self.cache.lacking_bytes(slots)

    async def _merge_oldest(
        self, formers: list[tuple[float, replica_placement.ReplicaPart]]
    ) -> None:
        (_, oldest), (until_s, older) = formers[:2]
        merged = await trio.to_thread.run_sync(replica_placement.union_of_parts, oldest, older)
        with trio.CancelScope(shield=True):  # list and pins must change together
            await _for_part(merged, self.cache.pin_chunk)
            formers[:2] = [(until_s, merged)]
            for part in (oldest, older):
                await _for_part(part, self.cache.unpin_chunk)

    def _in_the_way(self, wanted: ids.ImageId, contents: Contents) -> list[ids.ImageId]:
        """Return images of other hosts to unpin for an image used here, newest first."""

        def lacking_bytes(slots: capacity.Slots) -> int:
            return cache_pins.lacking_bytes(slots, self._limit_bytes, self._slab_bytes)

        kept = (
            (
                image_id,
                (
                    part.list_contents()
                    for part in (self._pinned[image_id], *self._formers(image_id))
                ),
            )
            for image_id, pin in reversed(self.list_pins().items())
            if pin.is_replica and image_id != wanted and image_id in self._pinned
        )
        return capacity.images_to_evict(contents, kept, self.pins, lacking_bytes)

    def _formers(self, image_id: ids.ImageId) -> list[replica_placement.ReplicaPart]:
        return [part for _, part in self._former.get(image_id, [])]

    def _replica_excess_bytes(self, pin: ImagePin, part: replica_placement.ReplicaPart) -> int:
        if not pin.is_replica:
            return 0
        _, kept_bytes = self.replica_totals()
        before = self._pinned.get(ids.ImageId(pin.image_id))
        kept_bytes += part.total_bytes - (before.total_bytes if before else 0)
        return max(0, kept_bytes - self._limit_bytes // REPLICA_DIVISOR)

    async def release_former_shares(self) -> None:
        """Unpin expired shares of former tables."""
        for image_id in list(self._former):
            async with self._changing:
                await self._release(image_id, trio.current_time())

    async def _release(self, image_id: ids.ImageId, now_s: float = math.inf) -> None:
        formers = self._former.get(image_id, [])
        over = [part for until_s, part in formers if until_s <= now_s]
        left = [former for former in formers if former[0] > now_s]
        if left:
            self._former[image_id] = left
        else:
            self._former.pop(image_id, None)
        for part in over:
            with trio.CancelScope(shield=True):
                await _for_part(part, self.cache.unpin_chunk)
            self._changes += 1
            self.cache.shrink_to_limit()

    async def unpin_image(self, image_id: ids.ImageId) -> None:
        """Unpin an image, if it is pinned."""
        async with self._changing:
            await self._unpin_image(image_id)

    async def _unpin_image(self, image_id: ids.ImageId) -> None:
        if self._kept.pop(image_id, None) is not None:
            await self._save()
        await self._release(image_id)
        self._found.pop(image_id, None)
        part = self._pinned.get(image_id)
        if part is not None:
            contents = await trio.to_thread.run_sync(part.list_contents)
            del self._pinned[image_id]
            await _for_each(contents, self.cache.unpin_chunk)
            self._changes += 1
            self.cache.shrink_to_limit()

    def forget_unpinned_parts(self, kept: Container[ids.ImageId]) -> None:
        """Forget the parts of images that are not kept, with their maps."""
        for image_id in [found_id for found_id in self._found if found_id not in kept]:
            del self._found[image_id]

    async def change_pin(self, image_id: ids.ImageId, **changes: object) -> None:
        """Change the options of a pin, if the image is pinned."""
        async with self._changing:
            if (before := self._kept.get(image_id)) is not None:
                await self._set(msgspec.structs.replace(before, **changes))

    async def _set(self, pin: ImagePin) -> None:
        image_id = ids.parse_image_id(pin.image_id)
        before = self._kept.get(image_id)
        if before != pin:
            self._kept[image_id] = pin
            if before is not None and before.is_replica != pin.is_replica:
                self._changes += 1
            await self._save()

    async def _save(self) -> None:
        try:
            await trio.to_thread.run_sync(self._file.write, self.list_pins())
        except OSError as e:
            self.report_write(f"cannot be written: {e.strerror}; a restart would lose some pins")
        else:
            self.report_write("")


async def _for_part(part: replica_placement.ReplicaPart, do: cache_files.Pin) -> None:
    await _for_each(await trio.to_thread.run_sync(part.list_contents), do)


async def _for_each(contents: Contents, do: cache_files.Pin) -> None:
    for number, (cid, length) in enumerate(contents.items(), 1):
        do(cid, length)
        if not number % CONTENTS_PER_STEP:
            with trio.CancelScope(shield=True):  # cancelling in the middle would be inconsistent
                await trio.lowlevel.checkpoint()
