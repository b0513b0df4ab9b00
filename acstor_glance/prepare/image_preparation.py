# SPDX-License-Identifier: Apache-2.0
"""Makes the artefacts of one image: its chunk map, and before it the conversion to qcow2."""

import datetime
import functools
import logging
import os
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import IO
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_glance import mapped_file
from acstor_glance import metrics
from acstor_glance import sandbox
from acstor_glance.client import artefact_quota
from acstor_glance.client import glance_client
from acstor_glance.client import scope_lookup
from acstor_glance.client import stored_bytes
from acstor_glance.prepare import conversion
from acstor_glance.prepare import map_spool
from acstor_glance.prepare import prehash
from acstor_glance.prepare import preparation_budget
from acstor_glance.prepare import service_hashing
from acstor_glance.prepare import stream_prehash

LOG = logging.getLogger(__name__)

CHUNK_MAP, CONVERTED = artefacts.Kind.CHUNK_MAP, artefacts.Kind.CONVERTED


class PreparationLimits(NamedTuple):
    """Limits of each preparation; ``chunk_bytes`` 0: ``service_hashing.CHUNK_BYTES``."""

    chunk_bytes: int = 0
    cost_limits: preparation_budget.CostLimits = preparation_budget.COST_LIMITS
    conversion_limits: conversion.ConversionLimits = conversion.CONVERSION_LIMITS


PREPARATION_LIMITS = PreparationLimits()


class PreparationTools(NamedTuple):
    """Clients and settings that the preparations of all images share."""

    images: glance_client.GlanceClient
    options: cfg.ConfigOpts.GroupAttr
    scopes: scope_lookup.ScopeLookup
    quota: artefact_quota.ArtefactQuota
    spool: map_spool.MapSpool
    counters: metrics.ListenerMetrics
    limits: PreparationLimits


