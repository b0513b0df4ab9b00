# SPDX-License-Identifier: Apache-2.0
"""Tells hosts of boot images that were made, so that they have them before they are needed.

Hosts are told by the decision service; which of them take a boot image is their own decision, by
their option ``prefetch_boot_images``.  What they are told of an image is what only Glance knows:
whether it is public, and which images of its family came before it.

This is a help to those who boot.  Where there is no decision service nobody is told,
and no tenant has hosts take what none of them has use for.
"""

import collections
import logging
from typing import Any

import msgspec
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_glance.boot import predecessor_images
from acstor_glance.client import decision_client
from acstor_glance.client import glance_client

LOG = logging.getLogger(__name__)

MOST_UNTOLD = 1000
"""Images of which hosts are still to be told; of more those that were made first are left out."""
MOST_BYTES = 1 << 16
"""Of the decision service's answer."""
PUBLIC = "public"
"""The visibility that only an administrator gives: any tenant lets all read his (``community``)."""


class _Told(msgspec.Struct, frozen=True):
    """What the decision service answers."""

    image_id: str
    request: int


class BootImageAnnouncer:
    """What tells hosts; its methods block, and may be called from any thread."""

    def __init__(self, images: glance_client.GlanceClient, conf: cfg.ConfigOpts) -> None:
        self._images = images
        self._service = decision_client.DecisionClient(conf)
        self._untold: collections.OrderedDict[ids.ImageId, None] = collections.OrderedDict()
        self._fault = log_once.LogOnce(LOG)

    def announce(self, image_id: ids.ImageId) -> None:
        """Tell hosts that an image has another boot image now, and what they were not told yet."""
        self._untold[image_id] = None
        while len(self._untold) > MOST_UNTOLD:
            self._untold.popitem(last=False)
        self.announce_pending()

    def announce_pending(self) -> None:
        """Tell hosts what they were not told yet; what cannot be told now waits for the next time.

        An image that Glance or the decision service does not know any more is forgotten.
        """
        for image_id in list(self._untold):
            try:
                self._tell(image_id)
            except errors.ImageGone as exc:
                LOG.info("image %s: hosts are not told of its boot image: %s", image_id, exc)
            except (errors.ImageServiceError, errors.Unusable) as exc:
                self._fault.log_warning(f"hosts are not told of new boot images: {exc}")
                return
            self._untold.pop(image_id, None)
        self._fault.log_warning("")

    def _tell(self, image_id: ids.ImageId) -> None:
        image = self._images.read_or_none(image_id)
        if image is None or image_record.why_not_served(image):
            return
        previous = [
            str(one["id"]) for one in predecessor_images.find_predecessors(self._images, image)
        ]
        is_public = image_record.text_of(image, "visibility") == PUBLIC
        if not previous and not is_public:
            return  # no host may want it
        body: dict[str, Any] = {"previous_images": previous, "is_public": is_public}
        self._service.post(f"/v1/images/{image_id}/prefetch-boot-image", body, _Told, MOST_BYTES)
        LOG.info("image %s: hosts are told of its boot image", image_id)
