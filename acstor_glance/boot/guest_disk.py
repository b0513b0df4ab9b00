# SPDX-License-Identifier: Apache-2.0
"""Reads an image's file as the guest's disk, by the chunk map's layout, unverified."""

import os
import time

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import cluster_cache
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_glance.prepare import preparation_budget

CACHE_BYTES = 8 * layout.MAX_CLUSTER_BYTES


class GuestDisk:
    """The disk of one image, for one thread; ``file`` is a descriptor."""

    def __init__(
        self,
        file: int,
        image_map: chunk_map.ChunkMap,
        budget: preparation_budget.PreparationBudget | None = None,
    ) -> None:
        self._file, self._layout = file, image_map.layout
        self._what = f"the file of image {image_map.image_id}"
        self._budget = budget or preparation_budget.PreparationBudget(self._what)
        self._kept = cluster_cache.ClusterCache(CACHE_BYTES)
        self.size_bytes = image_map.geometry.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the disk, with zeros beyond its end; raises errors.Unusable."""
        data, stop = bytearray(length), min(offset + length, self.size_bytes)
        for extent in self._layout.find(offset, stop) if offset < stop else ():
            low, high = max(extent.at, offset), min(extent.at + extent.length, stop)
            part = self._part(extent, low - extent.at, high - low)
            data[low - offset : low - offset + len(part)] = part
        return bytes(data)

    def _part(self, extent: layout.Extent, skip: int, length: int) -> codecs.Buffer:
        if extent.codec is layout.Codec.STORED:
            return os.pread(self._file, length, extent.offset + skip)
        return memoryview(self._cluster(extent))[skip : skip + length]

    def _cluster(self, extent: layout.Extent) -> codecs.Buffer:
        if (decoded := self._kept.get(extent)) is None:
            decoded = self._decoded(extent)
            self._kept.put(extent, decoded)
        return decoded

    def _decoded(self, extent: layout.Extent) -> codecs.Buffer:
        stored = os.pread(self._file, extent.stored_bytes, extent.offset)
        began_s = time.thread_time()
        try:
            decoded = codecs.decode(extent.codec, stored, extent.length)
        except codecs.CodecError as exc:
            raise errors.Unusable(self._what, f"its byte {extent.offset}: {exc}") from exc
        self._budget.charge_decoded(len(decoded), time.thread_time() - began_s)
        return decoded
