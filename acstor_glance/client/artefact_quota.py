# SPDX-License-Identifier: Apache-2.0
"""Quota of a project's artefacts, which Glance's quota does not count."""

import threading
import time
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import clocks
from acstor_common.model import geometry
from acstor_common.util import byte_sizes
from acstor_glance.client import glance_client

MAX_AGE_S = 300.0  # age after which a project's sum is read again; reservations are added meanwhile
RECHECK_AGE_S = 10.0  # largest age of the sum when a reservation is refused
CONVERTED_BYTES = 64 * geometry.MIB  # of each; qemu-img may write twice the image and so much


class _Used(NamedTuple):
    used_bytes: int
    read_s: float


class ArtefactQuota:
    """The quota used by each project; thread-safe."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        conf: cfg.ConfigOpts,
        clock: clocks.Clock = time,
    ) -> None:
        self._images = images
        self._max_bytes = int(conf.acstor_glance.artefact_quota_per_project)
        self._clock, self._lock = clock, threading.Lock()
        self._known: dict[str, _Used] = {}

    def reserve_bytes(self, image: image_record.Image, count: int) -> None:
        """Reserve bytes for a new artefact (0: check for any left); raises QuotaExceeded."""
        project = image.owner
        with self._lock:
            used = self._used(project, MAX_AGE_S)
            if not self._fits(used, count):
                used = self._used(project, RECHECK_AGE_S)
            if not self._fits(used, count):
                raise errors.QuotaExceeded(
                    f"image {image.id}",
                    f"the artefacts of its project take {used.used_bytes} bytes, and {count} more "
                    f"are over their quota of {byte_sizes.in_units(self._max_bytes)}",
                    "Delete images, or raise [acstor_glance] artefact_quota_per_project",
                )
            self._known[project] = used._replace(used_bytes=used.used_bytes + count)

    def _fits(self, used: _Used, count: int) -> bool:
        return used.used_bytes + max(count, 1) <= self._max_bytes

    def _used(self, project: str, age_s: float) -> _Used:
        known, now_s = self._known.get(project), self._clock.monotonic()
        if known is None or now_s - known.read_s > age_s:
            found = self._images.list_project_artefacts(project)
            used_bytes = sum(map(_counted_bytes, found))
            known = self._known[project] = _Used(used_bytes, now_s)
        return known


def _counted_bytes(artefact: image_record.Image) -> int:
    is_converted = artefacts.kind_of(artefact) is artefacts.Kind.CONVERTED
    return min(artefact.size_bytes, CONVERTED_BYTES) if is_converted else artefact.size_bytes
