# SPDX-License-Identifier: Apache-2.0
"""Announces new boot images to hosts, except a tenant's without predecessors."""

import logging
from typing import Any

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import lru_table
from acstor_glance.boot import predecessor_images
from acstor_glance.client import decision_client
from acstor_glance.client import glance_client

LOG = logging.getLogger(__name__)

MAX_PENDING = 1000
MAX_ANSWER_BYTES = 1 << 16
PUBLIC = "public"  # only administrators can make images public, unlike ``community`` ones


class _Announced(msgspec.Struct, frozen=True):
    image_id: str
    request: int


class BootImageAnnouncer:
    """Announces boot images; its methods block."""

    def __init__(
        self, images: glance_client.GlanceClient, conf: cfg.ConfigOpts, *, limit: int = MAX_PENDING
    ) -> None:
        self._images = images
        self._service = decision_client.DecisionClient(conf)
        self._pending: lru_table.LruTable[ids.ImageId, None] = lru_table.LruTable(limit)
        self._fault = log_once.LogOnce(LOG)

    def announce(self, image_id: ids.ImageId) -> None:
        """Announce an image's new boot image, and pending ones."""
        self._pending[image_id] = None
        self.announce_pending()

    def announce_pending(self) -> None:
        """Send pending announcements; after a failure the others stay pending."""
        for image_id in list(self._pending):
            try:
                self._send(image_id)
            except errors.ImageGone as exc:
                LOG.info("image %s: its boot image is not announced: %s", image_id, exc)
            except (errors.ImageServiceError, errors.Unusable) as exc:
                self._fault.log_warning(f"new boot images cannot be announced: {exc}")
                return
            self._pending.pop(image_id, None)
        self._fault.log_warning("")

    def _send(self, image_id: ids.ImageId) -> None:
        image = self._images.read_or_none(image_id)
        if image is None or image_record.why_not_served(image):
            return
        previous = [
            predecessor.id
            for predecessor in predecessor_images.find_predecessors(self._images, image)
        ]
        is_public = image.visibility == PUBLIC
        if not previous and not is_public:
            return  # no host needs it
        body: dict[str, Any] = {"previous_images": previous, "is_public": is_public}
        self._service.post(
            f"/v1/images/{image_id}/prefetch-boot-image", body, _Announced, MAX_ANSWER_BYTES
        )
        LOG.info("image %s: its boot image is announced", image_id)
