# SPDX-License-Identifier: Apache-2.0
"""Asks Glance for an image's record, locations, and the permission to download.

For the permission it requests a range beyond the image's end with the caller's token: Glance
decides, then answers 416 without accessing a store.
"""

import hashlib
import http
import logging
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import requests
from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import tracing
from acstor_common.util import concurrency_limit
from acstor_common.util import log_once
from acstor_glance import conf as glance_conf
from acstor_glance.client import glance_client
from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import read_admission
from acstor_glance.gateway import stores
from acstor_glance.gateway import ttl_cache

LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CACHED = 16_384
MAX_CONCURRENT = 16  # concurrent requests to Glance: half of the documented server's threads
READABLE = frozenset({image_record.ACTIVE, image_record.DEACTIVATED})
"""Statuses of readable images; only administrators and agents may read the second."""
_BARE = image_record.SERVED_CONTAINER_FORMAT
_PERMITTED = frozenset({200, 204, 206, 400, 416})
"""Answers that mean permission; Glance decides before it looks at range and store."""
_PASSED_ON = frozenset({401, 403, 404})
_LOCATIONS = frozenset({"locations", "direct_url"})  # they may hold passwords of stores


class Caller(NamedTuple):
    """The caller, by its tokens; a service may act for it with its own."""

    token: str
    service_token: str = ""
    project_id: str = read_admission.SERVICE

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the tokens."""
        served = {"X-Service-Token": self.service_token} if self.service_token else {}
        return {"X-Auth-Token": self.token, **served}

    @property
    def cache_key(self) -> bytes:
        """Key for caches."""
        return hashlib.sha256(self.token.encode()).digest()


class ReadableImage(NamedTuple):
    """Part of Glance's record of an image."""

    image_id: ids.ImageId
    size_bytes: int
    md5: str  # hexadecimal; empty if unknown
    disk_format: str = ""  # empty unless the container is ``bare``
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH

    @property
    def etag(self) -> str:
        """The strong validator of its bytes (RFC 9110); empty if Glance knows no hash of them."""
        found = self.os_hash.value.hex() or self.md5
        return f'"{found}"' if found else ""


def adapter_of(conf: cfg.ConfigOpts) -> adapter.Adapter:
    """Return an adapter for the Glance of ``conf``; it sends each request's own token."""
    own = conf.acstor_glance
    return adapter.Adapter(
        session=glance_client.session_of(conf),
        service_type="image",
        region_name=own.region_name,
        interface=own.valid_interfaces or ["internal", "public"],
        endpoint_override=own.endpoint_override,
    )


