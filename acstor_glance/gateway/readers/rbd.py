# SPDX-License-Identifier: Apache-2.0
"""Ceph: parts of RBD images by librbd, with the keyring of the store.

The connection to the cluster, and the images that were read last, stay open.  After an error both
are let go, and the next read opens them again.
"""

import collections
import contextlib
import threading
from typing import Any

import rados
import rbd
from glance_store import exceptions as store_errors

from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import base

OPEN_IMAGES = 64


class RbdReader(base.Reader):
    """Reads RBD images of one cluster.

    :param store: the driver
    """

    def __init__(self, name: str, store: Any) -> None:
        super().__init__(name)
        self._store = store
        self._lock = threading.Lock()
        self._cluster: _Cluster | None = None

    def read(self, location: Any, asked: byte_range.ByteRange) -> base.Part:
        """Read a part of an object; see :meth:`base.Reader.read`."""
        key = (location.pool or self._store.pool, location.image, location.snapshot)
        cluster = None
        try:
            cluster = self._connected()
            image = cluster.opened(*key)
            size_bytes = image.size()
            if asked.offset + asked.length > size_bytes:
                raise self.of_status(416, "")
            data = image.read(asked.offset, asked.length)
        except (rbd.ImageNotFound, rados.ObjectNotFound) as error:
            raise base.Absent(self.name, "it has no such RBD image, or no such pool") from error
        except rados.PermissionError as error:
            raise base.CredentialsRefused(self.name, "Ceph refuses the key") from error
        except (rados.Error, rbd.Error, store_errors.GlanceStoreException) as error:
            self._drop(cluster)
            raise base.StoreUnreachable(self.name, type(error).__name__) from error
        if len(data) != asked.length:
            raise base.StoreUnreachable(self.name, f"it gave {len(data)} of {asked.length} bytes")
        return base.Part(data, size_bytes)

    def _connected(self) -> "_Cluster":
        with self._lock:
            if self._cluster is None:
                self._cluster = _Cluster(self._store)
            return self._cluster

    def _drop(self, cluster: "_Cluster | None") -> None:
        """Let go of a connection that had an error; reads that use it now end by themselves."""
        with self._lock:
            if cluster is not None and self._cluster is cluster:
                self._cluster = None


class _Cluster:
    """A connection to Ceph, and images that are open."""

    def __init__(self, store: Any) -> None:
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(
            store.get_connection(conffile=store.conf_file, rados_id=store.user)
        )
        self._lock = threading.Lock()
        self._images: collections.OrderedDict[object, Any] = collections.OrderedDict()

    def opened(self, pool: str, name: str, snapshot: str | None) -> Any:
        """Return an image that is open for reading."""
        key = (pool, name, snapshot)
        with self._lock:
            image = self._images.get(key)
            if image is None:
                place = self._client.open_ioctx(pool)
                image = rbd.Image(place, name, snapshot=snapshot, read_only=True)
                self._images[key] = image
            self._images.move_to_end(key)
            while len(self._images) > OPEN_IMAGES:
                self._images.popitem(last=False)  # it is closed when its last read has ended
            return image