class ImagePreparation:
    """One attempt to make the artefacts of one image."""

    def __init__(
        self,
        image: image_record.Image,
        tools: PreparationTools,
        *,
        is_forced: bool,  # despite an existing chunk map
        progress: prehash.Progress,  # called with the bytes done
    ) -> None:
        self._image, self._tools = image, tools
        self._is_forced, self._progress = is_forced, progress
        self._images, self._spool = tools.images, tools.spool

    @functools.cached_property
    def _budget(self) -> preparation_budget.PreparationBudget:
        """The budget; its time begins at the first use."""
        return preparation_budget.PreparationBudget(
            f"image {self._image.id}",
            self._image.size_bytes,
            self._tools.options.max_expansion_ratio,
            limits=self._tools.limits.cost_limits,
        )

    def run(self) -> None:
        """Make the missing artefacts, and record that the image is ready.

        :raises errors.NotRaw: the image has another format than it states
        :raises errors.LimitExceeded: it is too costly
        :raises errors.ImageServiceError: Glance failed or refused
        :raises errors.Unusable, errors.FormatError: it cannot be read
        """
        image_id = self._image.id
        LOG.info("image %s: preparing (%d bytes)", image_id, self._image.size_bytes)
        started = datetime.datetime.now(datetime.UTC)
        needed = [CHUNK_MAP, CONVERTED] if self._image.is_convertible else [CHUNK_MAP]
        if self._is_forced or any(self._artefact(kind) is None for kind in needed):
            self._make_chunk_map()
        self._set_ready()
        self._spool.remove(image_id)
        seconds = (datetime.datetime.now(datetime.UTC) - started).total_seconds()
        LOG.info("image %s: prepared in %.1f s", image_id, seconds)

    def _artefact(self, kind: artefacts.Kind) -> image_record.Image | None:
        return self._images.artefact_of(self._image, kind)

    def _set_ready(self) -> None:
        now = self._images.get_image(self._image.id)
        foreign = {
            kind.pointer: ""
            for kind in artefacts.Kind
            if kind.pointer in now.properties and self._images.artefact_of(now, kind) is None
        }
        ready = artefacts.state_properties(now.id, artefacts.State.READY)
        requested = self._boot_image_request(now)
        copied = dict.fromkeys(artefacts.LINEAGE_PROPERTIES, "")  # by Nova, or of an earlier map
        self._images.set_properties(now.id, {**foreign, **ready, **requested, **copied})

    def _boot_image_request(self, now: image_record.Image) -> dict[str, str]:
        if self._tools.options.boot_images == "none":
            return artefacts.boot_properties(None)
        present = self._images.artefact_of(now, artefacts.Kind.BOOT_IMAGE)
        has_its_own = present is not None and not artefacts.is_inherited(present)
        state = artefacts.BootState.READY if has_its_own else artefacts.BootState.WAITING
        return artefacts.boot_properties(state)

    def _make_chunk_map(self) -> None:
        image = self._image
        self._tools.quota.reserve_bytes(image, 0)
        with self._tools.scopes.naming_of_image(image) as naming:
            hashing = service_hashing.ServiceHashing(
                self._tools.limits.chunk_bytes or service_hashing.CHUNK_BYTES,
                naming,
                self._progress_counter(),
                self._budget,
            )
            if image.is_convertible:
                self._convert(hashing)
                return
            with self._spool.finished_map(image, naming.scope_keys) as waiting:
                if waiting is not None and not self._is_forced:
                    self._publish(waiting)
                    return
            path = self._images.local_path(image, self._tools.options.file_store_dirs)
            if path is not None:
                map_path = self._spool.work_path(image.id)
                hashing.hash_file(path, map_path, image)
                with map_path.open("rb") as file:
                    self._publish(file)
                return
            with (
                self._spool.temporary_map() as file,
                self._images.open_image_data(image.id) as pieces,
            ):
                stream_prehash.write_map(image, pieces, file, hashing, self._spool.folder)
                self._publish(file)

    def _convert(self, hashing: service_hashing.ServiceHashing) -> None:
        image = self._image
        with stream_prehash.work_folder(self._spool.folder) as work:
            if self._reuse_conversion(work, hashing):
                return
            with (work / "image").open("w+b") as copied:
                with self._images.open_image_data(image.id) as pieces:
                    in_time = hashing.enforce_deadline(pieces)
                    stream_prehash.copy_stream(image, in_time, copied, image.os_hash)
                hashing.progress(image.size_bytes)
                isolation = sandbox.Sandbox(self._tools.options.builder_sandbox)
                limits = self._tools.limits.conversion_limits
                with conversion.convert_image(image, copied, work, isolation, limits) as made:
                    self._publish_converted(
                        made, work, hashing._replace(progress=lambda done_bytes: None)
                    )

    def _reuse_conversion(
        self, work: pathlib.Path, hashing: service_hashing.ServiceHashing
    ) -> bool:
        if self._artefact(CONVERTED) is None:
            return False
        try:
            read = stored_bytes.find_stored_bytes(self._images, self._image)
            with self._spool.temporary_map() as file:
                with self._images.open_image_data(read.glance_id) as pieces:
                    stream_prehash.write_map(
                        read.image, pieces, file, hashing, work, read.other_hash
                    )
                self._publish(file, read.image)
        except (errors.LimitExceeded, errors.QuotaExceeded):
            raise
        except (errors.Unusable, errors.FormatError, errors.ImageGone) as exc:
            LOG.warning("image %s: its converted image is incomplete: %s", self._image.id, exc)
            return False
        return True

    def _publish_converted(
        self, made: IO[bytes], work: pathlib.Path, hashing: service_hashing.ServiceHashing
    ) -> None:
        size_bytes = os.fstat(made.fileno()).st_size
        as_read = artefacts.as_read(self._image, image_record.Image(size_bytes=size_bytes))
        self._tools.quota.reserve_bytes(
            self._image, min(size_bytes, artefact_quota.CONVERTED_BYTES)
        )
        with self._spool.temporary_map() as file:
            stream_prehash.write_map_of_file(as_read, made, work, file, hashing, is_hashed=True)
            version = glance_client.FORMAT_VERSIONS[CONVERTED]
            record = artefacts.new_artefact(
                self._image, CONVERTED, self._images.project_id, version
            )
            artefact_id = self._images.create_image(record, made)
            try:
                self._publish(file, as_read, {CONVERTED.pointer: artefact_id})
            except errors.AcstorError:
                self._images.delete_artefact(artefact_id)
                raise
        self._images.delete_others(CONVERTED, self._image.id, artefact_id)

    def _publish(
        self,
        file: IO[bytes],
        as_read: image_record.Image | None = None,  # record of the bytes that agents read
        pointers: Mapping[str, str] | None = None,  # to set together with the map's
    ) -> None:
        file.flush()
        count = os.fstat(file.fileno()).st_size
        self._budget.check_artefact(CHUNK_MAP, count)
        self._tools.quota.reserve_bytes(self._image, count)
        with mapped_file.map_file(file) as view:
            is_keyed = bool(artefacts.parse_chunk_map(as_read or self._image, view).scope_keys)
        file.seek(0)
        named_in = deduplication.DedupScope.PROJECT if is_keyed else deduplication.DedupScope.CLOUD
        before = self._artefact(CHUNK_MAP)
        self._images.publish_artefact(
            CHUNK_MAP,
            self._image,
            file,
            artefact_properties={artefacts.SCOPE: named_in},
            image_properties=pointers,
        )
        if before is not None and before.text(artefacts.SCOPE) != named_in:
            self._drop_boot_image()

    def _drop_boot_image(self) -> None:
        """Delete a boot image with CIDs of another scope; the listener makes another."""
        boot_image = self._artefact(artefacts.Kind.BOOT_IMAGE)
        if boot_image is not None:
            self._images.set_properties(self._image.id, {artefacts.Kind.BOOT_IMAGE.pointer: ""})
            self._images.delete_artefact(boot_image.id)

    def _progress_counter(self) -> Callable[[int], None]:
        size_bytes = max(1, self._image.size_bytes)
        seen_bytes = 0

        def count(done_bytes: int) -> None:
            nonlocal seen_bytes
            self._tools.counters.hashed_bytes.inc(max(0, done_bytes - seen_bytes))
            tenths = done_bytes * 10 // size_bytes
            if tenths != seen_bytes * 10 // size_bytes:
                LOG.info("image %s: %d %% hashed", self._image.id, 10 * tenths)
            seen_bytes = done_bytes
            self._progress(done_bytes)

        return count
