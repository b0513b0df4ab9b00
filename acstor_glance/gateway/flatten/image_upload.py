# SPDX-License-Identifier: Apache-2.0
"""Puts the bytes of an image into Glance, in the name of the one who made it.

Whether he may Glance decides, with his token and no other, and an image that was not sent whole
is never active: it is said how long it is, and what ends before is refused by Glance, which then
has the image ``queued`` again.
"""

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

SETTLE_S = 10.0
"""How long it is waited for that Glance has noticed the end of an upload: then the image can be
filled in another way."""
SETTLE_STEP_S = 0.25
UNSIZED = frozenset({"swift"})
"""Drivers to which images go in chunks of HTTP, without their length: of a large object whose
length it knows that for Swift cannot store the last segment (glance_store 5.7).  All others are
told the length: that for S3 would read an image of unknown length into memory."""
_AS_THEY_ARE = frozenset({400, 401, 403, 404, 409, 410, 413, 415})


class UploadBody:
    """The bytes of an image, as they are sent.

    :param length: of all
    """

    def __init__(self, parts: Iterable[codecs.Buffer], length: int) -> None:
        self._parts, self.length = parts, length
        self.sent_bytes = 0

    def __iter__(self) -> Iterator[codecs.Buffer]:
        for part in self._parts:
            yield part
            self.sent_bytes += len(part)


class _Sized:
    """Data whose length requests can see: then it says so instead of sending chunks."""

    def __init__(self, data: UploadBody) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.length

    def __iter__(self) -> Iterator[codecs.Buffer]:
        return iter(self._data)


class ImageUploader:
    """Fills images.

    :param default_driver: of the store that Glance puts images into
    """

    def __init__(
        self, conf: cfg.ConfigOpts, known: image_lookup.ImageLookup, default_driver: str
    ) -> None:
        self._glance, self._known = image_lookup.adapter_of(conf), known
        self._is_sized = default_driver not in UNSIZED

    def check_target(
        self, image_id: ids.ImageId, caller: image_lookup.Caller, disk_format: str
    ) -> None:
        """Check that an image waits for its bytes, and that they are to be of this format.

        :raises http_errors.HttpError: it is not so, or he may not see it
        """
        record = self._known.fetch_record(image_id, caller)
        if (status := image_record.text_of(record, "status")) != image_record.QUEUED:
            words = f"the image's status is {status or 'unknown'}, not {image_record.QUEUED}"
            raise http_errors.HttpError(http.HTTPStatus.CONFLICT, words)
        if (wanted := image_lookup.disk_format_of(record)) != disk_format:
            words = (
                f"the image's format is {wanted or 'not set'}, and {disk_format} is asked for: set "
                "disk_format and container_format (bare) first"
            )
            raise http_errors.HttpError(http.HTTPStatus.CONFLICT, words)

    def upload_image(
        self, image_id: ids.ImageId, caller: image_lookup.Caller, data: UploadBody, timeout_s: float
    ) -> None:
        """Send the bytes of an image; returns when it is active.

        :param timeout_s: how long Glance may take for a part, and for its answer
        :raises http_errors.HttpError: what ``data`` raises; then Glance has not got the image
        :raises http_errors.FlattenAborted: Glance does not take it
        """
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
            code = status if status in _AS_THEY_ARE else http.HTTPStatus.BAD_GATEWAY
            raise http_errors.FlattenAborted(http.HTTPStatus(code), words, "glance")
        self._verify(image_id, caller, data)

    def _put(
        self, image_id: ids.ImageId, caller: image_lookup.Caller, data: UploadBody, timeout_s: float
    ) -> requests.Response:
        answer: requests.Response = self._glance.put(
            f"/v2/images/{image_id}/file",
            headers={**caller.headers, "Content-Type": "application/octet-stream"},
            data=_Sized(data) if self._is_sized else iter(data),
            timeout=(timeout_s, timeout_s),  # for each part that is sent, and for the answer
            authenticated=False,
            raise_exc=False,
            redirect=False,
            log=False,
        )
        return answer

    def _verify(self, image_id: ids.ImageId, caller: image_lookup.Caller, data: UploadBody) -> None:
        """Compare what Glance says that it has with what was sent."""
        record = self._known.fetch_record(image_id, caller)
        status, size = image_record.text_of(record, "status"), image_record.size_bytes_of(record)
        if status != image_record.ACTIVE or size != data.length:
            words = f"of {data.length} bytes Glance has {size}, and the image is {status}"
            LOG.error("image %s: %s", image_id, words)
            raise http_errors.FlattenAborted(http.HTTPStatus.BAD_GATEWAY, words, "glance")

    def _settle(self, image_id: ids.ImageId, caller: image_lookup.Caller) -> None:
        """Wait until Glance has noticed that no more bytes come."""
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            try:
                record = self._known.fetch_record(image_id, caller, SETTLE_S)
            except http_errors.HttpError:  # it is gone, or Glance is
                return
            if image_record.text_of(record, "status") != image_record.SAVING:
                return
            time.sleep(SETTLE_STEP_S)
