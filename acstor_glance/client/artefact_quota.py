# SPDX-License-Identifier: Apache-2.0
"""Artefact quota: the bytes that the chunk maps and boot images of one project may take.

They are images of the service's own project, so the quota that Glance has for the tenant does not
count them.  Conversions are not counted: each is bounded by what was uploaded of its image.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.util import byte_sizes
from acstor_glance.client import glance_client

REMEMBERED_S = 300.0
"""How long a project's sum is believed; what this process adds is added to it."""
ASK_AGAIN_S = 10.0
"""How old it is at most when something is refused because of it."""
_COUNTED = (artefacts.Kind.CHUNK_MAP, artefacts.Kind.BOOT_IMAGE)


class _Used(NamedTuple):
    used_bytes: int
    read_s: float


class ArtefactQuota:
    """What projects use of their quota; any number of threads may ask."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        conf: cfg.ConfigOpts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._images = images
        self._most_bytes = int(conf.acstor_glance.artefact_quota_per_project)
        self._clock, self._lock = clock, threading.Lock()
        self._known: dict[str, _Used] = {}

    def reserve_bytes(self, image: image_record.Record, count: int) -> None:
        """Count bytes of an artefact that is about to be stored; 0: look whether any are left.

        :raises errors.QuotaExceeded: the image's project has not so many left
        :raises errors.ImageServiceError: Glance does not say what it has
        """
        project = image_record.text_of(image, "owner")
        with self._lock:
            used = self._used(project, REMEMBERED_S)
            if not self._fits(used, count):
                used = self._used(project, ASK_AGAIN_S)
            if not self._fits(used, count):
                raise errors.QuotaExceeded(
                    f"image {image['id']}",
                    f"the artefacts of its project take {used.used_bytes} bytes, and {count} more "
                    f"are over their quota of {byte_sizes.in_units(self._most_bytes)}",
                    "Delete images, or raise [acstor_glance] artefact_quota_per_project",
                )
            self._known[project] = used._replace(used_bytes=used.used_bytes + count)

    def _fits(self, used: _Used, count: int) -> bool:
        return used.used_bytes + max(count, 1) <= self._most_bytes

    def _used(self, project: str, age_s: float) -> _Used:
        """Return what a project uses, as Glance had it no longer ago than ``age_s``."""
        known, now_s = self._known.get(project), self._clock()
        if known is None or now_s - known.read_s > age_s:
            found = self._images.artefact_quota_per_project(project)
            used_bytes = sum(
                image_record.size_bytes_of(one)
                for one in found
                if artefacts.kind_of(one) in _COUNTED
            )
            known = self._known[project] = _Used(used_bytes, now_s)
        return known
