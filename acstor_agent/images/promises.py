# SPDX-License-Identifier: Apache-2.0
"""Which images this host keeps whole: promised in a file, and pinned in the public cache.

The one rule: what was promised is not given up because room is short, only when the image is no
longer used, or by the operator.  So pins are there before the cache is opened: derived from the
promises and the chunk maps, both in ``state_dir``.  Where the file of promises is lost, all
attached images are promised again, those touched last first, as far as there is room; the ones
that are not used are given up when that is known.
"""

import collections
import logging
import pathlib
import time
from collections.abc import Callable
from collections.abc import Mapping

import msgspec
import trio

from acstor_agent.cache import cache_files
from acstor_agent.core import cache_pins
from acstor_agent.core import cache_slab
from acstor_agent.core import promise as promise_
from acstor_agent.images import mirrors
from acstor_agent.sources import base
from acstor_common import chunk_map
from acstor_common import errors
from acstor_common import ids
from acstor_common import whole_file

LOG = logging.getLogger(__name__)

FILE = "promises.json"
AT_A_TIME = 1000
"""Contents that are pinned before others have their turn: less than a millisecond."""

Promise = promise_.Promise
Contents = Mapping[ids.Cid, int]
"""What is to be had of an image, each content once, with its length."""


def contents_of(image_map: chunk_map.ChunkMap) -> dict[ids.Cid, int]:
    """Return the contents of an image that are not zeros; takes about 1 ms for 1,000 chunks."""
    cut = image_map.geometry
    found = {image_map.cid(number): cut.chunk_length(number) for number in range(len(image_map))}
    found.pop(ids.ZERO_CID, None)
    return found


def slots_of(contents: Contents, pins: cache_pins.Pins) -> dict[int, int]:
    """Return how many slots of each size contents take that are not pinned yet."""
    fresh = (length for cid, length in contents.items() if cid not in pins)
    return dict(collections.Counter(map(cache_slab.slot_bytes_for, fresh)))


