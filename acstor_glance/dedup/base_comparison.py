# SPDX-License-Identifier: Apache-2.0
"""Compares images with their backing images, and deduplicates their blocks in a file store."""

import logging
import pathlib
import threading
from collections.abc import Iterable

from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import log_once
from acstor_common.util import supervision
from acstor_glance import metrics
from acstor_glance import work_queue
from acstor_glance.client import backing_images
from acstor_glance.client import glance_client
from acstor_glance.client import stored_bytes
from acstor_glance.dedup import block_dedup
from acstor_glance.dedup import common_ranges
from acstor_glance.prepare import plan

LOG = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000

_Files = tuple[pathlib.Path, pathlib.Path]
_Maps = tuple[chunk_map.ChunkMap, chunk_map.ChunkMap]
"""Those of an image, then of its backing image."""


class BaseComparer:
    """Thread that compares images, one at a time."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        conf: cfg.ConfigOpts,
        counters: metrics.ListenerMetrics,
    ) -> None:
        self._images, self._conf, self._counters = images, conf.acstor_glance, counters
        self._queue = work_queue.WorkQueue()
        self._seen: set[ids.ImageId] = set()
        self._stopping = threading.Event()
        self._trouble = log_once.LogOnce(LOG)

    def start(self) -> None:
        """Start the thread."""
        supervision.start("acstor-comparing", self._work, self._stopping)

    def stop(self) -> None:
        """Stop soon; unfinished work is repeated after a restart."""
        self._stopping.set()
        self._queue.close()

    def queue_image(self, image_id: ids.ImageId) -> None:
        """Queue an image that has just got its chunk map."""
        self._seen.discard(image_id)
        self._queue.add_image(image_id, work_queue.Rank.NEW)

    def requeue(self, image_ids: Iterable[ids.ImageId]) -> None:
        """Queue images that a reconcile found and that this process has not compared."""
        for image_id in image_ids:
            if image_id not in self._seen:
                self._queue.add_image(image_id, work_queue.Rank.OLD)

    def _work(self) -> None:
        while (queued := self._queue.take_image()) is not None:
            image_id = queued.image_id
            try:
                if self.compare_image(image_id):
                    self._remember(image_id)
            except errors.AcstorError as exc:
                LOG.warning("image %s: not compared with its backing image: %s", image_id, exc)
            except Exception:
                LOG.exception("image %s: unexpected", image_id)
                self._remember(image_id)
            finally:
                self._queue.finish_image(image_id)

    def _remember(self, image_id: ids.ImageId) -> None:
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen.add(image_id)

    def compare_image(self, image_id: ids.ImageId) -> bool:
        """Compare an image with its backing image; return False if interrupted."""
        image = self._images.read_or_none(image_id)
        base = (
            backing_images.find_backing_image(self._images, image)
            if image and plan.is_comparison_due(image)
            else None
        )
        if image is None or base is None:
            return True
        files = self._files_of(image, base)
        if files is None and _is_recorded(image, base):
            return True
        with (
            backing_images.chunk_map_of(self._images, image) as own_map,
            backing_images.chunk_map_of(self._images, base) as base_map,
        ):
            if own_map is None or base_map is None:
                return True
            own_bytes = common_ranges.own_bytes(own_map, base_map)
            properties = {artefacts.BASE: base.id, artefacts.OWN_BYTES: str(own_bytes)}
            self._images.set_properties(image_id, properties)
            if files is None:
                self._counters.compared_images.labels("elsewhere").inc()
                return True
            try:
                self._share(image_id, files, (own_map, base_map))
            except block_dedup.Stopped:
                return False
        return True

    def _files_of(self, image: image_record.Image, base: image_record.Image) -> _Files | None:
        if not self._conf.block_dedup_rate_mib_s:
            return None
        own_path, base_path = self._path_of(image), self._path_of(base)
        return None if own_path is None or base_path is None else (own_path, base_path)

    def _share(self, image_id: ids.ImageId, files: _Files, maps: _Maps) -> None:
        try:
            shared_bytes = self._share_files(files, maps)
        except errors.Unusable as exc:
            self._trouble.log_warning(str(exc))
            self._counters.compared_images.labels("refused").inc()
            return
        self._trouble.log_warning("")
        LOG.info("image %s: %d bytes share blocks with its backing image", image_id, shared_bytes)
        self._counters.compared_images.labels("shared").inc()
        self._counters.shared_bytes.inc(shared_bytes)
        self._images.set_properties(image_id, {artefacts.SHARED_BYTES: str(shared_bytes)})

    def _share_files(self, files: _Files, maps: _Maps) -> int:
        bytes_s = self._conf.block_dedup_rate_mib_s * geometry.MIB
        with (
            block_dedup.open_stored_file(files[0], maps[0].layout.stored.size_bytes) as own_file,
            block_dedup.open_stored_file(files[1], maps[1].layout.stored.size_bytes) as base_file,
        ):
            block_bytes = block_dedup.block_bytes(own_file)
            ranges = common_ranges.find_ranges(*maps, block_bytes)
            wait = self._stopping.wait
            return block_dedup.share_blocks(own_file, base_file, ranges, bytes_s, wait)

    def _path_of(self, image: image_record.Image) -> pathlib.Path | None:
        stored = stored_bytes.find_stored_bytes(self._images, image)
        return self._images.local_path(stored.own_image, self._conf.file_store_dirs)


def _is_recorded(image: image_record.Image, base: image_record.Image) -> bool:
    lineage = artefacts.lineage_of(image)
    return lineage.base == base.id and lineage.own_bytes is not None