class ImageLookup:
    """Images of the Glance that ``conf`` names; methods raise http_errors.HttpError."""

    def __init__(self, conf: cfg.ConfigOpts, counters: gateway_metrics.GatewayMetrics) -> None:
        self._images, self._counters = glance_client.connect(conf), counters
        ttl_s, self._glance = conf.acstor_gateway.auth_cache_s, adapter_of(conf)
        self._limit = concurrency_limit.ConcurrencyLimit("Glance", MAX_CONCURRENT, time)
        self._fault, self._locations_fault = log_once.LogOnce(LOG), log_once.LogOnce(LOG)
        self._known: ttl_cache.TtlCache[ReadableImage] = ttl_cache.TtlCache(ttl_s, MAX_CACHED)
        self._locations: ttl_cache.TtlCache[list[stores.Location]] = ttl_cache.TtlCache(
            ttl_s, MAX_CACHED
        )

    def get_readable(self, image_id: ids.ImageId, caller: Caller) -> ReadableImage:
        """Return an image that the caller may download."""
        key = (caller.cache_key, image_id)
        with tracing.Span("acstor_permission_lookup", image=image_id) as span:
            known = self._known.get(key)
            span.add_results(cached=known is not None)
            if known is None:
                known = self._fetch_image(image_id, caller)
                self._known.put(key, known)
        return known

    def fetch_record(
        self,
        image_id: ids.ImageId,
        caller: Caller,
        timeout_s: float = glance_conf.API_TIMEOUT_S,
    ) -> image_record.Image:
        """Return the current record of an image, as the caller sees it."""
        return self._fetch_record(image_id, caller, image_record.Image.from_record, timeout_s)

    def fetch_public_record(self, image_id: ids.ImageId, caller: Caller) -> dict[str, Any]:
        """Return the record of an image as Glance has it, without its locations."""
        found = self._fetch_record(image_id, caller, dict)
        return {name: value for name, value in found.items() if name not in _LOCATIONS}

    def own_caller(self) -> Caller:
        """Return the credentials of the gateway itself."""
        return Caller(self._of_keystone(self._glance.get_token))

    def own_project_id(self) -> str:
        """Return the project of the gateway's user."""
        return self._of_keystone(self._glance.get_project_id)

    def forget_own_token(self) -> None:
        """Authenticate again at the next :meth:`own_caller`."""
        self._glance.invalidate()

    def quota_left(self, caller: Caller) -> int | None:
        """Return the rest of the project's quota in bytes; None: unknown, or no Keystone limits."""
        answer = self._get("/v2/info/usage", caller)
        if answer.status_code != http.HTTPStatus.OK:
            return None
        return self._decoded(answer, parse_quota_left)

    def list_locations(self, image_id: ids.ImageId, is_fresh: bool) -> list[stores.Location]:
        """Return the locations of an image, in Glance's order; ``is_fresh``: uncached."""
        known = None if is_fresh else self._locations.get(image_id)
        if known is None:
            known = self._fetch_locations(image_id)
            self._locations.put(image_id, known)
        return known

    def invalidate(self, image_id: ids.ImageId, caller: Caller) -> None:
        """Drop the cached answer for this caller."""
        self._known.invalidate((caller.cache_key, image_id))

    def _of_keystone(self, ask: Callable[[], str | None]) -> str:
        try:
            return ask() or ""
        except exceptions.ClientException as error:
            self._fault.log_warning(f"Keystone, for the gateway's user: {error}")
            self._counters.count_service_fault("keystone")
            words = f"Keystone does not authenticate the gateway's user: {type(error).__name__}"
            raise http_errors.HttpError(http.HTTPStatus.BAD_GATEWAY, words) from error

    def _fetch_record(
        self,
        image_id: ids.ImageId,
        caller: Caller,
        parse: Callable[[dict[str, Any]], T],
        timeout_s: float = glance_conf.API_TIMEOUT_S,
    ) -> T:
        answer = self._get(f"/v2/images/{image_id}", caller, timeout_s=timeout_s)
        if answer.status_code != http.HTTPStatus.OK:
            raise self._refusal(answer.status_code, "the lookup of the image")
        return self._decoded(answer, parse)

    def _fetch_image(self, image_id: ids.ImageId, caller: Caller) -> ReadableImage:
        image = _image_of(image_id, self.fetch_record(image_id, caller))
        behind = {"Range": f"bytes={image.size_bytes}-"}
        answer = self._get(f"/v2/images/{image_id}/file", caller, behind)
        if answer.status_code not in _PERMITTED:
            raise self._refusal(answer.status_code, "the check of the right to download it")
        return image

    def _get(
        self,
        path: str,
        caller: Caller,
        headers: dict[str, str] | None = None,
        timeout_s: float = glance_conf.API_TIMEOUT_S,
    ) -> requests.Response:
        try:
            with self._limit.hold_slot():
                answer: requests.Response = self._glance.get(
                    path,
                    headers={**caller.headers, **(headers or {})},
                    authenticated=False,
                    raise_exc=False,
                    stream=headers is not None,
                    timeout=timeout_s,
                )
        except concurrency_limit.LimitReached as error:
            raise self._refusal(None, str(error)) from error
        except (exceptions.ClientException, requests.exceptions.RequestException) as error:
            self._fault.log_warning(f"Glance: {error}")
            raise self._refusal(None, type(error).__name__) from error
        self._fault.log_warning("")
        if headers is not None:
            answer.close()
        return answer

    def _fetch_locations(self, image_id: ids.ImageId) -> list[stores.Location]:
        try:
            with self._limit.hold_slot():
                found = self._images.list_locations(image_id)
        except concurrency_limit.LimitReached as error:
            raise self._refusal(None, str(error)) from error
        except errors.ImageServiceError as error:
            self._locations_fault.log_warning(f"Glance does not return locations: {error.why}")
            self._counters.count_service_fault("glance")
            raise http_errors.HttpError(
                http.HTTPStatus.BAD_GATEWAY,
                "Glance returns no locations to the gateway's user, who needs the role service: "
                f"{type(error).__name__}",
            ) from error
        self._locations_fault.log_warning("")
        return [stores.Location(url, store) for url, store in found]

    def _decoded(self, answer: requests.Response, parse: Callable[[dict[str, Any]], T]) -> T:
        try:
            return parse(dict(answer.json()))
        except (ValueError, TypeError) as error:
            raise self._refusal(None, "its answer is not a record of an image") from error

    def _refusal(self, status: int | None, words: str) -> http_errors.HttpError:
        if status in _PASSED_ON:
            answer = http.HTTPStatus(status)
            return http_errors.HttpError(answer, f"Glance answers {status} to {words}")
        self._counters.count_service_fault("glance")
        why = f"it answers {status} to {words}" if status else words
        return http_errors.HttpError(http.HTTPStatus.BAD_GATEWAY, f"Glance did not answer: {why}")


def parse_quota_left(usage: Mapping[str, Any]) -> int | None:
    """Return the rest of a quota in bytes, None if there is none, from ``/v2/info/usage`` (MiB)."""
    try:
        found = usage["usage"]["image_size_total"]
        limit_mib, used_mib = int(found["limit"]), int(found["usage"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if limit_mib < 0 else max(0, limit_mib - used_mib) * geometry.MIB


def _image_of(image_id: ids.ImageId, record: image_record.Image) -> ReadableImage:
    if record.status not in READABLE:
        raise http_errors.HttpError(
            http.HTTPStatus.CONFLICT,
            f"the image's status is {record.status or 'unknown'}, not active",
        )
    if not record.size_bytes:
        raise http_errors.HttpError(
            http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            "the image is empty",
            {"Content-Range": "bytes */0"},
        )
    md5 = record.text("checksum").lower()
    return ReadableImage(image_id, record.size_bytes, md5, disk_format_of(record), record.os_hash)


def disk_format_of(record: image_record.Image) -> str:
    """Return an image's disk format; empty unless its container is ``bare``."""
    is_bare = record.container_format == _BARE
    return record.disk_format if is_bare else ""