class Promises:
    """The promises of this host, and what they pin.

    :param limit_bytes: of the cache
    :param may_grow: the cache may grow beyond its limit for what is pinned
    """

    def __init__(
        self,
        state_dir: pathlib.Path,
        limit_bytes: int,
        slab_bytes: int,
        *,
        may_grow: bool = False,
    ) -> None:
        self.pins = cache_pins.Pins()
        self.may_grow = may_grow
        self.changes = 0
        """How often what is pinned was changed: only then there may be other room."""
        self.tell: Callable[[str], None] = lambda why: None
        """Is told, whenever the file is written, why that was in vain, or nothing."""
        self._path, self._maps_dir = state_dir / FILE, state_dir / "maps"
        self._limit_bytes, self._slab_bytes = limit_bytes, min(slab_bytes, limit_bytes)
        self._kept: dict[ids.ImageId, Promise] = {}
        self._pinned: dict[ids.ImageId, chunk_map.ChunkMap] = {}
        """The maps by which images were pinned; one that is replaced later must not matter."""
        self._changing = trio.Lock()

    def load(self) -> None:
        """Pin what was promised, before the cache is opened.  It blocks.

        A promise whose chunk map is lost pins nothing before its image is attached again.
        """
        whole_file.remove_leftovers(self._path.parent, self._path.name)
        kept = self._read()
        for image_id, one in (self._derived() if kept is None else kept).items():
            try:
                path = self._maps_dir / base.Blob(image_id, base.BlobKind.CHUNK_MAP).name
                image_map = mirrors.open_map(path, image_id)
            except (OSError, errors.ChunkMapFormatError) as e:
                LOG.warning("image %s: promised to be whole, but its map is lost: %s", image_id, e)
                if kept is not None:
                    self._kept[image_id] = one
                continue
            contents = contents_of(image_map)
            if kept is None and self._lacking_bytes(slots_of(contents, self.pins)):
                continue
            self._kept[image_id], self._pinned[image_id] = one, image_map
            for cid, length in contents.items():
                self.pins.add(cid, length)
            if self.may_grow:
                self.pins.beyond_bytes = self._lacking_bytes({})

    def _lacking_bytes(self, more: Mapping[int, int]) -> int:
        slots = collections.Counter(self.pins.slots) + collections.Counter(more)
        if self.may_grow and more:
            return 0
        return cache_pins.lacking_bytes(slots, self._limit_bytes, self._slab_bytes)

    def _read(self) -> dict[ids.ImageId, Promise] | None:
        """Return what the file says; None if it is lost."""
        try:
            return promise_.decode(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return None
        except (OSError, errors.FormatError) as e:
            LOG.warning("%s; promises are made anew for what is attached", e)
            return None

    def _derived(self) -> dict[ids.ImageId, Promise]:
        stamps = {}
        for path in self._maps_dir.glob(f"*{base.BlobKind.CHUNK_MAP.value}"):
            try:
                stamps[ids.parse_image_id(path.stem)] = path.stat().st_mtime
            except (ValueError, OSError):
                continue  # Mirrors tells of it
        last = sorted(stamps, key=lambda image_id: stamps[image_id], reverse=True)
        return {image_id: Promise(image_id, stamps[image_id]) for image_id in last}

    # What is promised

    def all(self) -> dict[ids.ImageId, Promise]:
        """Return the promises, in the order in which they were made; from any thread."""
        return self._kept.copy()

    def get(self, image_id: ids.ImageId) -> Promise | None:
        """Return the promise of an image; from any thread."""
        return self._kept.get(image_id)

    def pinned(self, image_id: ids.ImageId) -> chunk_map.ChunkMap | None:
        """Return the map by which an image is pinned, None if it is not; from any thread."""
        return self._pinned.get(image_id)

    # What changes it

    async def make(
        self,
        image_id: ids.ImageId,
        image_map: chunk_map.ChunkMap,
        cache: cache_files.CacheFiles,
        *,
        is_asked: bool = False,
    ) -> int:
        """Promise to keep an image; pin it.

        :return: how many bytes the cache lacks; if it lacks any, nothing is promised
        """
        async with self._changing:
            if image_id not in self._pinned:
                contents = await trio.to_thread.run_sync(contents_of, image_map)
                slots = await trio.to_thread.run_sync(slots_of, contents, self.pins)
                lacking_bytes = cache.lacking_bytes(slots)
                if lacking_bytes and not self.may_grow:
                    return lacking_bytes
                if self.may_grow:  # before the first pinned chunk needs it
                    cache.may_grow(lacking_bytes)
                self._pinned[image_id] = image_map
                self.changes += 1
                await _for_each(contents, cache.pin)
            before = self._kept.get(image_id) or Promise(image_id, time.time())
            await self._set(msgspec.structs.replace(before, is_asked=before.is_asked or is_asked))
            return 0

    async def take_back(self, image_id: ids.ImageId, cache: cache_files.CacheFiles) -> None:
        """Give up a promise, if there is one."""
        async with self._changing:
            if self._kept.pop(image_id, None) is not None:
                await self._save()
            image_map = self._pinned.get(image_id)
            if image_map is not None:
                contents = await trio.to_thread.run_sync(contents_of, image_map)
                del self._pinned[image_id]
                await _for_each(contents, cache.unpin)
                self.changes += 1
                cache.may_grow(cache.lacking_bytes({}) if self.may_grow else 0)

    async def change(self, image_id: ids.ImageId, **changes: object) -> None:
        """Change what is wished for an image, if it is promised."""
        async with self._changing:
            if (before := self._kept.get(image_id)) is not None:
                await self._set(msgspec.structs.replace(before, **changes))

    async def _set(self, promised: Promise) -> None:
        image_id = ids.parse_image_id(promised.image_id)
        if self._kept.get(image_id) != promised:
            self._kept[image_id] = promised
            await self._save()

    async def _save(self) -> None:
        """Write the file; a disk that does not take it is told of, and guests go on."""
        raw = promise_.encode(self._kept.values())
        try:
            await trio.to_thread.run_sync(_write, self._path, raw)
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


def _write(path: pathlib.Path, raw: bytes) -> None:
    with whole_file.written(path, 0o600) as file:
        file.write(raw)
