# SPDX-License-Identifier: Apache-2.0
"""Cache of decompressed clusters, by stored extent: entries of a qcow2 file may share one."""

import collections
import threading
from collections.abc import Hashable

from acstor_common.formats import codecs
from acstor_common.formats import layout

_Key = tuple[object, ...]


class ClusterCache:
    """LRU cache, thread-safe; if full, the image with the most bytes loses its oldest cluster."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._lock = limit_bytes, threading.Lock()
        self._of: dict[Hashable, collections.OrderedDict[_Key, codecs.Buffer]] = {}
        self._bytes: collections.Counter[Hashable] = collections.Counter()

    def get(self, extent: layout.Extent, image: Hashable = None) -> codecs.Buffer | None:
        """Return the cluster of an extent; None if it is not cached."""
        key = extent[1:]
        with self._lock:
            kept = self._of.get(image)
            if kept is None or key not in kept:
                return None
            kept.move_to_end(key)
            return kept[key]

    def put(self, extent: layout.Extent, data: codecs.Buffer, image: Hashable = None) -> None:
        """Cache a decompressed cluster."""
        key = extent[1:]
        with self._lock:
            self._drop(image, key)
            self._of.setdefault(image, collections.OrderedDict())[key] = data
            self._bytes[image] += len(data)
            while self._bytes.total() > self._limit_bytes:
                most = max(self._bytes, key=self._bytes.__getitem__)
                self._drop(most, next(iter(self._of[most])))

    def forget(self, extent: layout.Extent, image: Hashable = None) -> None:
        """Remove a cluster."""
        with self._lock:
            self._drop(image, extent[1:])

    def _drop(self, image: Hashable, key: _Key) -> None:
        kept = self._of.get(image)
        if kept is not None and key in kept:
            self._bytes[image] -= len(kept.pop(key))
            if not kept:
                del self._of[image], self._bytes[image]
