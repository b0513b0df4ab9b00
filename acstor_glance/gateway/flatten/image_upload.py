# SPDX-License-Identifier: Apache-2.0
"""Uploads an image to Glance with the caller's token; if incomplete, it is ``queued`` again."""

import http
import logging
import time
from collections.abc import Iterable
from collections.abc import Iterator

import requests
from keystoneauth1 import exceptions
from oslo_config import cfg

from acstor_common.formats import codecs
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup

LOG = logging.getLogger(__name__)

SETTLE_S = 10.0  # longest wait until Glance notices the end of a failed upload
SETTLE_STEP_S = 0.25
CHUNKED_DRIVERS = frozenset({"swift"})
"""Drivers to which images are sent in HTTP chunks.

With the length, Swift's cannot store a large object's last segment (glance_store 5.7); without it,
S3's would read the image into memory.
"""
_PASSED_ON = frozenset({400, 401, 403, 404, 409, 410, 413, 415})


class UploadBody:
    """An image's bytes for the upload, of a known length."""

    def __init__(self, parts: Iterable[codecs.Buffer], length: int) -> None:
        self._parts, self.length = parts, length
        self.sent_bytes = 0

    def __iter__(self) -> Iterator[codecs.Buffer]:
        for part in self._parts:
            yield part
            self.sent_bytes += len(part)


class _Sized:
    """Data with a length that requests can see, so that it does not send chunks."""

    def __init__(self, data: UploadBody) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.length

    def __iter__(self) -> Iterator[codecs.Buffer]:
        return iter(self._data)


class ImageUploader:
    """Uploads images; ``default_driver`` is that of Glance's default store."""

    def __init__(
        self, conf: cfg.ConfigOpts, lookup: image_lookup.ImageLookup, default_driver: str
    ) -> None:
        self._glance, self._lookup = image_lookup.adapter_of(conf), lookup
        self._is_sized = default_driver not in CHUNKED_DRIVERS

    def check_target(
        self, image_id: ids.ImageId, caller: image_lookup.Caller, disk_format: str
    ) -> None:
        """Raise HttpError unless an image is queued and has this format."""
        record = self._lookup.fetch_record(image_id, caller)
        if (status := record.status) != image_record.QUEUED:
            words = f"the image's status is {status or 'unknown'}, not {image_record.QUEUED}"
            raise http_errors.HttpError(http.HTTPStatus.CONFLICT, words)
        if (wanted := image_lookup.disk_format_of(record)) != disk_format:
            words = (
                f"the image's format is {wanted or 'not set'}, and {disk_format} is requested: set "
                "disk_format and container_format (bare) first"
            )
            raise http_errors.HttpError(http.HTTPStatus.CONFLICT, words)

    def upload_image(
        self, image_id: ids.ImageId, caller: image_lookup.Caller, data: UploadBody, timeout_s: float
    ) -> None:
        """Upload an image; ``timeout_s``: longest wait for Glance, per part and for its answer."""
        try:
            answer = self._put(image_id, caller, data, timeout_s)
        except http_errors.HttpError:
            self._settle(image_id, caller)
            raise
        except (exceptions.ClientException, requests.exceptions.RequestException) as error:
            LOG.warning("image %s: Glance refuses its data: %s", image_id, error)
            words = f"Glance does not take the image's bytes: {type(error).__name__}"
            self._settle(image_id, caller)
            raise http_errors.FlattenAborted(
                http.HTTPStatus.BAD_GATEWAY, words, "glance"
            ) from error
        if not answer.ok:
            status = answer.status_code
            words = f"Glance answers {status} ({answer.reason}) to the image's bytes"
            code = status if status in _PASSED_ON else http.HTTPStatus.BAD_GATEWAY
            raise http_errors.FlattenAborted(http.HTTPStatus(code), words, "glance")
        self._verify(image_id, caller, data)

    def _put(
        self, image_id: ids.ImageId, caller: image_lookup.Caller, data: UploadBody, timeout_s: float
    ) -> requests.Response:
        answer: requests.Response = self._glance.put(
            f"/v2/images/{image_id}/file",
            headers={**caller.headers, "Content-Type": "application/octet-stream"},
            data=_Sized(data) if self._is_sized else iter(data),
            timeout=(timeout_s, timeout_s),  # for each part, and for the answer
            authenticated=False,
            raise_exc=False,
            redirect=False,
            log=False,
        )
        return answer

    def _verify(self, image_id: ids.ImageId, caller: image_lookup.Caller, data: UploadBody) -> None:
        record = self._lookup.fetch_record(image_id, caller)
        status, size = record.status, record.size_bytes
        if status != image_record.ACTIVE or size != data.length:
            words = f"of {data.length} bytes Glance stored {size}, and the image is {status}"
            LOG.error("image %s: %s", image_id, words)
            raise http_errors.FlattenAborted(http.HTTPStatus.BAD_GATEWAY, words, "glance")

    def _settle(self, image_id: ids.ImageId, caller: image_lookup.Caller) -> None:
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            try:
                record = self._lookup.fetch_record(image_id, caller, SETTLE_S)
            except http_errors.HttpError:  # the image, or Glance, is gone
                return
            if record.status != image_record.SAVING:
                return
            time.sleep(SETTLE_STEP_S)
