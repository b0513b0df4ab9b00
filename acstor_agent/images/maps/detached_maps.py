# SPDX-License-Identifier: Apache-2.0
"""Chunk maps of images that are not attached here, for requests of peers.

A home reads the chunk map of a requested image from the source itself. So it serves no image that
it cannot open, and notices within RECHECK_S that an image was deleted, or its map or boot image
replaced. A deactivated image is still served: a peer that knows its CIDs attached it before.

Only the pages that hold a requested chunk are read. The map's checksum does not cover a page, but a
wrong one only causes refusals, because the peer must prove that it knows the same CID. Loads and
memory are bounded, per peer and in total. Unknown images cost a peer more of its rate, and are soon
refused without a source access.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping

import trio

from acstor_agent.images.maps import map_page
from acstor_agent.images.maps import single_flight
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import log_limit
from acstor_common.util import lru_table
from acstor_common.util import token_buckets

RECHECK_S = 60.0  # interval of checks that the source still allows reading an image
RECHECK_FAILED_S = 5.0  # the same after the source did not answer or had no such image
IMAGES = 1024  # images remembered, and images remembered as missing
PAGES_BYTES = 32 * geometry.MIB
BOOT_HEADS = 64
MAX_BOOT_HEAD_BYTES = geometry.MIB
MAX_LOADS = 8
MAX_LOADS_PER_HOST = 2
LOADS_PER_HOST = token_buckets.Rate(per_s=32.0, burst=512.0)
"""Loads caused by one host. A page covers 128 MiB of an image, so this is 32 Gbit/s."""
LOADS_IN_ALL = token_buckets.Rate(per_s=256.0, burst=4096.0)
MISS_COST = 16  # additional cost of a failed load: a peer can request invented IDs twice a second
HOSTS = 4096
LOG_INTERVAL_S = 10.0

LOG = logging.getLogger(__name__)

Extent = tuple[int, int]
_WRONG_BYTES = (errors.ChunkMapFormatError, errors.BootImageFormatError)


@dataclasses.dataclass(slots=True)
class _Image:
    subject: chunk_map.Subject
    tables: chunk_map.Tables
    stamp: str
    recheck_s: float


def boot_extents(head: boot_image.Head) -> dict[Extent, ids.Cid]:
    """Return the CIDs of a boot image's frames, by their range in the image."""
    return {
        (base.AT_BOOT_IMAGE + frame.offset, frame.stored_bytes): frame.cid for frame in head.frames
    }


