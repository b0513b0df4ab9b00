# SPDX-License-Identifier: Apache-2.0
"""Cluster cache: the compressed clusters of one image that were decoded last.

Its key is the stored extent.  Entries of a qcow2 file may name one stored extent any number of
times: it is decoded once then.
"""

import collections
import threading
from collections.abc import Callable

from acstor_common import codecs
from acstor_common import layout

CLUSTERS = 8
"""Clusters that are kept, of 2 MiB at most each."""

_Key = tuple[int, int, int, int]


class ClusterCache:
    """Decoded clusters, the last used ones; any number of threads may use it."""

    def __init__(self) -> None:
        self._decoded: collections.OrderedDict[_Key, codecs.Buffer] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, extent: layout.Extent, length: int, decode: Callable[[], codecs.Buffer]
    ) -> codecs.Buffer:
        """Return the first ``length`` bytes that a compressed extent stands for.

        Two threads that ask at the same time for an extent that is not kept both decode it.

        :param decode: returns them; called if they are not kept
        """
        key = (extent.codec, extent.offset, extent.stored_bytes, length)
        with self._lock:
            found = self._decoded.get(key)
            if found is not None:
                self._decoded.move_to_end(key)
                return found
        found = decode()
        with self._lock:
            self._decoded[key] = found
            if len(self._decoded) > CLUSTERS:
                self._decoded.popitem(last=False)
        return found
