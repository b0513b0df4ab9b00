# SPDX-License-Identifier: Apache-2.0
"""A page of a chunk map, read from the source; its extents are validated as in a whole map."""

import functools
import struct
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import trio

from acstor_agent.runtime import interpreter
from acstor_agent.sources import base
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids

PAGE_CIDS = 2048
MAX_TABLE_BYTES = 4 * geometry.MIB
"""Limit of a page's extents; 128 MiB in clusters of 4 KiB have 768 KiB."""

_LAYOUT_PAGES = PAGE_CIDS // layout.PAGE_CHUNKS


class Page(NamedTuple):
    """CIDs and extents of PAGE_CIDS chunks; a raw image has no extents."""

    cids: bytes
    entries: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Memory of the page."""
        return len(self.cids) + len(self.entries)

    def cid_at(self, number: int) -> ids.Cid:
        """Return a CID by its index in the page."""
        return ids.Cid(self.cids[number * ids.CID_BYTES : (number + 1) * ids.CID_BYTES])


class PagedLayout:
    """The layout of an image of which some pages are here, by image and number."""

    def __init__(
        self, subject: chunk_map.Subject, pages: Mapping[tuple[ids.ImageId, int], Page]
    ) -> None:
        self.stored, self.size_bytes = subject.stored, subject.geometry.size_bytes
        self._subject, self._pages = subject, pages
        self._page_bytes = PAGE_CIDS * subject.geometry.chunk_bytes

    def find(self, start: int, stop: int) -> list[layout.Extent]:
        """Return the extents of a range, or raise SourceOverloaded if its page was evicted."""
        found: list[layout.Extent] = []
        for number in range(start // self._page_bytes, -(-stop // self._page_bytes)):
            if (page := self._pages.get((self._subject.image_id, number))) is None:
                what = f"image {self._subject.image_id}"
                why = "its layout was evicted for those of other images"
                raise errors.SourceOverloaded(what, "this host", why)
            count = len(page.entries) // layout.ENTRY_BYTES
            found += layout.LayoutTable(page.entries, 0, count).extents_between(
                start, stop, 0, count
            )
        return found


async def read(
    source: base.Source, subject: chunk_map.Subject, tables: chunk_map.Tables, number: int
) -> Page:
    """Read a page of an image's map, or raise ChunkMapFormatError or ChunkUnavailable."""
    cut, stored = subject.geometry, subject.stored
    blob = base.Blob(subject.image_id, base.BlobKind.CHUNK_MAP)
    of = chunk_map_header.sections(cut, stored, tables)
    cids = await _read_cids(source, blob, subject, tables, number)
    if stored.is_identity:
        return Page(cids)
    first_page = number * _LAYOUT_PAGES
    slots_count = min(_LAYOUT_PAGES, layout.page_count(cut) - first_page) + 1
    entries_at = of.entries_at
    index_at = entries_at + stored.entries * layout.ENTRY_BYTES
    slots = await source.read(
        blob, index_at + first_page * layout.SLOT_BYTES, slots_count * layout.SLOT_BYTES
    )
    low, high = layout.entry_range(slots)
    length = (high - low) * layout.ENTRY_BYTES
    what = f"{blob.file_name} from {source.location}"
    if not 0 <= length <= MAX_TABLE_BYTES or high > stored.entries:
        why = f"{length} bytes of extents are too many for {PAGE_CIDS} chunks"
        raise errors.ChunkMapFormatError(what, index_at, why)
    entries = await source.read(blob, entries_at + low * layout.ENTRY_BYTES, length)
    check = functools.partial(
        layout.why_invalid, entries, slots, cut, stored, first_page, interpreter.release
    )
    if fault := await trio.to_thread.run_sync(check):
        raise errors.ChunkMapFormatError(what, entries_at + fault[0], fault[1])
    return Page(cids, entries)


async def _read_cids(
    source: base.Source,
    blob: base.Blob,
    subject: chunk_map.Subject,
    tables: chunk_map.Tables,
    number: int,
) -> bytes:
    cut = subject.geometry
    first_page = number * _LAYOUT_PAGES
    count = min(_LAYOUT_PAGES, layout.page_count(cut) - first_page)
    at = chunk_map.HEADER_BYTES + first_page * chunk_map.NUMBER_BYTES
    blocks = struct.unpack(
        f"<{count}I", await source.read(blob, at, count * chunk_map.NUMBER_BYTES)
    )
    if max(blocks) >= tables.blocks:
        what = f"{blob.file_name} from {source.location}"
        raise errors.ChunkMapFormatError(what, at, f"there is no block {max(blocks)}")
    blocks_at = chunk_map_header.sections(cut, subject.stored, tables).blocks_at
    found: dict[int, bytes] = {}
    for start, stop in _runs(sorted(set(blocks))):
        offset = blocks_at + start * chunk_map.BLOCK_BYTES
        raw = await source.read(blob, offset, (stop - start) * chunk_map.BLOCK_BYTES)
        for block in range(start, stop):
            at = (block - start) * chunk_map.BLOCK_BYTES
            found[block] = raw[at : at + chunk_map.BLOCK_BYTES]
    cids = b"".join(found[block] for block in blocks)
    return cids[: (cut.chunk_count - number * PAGE_CIDS) * ids.CID_BYTES]


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs (start, stop) of adjacent numbers.

    >>> list(_runs([3, 4, 7]))
    [(3, 5), (7, 8)]
    """
    start = stop = numbers[0]
    for number in numbers:
        if number != stop:
            yield start, stop
            start = number
        stop = number + 1
    yield start, stop