class DetachedMaps:
    """Pages of chunk maps, and heads of boot images, from the source."""

    def __init__(
        self,
        source: base.Source,
        nursery: trio.Nursery,
        *,
        images_limit: int = IMAGES,
        pages_bytes: int = PAGES_BYTES,
    ) -> None:
        self._source, self._clock = source, trio.current_time
        self._images = lru_table.LruTable[ids.ImageId, _Image](images_limit)
        self._pages: collections.OrderedDict[tuple[ids.ImageId, int], map_page.Page] = (
            collections.OrderedDict()
        )
        self._pages_bytes, self._pages_limit_bytes = 0, pages_bytes
        self._boots = lru_table.LruTable[ids.ImageId, Mapping[Extent, ids.Cid]](BOOT_HEADS)
        self._missing = lru_table.LruTable[ids.ImageId, tuple[float, type[errors.ChunkMissing]]](
            images_limit
        )
        self._loads = single_flight.SingleFlight(nursery)
        self._limiter = trio.CapacityLimiter(MAX_LOADS)
        self._limiters: dict[ids.HostId, trio.CapacityLimiter] = {}
        self._load_rates: token_buckets.TokenBuckets[ids.HostId] = token_buckets.TokenBuckets(
            LOADS_PER_HOST, HOSTS
        )
        self._total_load_rate: token_buckets.TokenBuckets[None] = token_buckets.TokenBuckets(
            LOADS_IN_ALL, 1
        )
        self._log_limit = log_limit.LogLimit(LOG_INTERVAL_S)
        self.refused = 0  # loads refused because a host exceeded its rate

    @property
    def counts(self) -> dict[str, int]:
        """Entries and bytes kept now."""
        return {"images": len(self._images), "map_bytes": self._pages_bytes}

    def is_known(self, image_id: ids.ImageId, offset: int) -> bool:
        """Return whether :meth:`content_at` can answer now."""
        image = self._images.get(image_id)
        if image is None or not self._is_fresh(image_id):
            return False
        page = self._page_at(image, offset)
        if page is None:
            return True
        return image_id in self._boots if page < 0 else (image_id, page) in self._pages

    def content_at(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content:
        """Return the content at exactly this range; ZERO_CID if there is none."""
        image = self._images[image_id]
        return ids.Content(self._cid_at(image, offset, length), image.subject.scope_keys)

    def geometry_of(self, image_id: ids.ImageId) -> geometry.Geometry | None:
        """Return the geometry of an image; None if it is unknown."""
        image = self._images.get(image_id)
        return None if image is None else image.subject.geometry

    def cids_of(self, image_id: ids.ImageId, first: int, stop: int) -> list[ids.Cid] | None:
        """Return the CIDs of chunks; None if a page is missing."""
        found: list[ids.Cid] = []
        for number in range(first, stop):
            page = self._pages.get((image_id, number // map_page.PAGE_CIDS))
            if page is None:
                return None
            found.append(page.cid_at(number % map_page.PAGE_CIDS))
        return found

    def _cid_at(self, image: _Image, offset: int, length: int) -> ids.Cid:
        image_id = image.subject.image_id
        self._images.move_to_end(image_id)
        page_no = self._page_at(image, offset)
        if page_no is None:
            return ids.ZERO_CID
        if page_no < 0:
            self._boots.move_to_end(image_id)
            return self._boots[image_id].get((offset, length), ids.ZERO_CID)
        chunk_no = image.subject.geometry.chunk_at(offset, length)
        self._pages.move_to_end((image_id, page_no))
        if chunk_no is None:
            return ids.ZERO_CID
        return self._pages[image_id, page_no].cid_at(chunk_no % map_page.PAGE_CIDS)

    def layout_of(self, image_id: ids.ImageId) -> map_page.PagedLayout | None:
        """Return the layout of an image, as far as its pages are here."""
        if (image := self._images.get(image_id)) is None:
            return None
        return map_page.PagedLayout(image.subject, self._pages)

    def _page_at(self, image: _Image, offset: int) -> int | None:
        """Return the map page for an offset; -1 for the boot image's head."""
        if offset >= base.AT_BOOT_IMAGE:
            return -1
        cut = image.subject.geometry
        return offset // cut.chunk_bytes // map_page.PAGE_CIDS if offset < cut.size_bytes else None

    async def read_from_source(self, host: ids.HostId, image_id: ids.ImageId, offset: int) -> None:
        """Load what :meth:`is_known` needs, for a peer.

        :raises errors.ChunkMissing: there is no such image
        :raises errors.ChunkRefused: this host may not read it
        :raises errors.SourceUnreachable: the source does not answer, or a rate limit is exceeded
        """
        self._check_missing(image_id)
        if not self._is_fresh(image_id):
            await self._once(host, image_id, None, lambda: self._open(image_id))
        image = self._images.get(image_id)
        page = None if image is None else self._page_at(image, offset)
        if image is None or page is None or self.is_known(image_id, offset):
            return
        await self._once(host, image_id, page, lambda: self._load(image, page))

    def _is_fresh(self, image_id: ids.ImageId) -> bool:
        image = self._images.get(image_id)
        return image is not None and self._clock() < image.recheck_s

    def _check_load_rate(self, host: ids.HostId, image_id: ids.ImageId) -> None:
        now = self._clock()
        if (
            self._load_rates.tokens_left(host, now) >= 1
            and self._total_load_rate.tokens_left(None, now) >= 1
        ):
            return
        self.refused += 1
        if (untold := self._log_limit.take_line(host, now)) is not None:
            LOG.warning(
                "%s requests images that are not on this host too often, last %s: refused (and "
                "%d like it)",
                host,
                image_id,
                untold,
            )
        what = f"image {image_id}"
        raise errors.SourceUnreachable(what, self._source.location, "too many look-ups already")

    def _charge(self, host: ids.HostId, looks: int) -> None:
        self._load_rates.charge_tokens(host, looks, self._clock())
        self._total_load_rate.charge_tokens(None, looks, self._clock())

    def _check_missing(self, image_id: ids.ImageId) -> None:
        until_s, kind = self._missing.get(image_id, (0.0, errors.ChunkMissing))
        if self._clock() < until_s:
            raise kind(
                f"image {image_id}", self._source.location, "it was unavailable a moment ago"
            )

    async def boot_head(
        self, host: ids.HostId, image_id: ids.ImageId
    ) -> tuple[chunk_map.Subject, boot_image.Head]:
        """Return an active image and its boot image's head, as the source has them now.

        :raises errors.ChunkUnavailable: there is no such image or boot image, this host may not
            read it, or the source does not answer
        :raises errors.BootImageFormatError: it is no boot image of this image
        """
        self._check_missing(image_id)
        if (image := self._images.get(image_id)) is not None:
            image.recheck_s = 0.0  # the boot image may have been replaced
        await self._once(host, image_id, None, lambda: self._open(image_id))
        image = self._images.get(image_id)
        if image is None:  # evicted by other requests
            raise errors.SourceUnreachable(
                f"image {image_id}", "this host", "too many images are requested"
            )
        # The blob must be one that guests may attach.
        await self._source.size_bytes(base.stored_blob(image_id, image.subject.stored.disk_format))
        return image.subject, await self._read_boot_head(image.subject)

    async def _once(
        self,
        host: ids.HostId,
        image_id: ids.ImageId,
        page: int | None,
        load: Callable[[], Awaitable[None]],
    ) -> None:
        """Load something once for all requesters; a cancelled one leaves nothing behind."""
        what = image_id, page
        if what not in self._loads:
            self._check_load_rate(host, image_id)
            end_turn = await self._wait_for_turn(host)
            if what in self._loads:
                end_turn()
            else:
                self._charge(host, 1)
                load_it = functools.partial(self._run_load, host, image_id, load)
                self._loads.start_work(what, load_it, end_turn)
        await self._loads.wait(what)

    async def _wait_for_turn(self, host: ids.HostId) -> Callable[[], None]:
        """Take one of the host's MAX_LOADS_PER_HOST turns; return the function that releases it."""
        limiter = self._limiters.setdefault(host, trio.CapacityLimiter(MAX_LOADS_PER_HOST))
        turn = object()

        def end_turn() -> None:
            limiter.release_on_behalf_of(turn)
            self._forget_idle(host)

        try:
            await limiter.acquire_on_behalf_of(turn)
        finally:  # a cancelled requester may have been the only one
            self._forget_idle(host)
        return end_turn

    async def _run_load(
        self, host: ids.HostId, image_id: ids.ImageId, load: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            async with self._limiter:
                await load()
        except errors.ChunkMissing:
            self._charge(host, MISS_COST)
            raise
        except _WRONG_BYTES as e:
            self._charge(host, MISS_COST)
            raise errors.ChunkMissing(f"image {image_id}", self._source.location, str(e)) from e

    def _forget_idle(self, host: ids.HostId) -> None:
        limiter = self._limiters.get(host)
        if limiter and not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
            del self._limiters[host]

    async def _open(self, image_id: ids.ImageId) -> None:
        if self._is_fresh(image_id):
            return
        image = self._images.get(image_id)
        self._check_missing(image_id)
        try:
            now = await self._read_image(image_id, image)
        except (errors.ChunkMissing, *_WRONG_BYTES) as e:
            self._forget(image_id)
            is_refused = isinstance(e, errors.ChunkRefused)
            kind = errors.ChunkRefused if is_refused else errors.ChunkMissing
            self._missing[image_id] = self._clock() + RECHECK_FAILED_S, kind
            raise
        except errors.SourceUnreachable:
            if image is None:
                raise
            image.recheck_s = self._clock() + RECHECK_FAILED_S  # known pages are still served
            return
        if image is None or image.stamp != now.stamp:
            self._forget(image_id)  # pages of the former map
        self._boots.pop(image_id, None)
        if (evicted := self._images.put(image_id, now)) is not None:
            self._forget(evicted[0])

    async def _read_image(self, image_id: ids.ImageId, former: _Image | None) -> _Image:
        """Return an image as the source has it now; the map's head is read only if it changed."""
        # Read the stamp first: a later change is noticed at the next check.
        chunk_map_blob = base.Blob(image_id, base.BlobKind.CHUNK_MAP)
        stamp = (await self._source.find_blob(chunk_map_blob)).stamp
        if former is not None and former.stamp == stamp:
            subject, tables = former.subject, former.tables
        else:
            subject, tables = await self._read_head(image_id)
        blob = base.stored_blob(image_id, subject.stored.disk_format)
        size_bytes = (await self._source.find_blob(blob)).size_bytes
        if size_bytes != subject.stored.size_bytes:
            what = f"it has {size_bytes} bytes, its chunk map is for {subject.stored.size_bytes}"
            raise errors.ChunkMissing(f"image {image_id}", self._source.location, what)
        return _Image(subject, tables, stamp, self._clock() + RECHECK_S)

    async def _read_head(self, image_id: ids.ImageId) -> tuple[chunk_map.Subject, chunk_map.Tables]:
        blob = base.Blob(image_id, base.BlobKind.CHUNK_MAP)
        head = await self._source.read(blob, 0, chunk_map.HEADER_BYTES)
        return chunk_map_header.parse_head(
            head, f"{blob.file_name} from {self._source.location}", image_id
        )

    async def _load(self, image: _Image, page: int) -> None:
        subject = image.subject
        if page < 0:
            if subject.image_id not in self._boots:
                await self._load_boot(subject)
            return
        if (subject.image_id, page) in self._pages:
            return  # loaded while this one waited
        data = await map_page.read(self._source, subject, image.tables, page)
        now = self._images.get(subject.image_id)
        is_wanted = now is not None and now.stamp == image.stamp
        if not is_wanted or (subject.image_id, page) in self._pages:
            return
        self._pages[subject.image_id, page] = data
        self._pages_bytes += data.size_bytes
        while self._pages_bytes > self._pages_limit_bytes:
            self._pages_bytes -= self._pages.popitem(last=False)[1].size_bytes

    async def _load_boot(self, subject: chunk_map.Subject) -> None:
        extents: Mapping[Extent, ids.Cid] = {}
        try:
            extents = boot_extents(await self._read_boot_head(subject))
        except (errors.ChunkMissing, errors.BootImageFormatError):
            extents = {}
        self._boots[subject.image_id] = extents

    async def _read_boot_head(self, subject: chunk_map.Subject) -> boot_image.Head:
        blob = base.Blob(subject.image_id, base.BlobKind.BOOT_IMAGE)
        what = f"{blob.file_name} from {self._source.location}"
        await self._source.find_blob(blob)  # so that the present one is read
        raw = await self._source.read(blob, 0, boot_image.HEADER_BYTES)
        header = boot_image.parse_header(raw, what)
        boot_image.check_binding(header, boot_image.Binding(*subject[:3]), what)
        if header.head_bytes > MAX_BOOT_HEAD_BYTES:
            raise errors.BootImageFormatError(what, 0, f"a head of {header.head_bytes} bytes")
        head = await self._source.read(blob, 0, header.head_bytes)
        return boot_image.parse_head(head, what)

    def _forget(self, image_id: ids.ImageId) -> None:
        self._images.pop(image_id, None)
        self._boots.pop(image_id, None)
        for key in [key for key in self._pages if key[0] == image_id]:
            self._pages_bytes -= self._pages.pop(key).size_bytes
