# SPDX-License-Identifier: Apache-2.0
"""Reads a range of an image, and checks permission, size and, if known, MD5."""

import http
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from acstor_common.model import ids
from acstor_glance.gateway import byte_range
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import stores
from acstor_glance.gateway import ttl_cache
from acstor_glance.gateway.readers import base

LOG = logging.getLogger(__name__)

LOG_REPEAT_S = 60.0  # time for which the log does not repeat why an image cannot be read
MAX_LOGGED = 1024


ReadFault = base.StoreFault | http_errors.HttpError


class ImageRange(NamedTuple):
    """A range of an image."""

    data: bytes
    requested: byte_range.ByteRange
    is_whole: bool  # the request had no range that counts


class RangeReader:
    """Reads ranges; after ``timeout_s`` no other location is tried."""

    def __init__(
        self,
        lookup: image_lookup.ImageLookup,
        image_stores: stores.Stores,
        max_bytes: int,
        timeout_s: float,
    ) -> None:
        self._lookup, self._stores = lookup, image_stores
        self._max_bytes, self._timeout_s = max_bytes, timeout_s
        self._logged: ttl_cache.TtlCache[str] = ttl_cache.TtlCache(LOG_REPEAT_S, MAX_LOGGED)

    def find_image(
        self, image_id: ids.ImageId, caller: image_lookup.Caller
    ) -> image_lookup.ReadableImage:
        """Return the record of an image that the caller may read; raises HttpError."""
        return self._lookup.get_readable(image_id, caller)

    def read_range(
        self,
        image: image_lookup.ReadableImage,
        header: str,
        caller: image_lookup.Caller,
        if_range: str = "",
    ) -> ImageRange:
        """Return the range that headers Range and If-Range select; raises HttpError."""
        if if_range and if_range != image.etag:
            header = ""
        requested = byte_range.parse(header, image.size_bytes, self._max_bytes)

        def refresh() -> image_lookup.ReadableImage:
            self._lookup.invalidate(image.image_id, caller)
            return self._lookup.get_readable(image.image_id, caller)

        data = self._read(image, requested, caller, refresh)
        return ImageRange(data, requested, byte_range.is_ignored(header))

    def read_part(
        self,
        image: image_lookup.ReadableImage,
        requested: byte_range.ByteRange,
        caller: image_lookup.Caller,
    ) -> bytes:
        """Return a range for a job; permission was checked at its start, as in Glance."""
        return self._read(image, requested, caller, lambda: image)

    def _read(
        self,
        image: image_lookup.ReadableImage,
        requested: byte_range.ByteRange,
        caller: image_lookup.Caller,
        refresh: Callable[[], image_lookup.ReadableImage],
    ) -> bytes:
        image_id, until_s = image.image_id, time.monotonic() + self._timeout_s
        cached = self._list_locations(image_id, is_fresh=False)
        data, faults = self._read_first(image, cached, requested, caller, until_s)
        if data is None:
            image = refresh()
            now = self._list_locations(image_id, is_fresh=True)
            if now != cached:
                data, faults = self._read_first(image, now, requested, caller, until_s)
        if data is None:
            refused = _refused(faults)
            self._log_failure(image_id, refused.message)
            raise refused
        return data

    def _list_locations(self, image_id: ids.ImageId, *, is_fresh: bool) -> list[stores.Location]:
        found = self._lookup.list_locations(image_id, is_fresh=is_fresh)
        return self._stores.sort_locations(found)

    def _log_failure(self, image_id: ids.ImageId, words: str) -> None:
        if self._logged.get(image_id) != words:
            LOG.warning("image %s: %s", image_id, words)
            self._logged.put(image_id, words)

    def _read_first(
        self,
        image: image_lookup.ReadableImage,
        locations: list[stores.Location],
        requested: byte_range.ByteRange,
        caller: image_lookup.Caller,
        until_s: float,
    ) -> tuple[bytes | None, list[ReadFault]]:
        faults: list[ReadFault] = []
        for location in locations:
            if faults and time.monotonic() > until_s:
                break
            try:
                part = self._stores.read(location, requested, caller.project_id)
                _check(image, part, location.store or location.scheme)
            except base.StoreFault as fault:
                self._stores.count_fault(fault)
                faults.append(fault)
            except http_errors.HttpError as fault:
                faults.append(fault)
            else:
                return part.data, faults
        return None, faults


def _check(image: image_lookup.ReadableImage, part: base.ObjectRange, store: str) -> None:
    if part.size_bytes != image.size_bytes:
        why = f"it has {part.size_bytes} bytes, but {image.size_bytes} in Glance's record"
        raise base.ContentMismatch(store, why)
    if part.md5 and image.md5 and part.md5 != image.md5:
        why = f"the MD5 of its data is {part.md5}, but {image.md5} in Glance's record"
        raise base.ContentMismatch(store, why)


def _refused(faults: list[ReadFault]) -> http_errors.HttpError:
    """Return one error for all locations; a temporary one takes precedence."""
    words = "; ".join(str(fault) for fault in faults) or "Glance has no location of its data"
    passing = [fault for fault in faults if isinstance(fault, http_errors.HttpError)]
    worst = max((fault.status for fault in faults), default=http.HTTPStatus.CONFLICT)
    headers = next((fault.headers for fault in passing if fault.status == worst), None)
    return http_errors.HttpError(worst, words, headers)
