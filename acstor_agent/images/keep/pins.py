# SPDX-License-Identifier: Apache-2.0
"""Which images this host keeps, whole or its share of them: promised in a file, and pinned.

What was promised is not given up because room is short, only when the image is no longer used, or
by the operator; what is kept for the instances of other hosts makes room for what this host's use.
So pins are there before the cache is opened: derived from the promises and the chunk maps, both in
``state_dir``, and for shares from the v-node table.  Where the file of promises is lost, all
attached images are promised again, those touched last first, as far as there is room; the ones
that are not used are given up when that is known.
"""

import collections
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
from acstor_agent.images.read import mirror
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_common.ring import hash_ring

LOG = logging.getLogger(__name__)

FOR_OTHERS = 2
"""One part of so many of the cache's limit may be promised for the instances of other hosts."""
FORMER_S = 3600.0
"""How long what was this host's share by the last table stays pinned: others have yet to fetch
what belongs to theirs now, and their source may be away."""
FORMERS = 8
"""Former shares of an image that end one by one; of more, the oldest ones stay as long as the one
after them."""
FOUND = 256
"""Images without room whose parts are remembered."""
AT_A_TIME = 1000
"""Contents that are pinned before others have their turn: less than a millisecond."""

ImagePin = pin_record.ImagePin
Contents = capacity.Contents


