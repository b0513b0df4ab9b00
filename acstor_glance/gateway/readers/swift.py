# SPDX-License-Identifier: Apache-2.0
"""Swift: GET with a range, which Swift applies to large objects too."""

import http
import threading
from typing import Any

import requests
import swiftclient
from glance_store import exceptions as store_errors
from keystoneauth1 import exceptions as keystone_errors

from acstor_common.util import lru_table
from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import base

_LARGE = ("x-static-large-object", "x-object-manifest")
"""Headers of objects whose ETag is not their MD5."""
ACCOUNTS = 64


class SwiftReader(base.Reader):
    """Reads objects; keeps up to ``reads`` idle connections per account."""

    def __init__(self, name: str, store: Any, reads: int, timeout_s: float) -> None:
        super().__init__(name)
        self._store, self._reads, self._timeout_s = store, reads, timeout_s
        self._lock = threading.Lock()
        self._idle: lru_table.LruTable[object, list[Any]] = lru_table.LruTable(ACCOUNTS)

    def read(self, location: Any, requested: byte_range.ByteRange) -> base.ObjectRange:
        """Read a range; see :meth:`base.Reader.read`."""
        account = (location.swift_url, location.user, location.key)
        wanted = f"bytes={requested.offset}-{requested.offset + requested.length - 1}"
        try:
            manager = self._take(account) or self._store.get_manager(location, allow_reauth=True)
            connection = manager.get_connection()
            connection.timeout, connection.retries = self._timeout_s, 0
            headers, data = connection.get_object(
                location.container, location.obj, headers={"Range": wanted}
            )
        except swiftclient.ClientException as error:
            status = error.http_status or None
            raise self.status_error(status, f"it answers {status}") from error
        except (keystone_errors.Unauthorized, keystone_errors.Forbidden) as error:
            raise self.status_error(http.HTTPStatus.UNAUTHORIZED, "Keystone") from error
        except (
            keystone_errors.ClientException,
            store_errors.GlanceStoreException,
            requests.exceptions.RequestException,
            OSError,
        ) as error:
            raise base.StoreUnreachable(self.name, type(error).__name__) from error
        self._keep(account, manager)
        md5 = "" if any(name in headers for name in _LARGE) else headers.get("etag", "")
        return self.parse_response(requested, headers.get("content-range", ""), data, md5)

    def _take(self, account: object) -> Any:
        with self._lock:
            idle = self._idle.get(account)
            return idle.pop() if idle else None

    def _keep(self, account: object, manager: Any) -> None:
        with self._lock:
            idle = self._idle.get(account, [])
            if len(idle) < self._reads:
                idle.append(manager)
            self._idle[account] = idle
