# SPDX-License-Identifier: Apache-2.0
"""Ceph: reads ranges of RBD images by librbd, with the store's keyring.

Each read opens the image, since Ceph returns zeros for an image that is deleted while open.
"""

import contextlib
import threading
from typing import Any

import rados
import rbd
from glance_store import exceptions as store_errors

from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import base


class RbdReader(base.Reader):
    """Reads RBD images of one cluster; ``store`` is the driver."""

    def __init__(self, name: str, store: Any) -> None:
        super().__init__(name)
        self._store = store
        self._lock = threading.Lock()
        self._cluster: _Cluster | None = None

    def read(self, location: Any, requested: byte_range.ByteRange) -> base.ObjectRange:
        """Read a range; see :meth:`base.Reader.read`."""
        pool = location.pool or self._store.pool
        cluster = None
        try:
            cluster = self._connected()
            with (
                cluster.client.open_ioctx(pool) as place,
                rbd.Image(
                    place, location.image, snapshot=location.snapshot, read_only=True
                ) as image,
            ):
                size_bytes = image.size()
                if requested.offset + requested.length > size_bytes:
                    raise self.status_error(416, "")
                data = image.read(requested.offset, requested.length)
        except (rbd.ImageNotFound, rados.ObjectNotFound) as error:
            raise base.ObjectMissing(
                self.name, "it has no such RBD image, or no such pool"
            ) from error
        except (rados.PermissionError, rados.PermissionDeniedError, rbd.PermissionError) as error:
            raise base.CredentialsRefused(self.name, "Ceph refuses the key") from error
        except (rados.Error, rbd.Error, store_errors.GlanceStoreException) as error:
            self._drop(cluster)
            raise base.StoreUnreachable(self.name, type(error).__name__) from error
        if len(data) != requested.length:
            raise base.StoreUnreachable(
                self.name, f"it returned {len(data)} of {requested.length} bytes"
            )
        return base.ObjectRange(data, size_bytes)

    def _connected(self) -> "_Cluster":
        with self._lock:
            if self._cluster is None:
                self._cluster = _Cluster(self._store)
            return self._cluster

    def _drop(self, cluster: "_Cluster | None") -> None:
        with self._lock:
            if cluster is not None and self._cluster is cluster:
                self._cluster = None


class _Cluster:
    """A cluster connection, made by the driver; closes when unreferenced."""

    def __init__(self, store: Any) -> None:
        self._stack = contextlib.ExitStack()
        self.client = self._stack.enter_context(
            store.get_connection(conffile=store.conf_file, rados_id=store.user)
        )

    def __del__(self) -> None:
        self._stack.close()