class ImagePins:
    """The promises of this host, and what they pin.

    :param limit_bytes: of the cache
    :param may_grow: the cache may grow beyond its limit for what is pinned
    :param shares: which part of images is kept; without it they are kept whole
    """

    def __init__(
        self,
        state_dir: pathlib.Path,
        limit_bytes: int,
        slab_bytes: int,
        *,
        may_grow: bool = False,
        shares: replica_placement.ReplicaPlacement | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pins = cache_pins.Pins()
        self.may_grow = self.pins.may_grow = may_grow
        self.changes = 0
        """How often what is pinned was changed: only then there may be other room."""
        self.tell: Callable[[str], None] = lambda why: None
        """Is told, whenever the file is written, why that was in vain, or nothing."""
        self._file = pin_file.PinFile(state_dir)
        self._limit_bytes, self._slab_bytes = limit_bytes, min(slab_bytes, limit_bytes)
        self._shares, self._clock = shares, clock
        self._kept: dict[ids.ImageId, ImagePin] = {}
        self._pinned: dict[ids.ImageId, replica_placement.Part] = {}
        """What was pinned, by which map; one that is replaced later must not matter."""
        self._former: dict[ids.ImageId, list[tuple[float, replica_placement.Part]]] = {}
        """What was pinned by the tables before, and until when each stays so."""
        self._found: dict[ids.ImageId, replica_placement.Part] = {}
        """What would be pinned of images that had no room."""
        self._changing = trio.Lock()

    def load(self) -> None:
        """Pin what was promised, before the cache is opened.  It blocks.

        A promise whose chunk map is lost pins nothing before its image is attached again.
        """
        kept = self._file.read()
        promised = self._file.derive_pins() if kept is None else kept
        # What others use must not take the room of what is used here.
        for image_id, one in sorted(promised.items(), key=lambda item: item[1].is_for_others):
            image_map = self._file.map_of(image_id)
            if image_map is None:
                if kept is not None:
                    self._kept[image_id] = one
                continue
            if one.is_for_others and not self.has_share:
                if self._shares is not None:  # the table may come later
                    self._kept[image_id] = one
                continue
            part = self._part_of(image_map, self._table_for(one))
            if kept is None and not self.may_grow and self._beyond_bytes(part):
                continue
            contents = part.list_contents()
            lacking_bytes = self._lacking_bytes(capacity.slots_of(contents, self.pins))
            if kept is None and lacking_bytes:
                continue
            self._kept[image_id] = one
            if lacking_bytes and self._waits_for_table(one):
                continue
            if one.is_for_others and self._lacks_for_others(one, part, contents):
                LOG.warning("image %s: no longer kept for other hosts: no space", image_id)
                continue
            self._pinned[image_id] = part
            self._add(contents)
        self._kept = {
            image_id: self._kept[image_id] for image_id in promised if image_id in self._kept
        }

    def _add(self, contents: Contents) -> None:
        for cid, length in contents.items():
            self.pins.add(cid, length)
        if self.may_grow:
            self.pins.beyond_bytes = self._lacking_bytes({})

    def _waits_for_table(self, one: ImagePin) -> bool:
        """Say whether less of an image may be kept by a table that comes later."""
        return self._shares is not None and not self.has_share and not one.is_asked

    def _lacks_for_others(
        self, one: ImagePin, part: replica_placement.Part, contents: Contents
    ) -> bool:
        slots = collections.Counter(self.pins.slots) + collections.Counter(
            capacity.slots_of(contents, self.pins)
        )
        return bool(
            self._too_many_for_others(one, part)
            or cache_pins.lacking_bytes(slots, self._limit_bytes, self._slab_bytes)
        )

    def _lacking_bytes(self, more: Mapping[int, int]) -> int:
        slots = collections.Counter(self.pins.slots) + collections.Counter(more)
        if self.may_grow and more:
            return 0
        return cache_pins.lacking_bytes(slots, self._limit_bytes, self._slab_bytes)

    def _beyond_bytes(self, part: replica_placement.Part) -> int:
        """Return how much longer a part is than the cache: its contents need not be looked at."""
        return max(0, part.total_bytes - self._limit_bytes)

    # What is promised

    def list_pins(self) -> dict[ids.ImageId, ImagePin]:
        """Return the promises, in the order in which they were made; from any thread."""
        return self._kept.copy()

    def get(self, image_id: ids.ImageId) -> ImagePin | None:
        """Return the promise of an image; from any thread."""
        return self._kept.get(image_id)

    def pinned_of(self, image_id: ids.ImageId) -> replica_placement.Part | None:
        """Return what is pinned of an image, None if it is not; from any thread."""
        return self._pinned.get(image_id)

    def for_others(self) -> tuple[int, int]:
        """Return how many images are kept for other hosts only, and how many bytes of them."""
        images = [one.image_id for one in self.list_pins().values() if one.is_for_others]
        parts = [part for one in images if (part := self._pinned.get(ids.ImageId(one)))]
        return len(images), sum(part.total_bytes for part in parts)

    @property
    def has_share(self) -> bool:
        """Say whether this host has shares of images: it is on the v-node table."""
        return self._shares is not None and self._shares.share_table() is not None

    def _table_for(self, promised: ImagePin) -> hash_ring.Ring | None:
        """Return the table by which an image is pinned; None: all of it is."""
        return None if self._shares is None or promised.is_asked else self._shares.share_table()

    def _part_of(
        self, image_map: chunk_map.ChunkMap, table: hash_ring.Ring | None
    ) -> replica_placement.Part:
        if self._shares is None:
            return replica_placement.whole_image(image_map, mirror.pause)
        return self._shares.part_of(image_map, table, mirror.pause)

    # What changes it

    async def pin_image(
        self,
        image_id: ids.ImageId,
        image_map: chunk_map.ChunkMap,
        cache: cache_files.CacheFiles,
        *,
        is_asked: bool = False,
        is_for_others: bool = False,
    ) -> int:
        """Promise to keep an image; pin it.

        Where there is no room others' images give way, and only after that the cache may grow.

        :param is_for_others: unless it is promised for this host's instances already
        :return: how many bytes the cache lacks; if it lacks any, nothing is promised
        """
        async with self._changing:
            before = self._kept.get(image_id)
            now = before or ImagePin(image_id, time.time(), is_for_others=is_for_others)
            now = msgspec.structs.replace(
                now,
                is_asked=now.is_asked or is_asked,
                is_for_others=now.is_for_others and is_for_others,
            )
            if lacking_bytes := await self._pin(now, image_map, cache):
                return lacking_bytes
            await self._set(now)
            return 0

    async def follow_table(self, image_id: ids.ImageId, cache: cache_files.CacheFiles) -> int:
        """Pin what belongs to the promise of an image by the v-node table in force.

        :return: how many bytes the cache lacks; if it lacks any, what is pinned stays as it was
        """
        async with self._changing:
            now, part = self._kept.get(image_id), self._pinned.get(image_id)
            if now is None or part is None:
                return 0
            return await self._pin(now, part.map, cache)

    async def _pin(
        self, promised: ImagePin, image_map: chunk_map.ChunkMap, cache: cache_files.CacheFiles
    ) -> int:
        image_id, table = ids.ImageId(promised.image_id), self._table_for(promised)
        before = self._pinned.get(image_id)
        if before is not None and before.table is table:
            return 0
        if before is not None:
            image_map = before.map
        part = self._found.pop(image_id, None)
        if part is None or part.map is not image_map or part.table is not table:
            part = await trio.to_thread.run_sync(self._part_of, image_map, table)
        if before is not None and await trio.to_thread.run_sync(self._is_pinned, part):
            lacking_bytes, must_fit = cache.lacking_bytes({}), False  # it needs no more room
        else:
            lacking_bytes = await self._make_room(promised, part, cache)
            must_fit = not self.may_grow or promised.is_for_others
        if lacking_bytes and must_fit:
            self._found[image_id] = part
            if len(self._found) > FOUND:
                del self._found[next(iter(self._found))]
            return lacking_bytes
        contents = await trio.to_thread.run_sync(part.list_contents)
        if self.may_grow:  # before the first pinned chunk needs it
            cache.may_grow(lacking_bytes)
        self._pinned[image_id] = part
        self.changes += 1
        await _for_each(contents, cache.pin_chunk)
        if before is not None:
            formers = self._former.setdefault(image_id, [])
            formers.append((self._clock() + FORMER_S, before))
            if len(formers) > FORMERS:
                await self._merge_oldest(formers, cache)
        return 0

    def _is_pinned(self, part: replica_placement.Part) -> bool:
        """Say whether all that belongs to a part of an image is pinned already."""
        return all(part.map.cid_of(number) in self.pins for number in part.numbers)

    async def _make_room(
        self, promised: ImagePin, part: replica_placement.Part, cache: cache_files.CacheFiles
    ) -> int:
        """Return how many bytes the cache lacks for an image when others have given way to it."""
        if too_many_bytes := self._too_many_for_others(promised, part):
            return too_many_bytes
        must_fit = not self.may_grow or promised.is_for_others
        if must_fit and (beyond_bytes := self._beyond_bytes(part)):
            return beyond_bytes
        image_id = ids.ImageId(promised.image_id)
        contents = await trio.to_thread.run_sync(part.list_contents)
        slots = await trio.to_thread.run_sync(capacity.slots_of, contents, self.pins)
        gives_way = any(one.is_for_others for one in self._kept.values())
        if gives_way and cache.lacking_bytes(slots) and not promised.is_for_others:
            for one in await trio.to_thread.run_sync(self._in_the_way, image_id, contents):
                LOG.warning(
                    "image %s: no longer kept for other hosts: image %s needs the space",
                    one,
                    image_id,
                )
                await self._take_back(one, cache)
            slots = await trio.to_thread.run_sync(capacity.slots_of, contents, self.pins)
        return cache.lacking_bytes(slots)

    async def _merge_oldest(
        self, formers: list[tuple[float, replica_placement.Part]], cache: cache_files.CacheFiles
    ) -> None:
        (_, oldest), (until_s, older) = formers[:2]
        merged = await trio.to_thread.run_sync(replica_placement.union_of_parts, oldest, older)
        with trio.CancelScope(shield=True):  # what is listed is pinned, and nothing else
            await _for_each(await trio.to_thread.run_sync(merged.list_contents), cache.pin_chunk)
            formers[:2] = [(until_s, merged)]
            for part in (oldest, older):
                await _for_each(
                    await trio.to_thread.run_sync(part.list_contents), cache.unpin_chunk
                )

    def _in_the_way(self, wanted: ids.ImageId, contents: Contents) -> list[ids.ImageId]:
        """Return which images kept for other hosts give way to one used here, newest first."""

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
            for image_id, one in reversed(self.list_pins().items())
            if one.is_for_others and image_id != wanted and image_id in self._pinned
        )
        return capacity.images_to_evict(
            contents, kept, self.pins, lacking_bytes, may_grow=self.may_grow
        )

    def _formers(self, image_id: ids.ImageId) -> list[replica_placement.Part]:
        return [part for _, part in self._former.get(image_id, [])]

    def _too_many_for_others(self, promised: ImagePin, part: replica_placement.Part) -> int:
        """Return by how many bytes too much would be kept for the instances of other hosts."""
        if not promised.is_for_others:
            return 0
        _, kept_bytes = self.for_others()
        before = self._pinned.get(ids.ImageId(promised.image_id))
        kept_bytes += part.total_bytes - (before.total_bytes if before else 0)
        return max(0, kept_bytes - self._limit_bytes // FOR_OTHERS)

    async def release_former(self, cache: cache_files.CacheFiles) -> None:
        """Give up what belonged to shares by former tables, when it is time."""
        for image_id in list(self._former):
            async with self._changing:
                await self._release(image_id, cache, self._clock())

    async def _release(
        self, image_id: ids.ImageId, cache: cache_files.CacheFiles, now_s: float = math.inf
    ) -> None:
        """Unpin what belonged to former shares of an image that are over."""
        formers = self._former.get(image_id, [])
        over = [part for until_s, part in formers if until_s <= now_s]
        left = [one for one in formers if one[0] > now_s]
        if left:
            self._former[image_id] = left
        else:
            self._former.pop(image_id, None)
        for part in over:
            with trio.CancelScope(shield=True):
                await _for_each(
                    await trio.to_thread.run_sync(part.list_contents), cache.unpin_chunk
                )
            self.changes += 1

    async def take_back(self, image_id: ids.ImageId, cache: cache_files.CacheFiles) -> None:
        """Give up a promise, if there is one."""
        async with self._changing:
            await self._take_back(image_id, cache)

    async def _take_back(self, image_id: ids.ImageId, cache: cache_files.CacheFiles) -> None:
        if self._kept.pop(image_id, None) is not None:
            await self._save()
        await self._release(image_id, cache)
        self._found.pop(image_id, None)
        part = self._pinned.get(image_id)
        if part is not None:
            contents = await trio.to_thread.run_sync(part.list_contents)
            del self._pinned[image_id]
            await _for_each(contents, cache.unpin_chunk)
            self.changes += 1
            cache.may_grow(cache.lacking_bytes({}) if self.may_grow else 0)

    def forget_found(self, kept: Container[ids.ImageId]) -> None:
        """Forget what was found of images that nobody wants to keep; their maps go with it."""
        for image_id in [one for one in self._found if one not in kept]:
            del self._found[image_id]

    async def change_pin(self, image_id: ids.ImageId, **changes: object) -> None:
        """Change what is wished for an image, if it is promised."""
        async with self._changing:
            if (before := self._kept.get(image_id)) is not None:
                await self._set(msgspec.structs.replace(before, **changes))

    async def _set(self, promised: ImagePin) -> None:
        image_id = ids.parse_image_id(promised.image_id)
        if self._kept.get(image_id) != promised:
            self._kept[image_id] = promised
            await self._save()

    async def _save(self) -> None:
        """Write the file; a disk that does not take it is told of, and guests go on."""
        try:
            await trio.to_thread.run_sync(self._file.write, self.list_pins())
        except OSError as e:
            self.tell(f"cannot be written: {e.strerror}; a restart would not know of all promises")
        else:
            self.tell("")


async def _for_each(contents: Contents, do: cache_files.Pin) -> None:
    """Pin or unpin contents, and let others have their turn in between."""
    for number, (cid, length) in enumerate(contents.items(), 1):
        do(cid, length)
        if not number % AT_A_TIME:
            with trio.CancelScope(shield=True):  # half of it would be neither
                await trio.lowlevel.checkpoint()
