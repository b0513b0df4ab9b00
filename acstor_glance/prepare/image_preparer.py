# SPDX-License-Identifier: Apache-2.0
"""Executes the plan of one image: hash, publish, refuse, or record a failure.

The result is recorded in the image's properties. Nothing changes while Glance is away.
"""

import datetime
import enum
import logging
import os
import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import IO

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance import conf as glance_conf
from acstor_glance import mapped_file
from acstor_glance import metrics
from acstor_glance import sandbox
from acstor_glance.client import artefact_quota
from acstor_glance.client import glance_client
from acstor_glance.client import scope_lookup
from acstor_glance.client import stored_bytes
from acstor_glance.client import work_leases
from acstor_glance.prepare import conversion
from acstor_glance.prepare import map_spool
from acstor_glance.prepare import plan
from acstor_glance.prepare import prehash
from acstor_glance.prepare import preparation_budget
from acstor_glance.prepare import service_hashing
from acstor_glance.prepare import stream_prehash

LOG = logging.getLogger(__name__)

CHUNK_MAP, CONVERTED = artefacts.Kind.CHUNK_MAP, artefacts.Kind.CONVERTED


Progress = prehash.Progress
MayBegin = Callable[[str], bool]
"""Called with the project of an image to prepare; returns whether to begin now."""


class PreparationOutcome(enum.StrEnum):
    """Result of handling an image; a label of a metric."""

    NOTHING = "nothing"
    PREPARED = "prepared"
    REFUSED = "refused"
    FAILED = "failed"
    WAITING = "waiting"
    LEASED = "leased"  # another process holds its lease
    QUEUED = "queued"  # until its project's turn
    GONE = "gone"


class ImagePreparer:
    """Prepares images, one at a time in each calling thread.

    Methods raise errors.ImageServiceUnreachable if Glance or the coordination service is away.

    :param chunk_bytes: size of the chunks; None: that of services
    """

    def __init__(
        self,
        images: glance_client.GlanceClient,
        conf: cfg.ConfigOpts,
        counters: metrics.ListenerMetrics | None = None,
        *,
        chunk_bytes: int | None = None,
        cost_limits: preparation_budget.CostLimits = preparation_budget.COST_LIMITS,
        conversion_limits: conversion.ConversionLimits = conversion.CONVERSION_LIMITS,
    ) -> None:
        self._images, self._conf = images, conf.acstor_glance
        self._counters = counters or metrics.ListenerMetrics()
        self._chunk_bytes = chunk_bytes or service_hashing.CHUNK_BYTES
        self._cost_limits, self._conversion_limits = cost_limits, conversion_limits
        convertible = tuple(self._conf.convert_formats)
        version = glance_client.FORMAT_VERSIONS[CHUNK_MAP]
        self.desired = plan.DesiredArtefacts({CHUNK_MAP: version}, convertible)
        state_dir = glance_conf.state_dir(conf)
        self.scopes = scope_lookup.ScopeLookup(images, conf)
        self._quota = artefact_quota.ArtefactQuota(images, conf)
        self.spool = map_spool.MapSpool(state_dir)
        self.leases = work_leases.WorkLeases(
            self._conf.coordination_url, state_dir, CHUNK_MAP.value
        )

    def prepare_image(
        self,
        image_id: ids.ImageId,
        *,
        is_forced: bool = False,
        progress: Progress | None = None,
        may_begin: MayBegin = lambda project: True,
    ) -> PreparationOutcome:
        """Execute the image's plan, unless another process holds its lease.

        :param is_forced: make a new chunk map, despite an existing one or a failed attempt
        :param progress: called with the bytes done
        """
        with self.leases.lease_image(image_id) as is_ours:
            if is_ours:
                return self._execute(image_id, may_begin, progress, is_forced=is_forced)
        return self._counted(PreparationOutcome.LEASED)

    def prepare_leased(self, image_id: ids.ImageId) -> PreparationOutcome:
        """Execute the image's plan; the caller holds its lease."""
        return self._execute(image_id, lambda project: True)

    def _execute(
        self,
        image_id: ids.ImageId,
        may_begin: MayBegin,
        progress: Progress | None = None,
        *,
        is_forced: bool = False,
    ) -> PreparationOutcome:
        image = self._images.read_or_none(image_id)
        if image is None:
            return self._counted(self._clean_up(image_id))
        todo = self._plan(image)
        can_be_forced = is_forced and self._can_be_forced(image)
        if todo.step is plan.Step.REFUSE:
            outcome = self._refuse(image, todo.why)
        elif todo.step is plan.Step.PREPARE or can_be_forced:
            if not may_begin(image.owner):
                return PreparationOutcome.QUEUED
            outcome = self._attempt(image, is_forced, progress or (lambda done_bytes: None))
        else:
            is_waiting = todo.step is plan.Step.WAIT
            outcome = PreparationOutcome.WAITING if is_waiting else PreparationOutcome.NOTHING
        return self._counted(outcome)

    def image_exists(self, image_id: ids.ImageId) -> bool:
        """Return whether an image exists; if not, delete its artefacts."""
        if self._images.read_or_none(image_id) is not None:
            return True
        self.prepare_image(image_id)
        return False

    def _counted(self, outcome: PreparationOutcome) -> PreparationOutcome:
        self._counters.processed_images.labels(outcome.value).inc()
        return outcome

    def _plan(self, image: image_record.Image) -> plan.Plan:
        pointers = [artefacts.pointer_of(image, kind) for kind in self.desired.for_image(image)]
        found = [self._images.read_or_none(pointer) for pointer in pointers if pointer]
        by_id = {record.id: record for record in found if record}
        return plan.plan_image(image, by_id, self._images.project_id, self.desired, _now())

    def _can_be_forced(self, image: image_record.Image) -> bool:
        why_not = image_record.why_not_served(image, self.desired.convertible)
        return not why_not and artefacts.KIND not in image.properties

    def _attempt(
        self, image: image_record.Image, is_forced: bool, progress: Progress
    ) -> PreparationOutcome:
        try:
            self._prepare(image, is_forced, progress)
        except errors.NotRaw as exc:
            return self._refuse(image, f"{exc.why}. {exc.remedy}", str(plan.Retry(1, None)))
        except errors.LimitExceeded as exc:
            return self._fail(image, f"{exc.why}. {exc.remedy}", plan.Retry(1, None))
        except (errors.ImageServiceError, errors.Unusable, errors.FormatError) as exc:
            now = self._images.read_or_none(image.id)  # raises if Glance is away
            if now is None:
                return self._clean_up(image.id)
            return self._fail(now, str(exc))
        return PreparationOutcome.PREPARED

    def _prepare(self, image: image_record.Image, is_forced: bool, progress: Progress) -> None:
        image_id = image.id
        LOG.info("image %s: preparing (%d bytes)", image_id, image.size_bytes)
        started = _now()
        needed = [CHUNK_MAP, CONVERTED] if image.is_convertible else [CHUNK_MAP]
        if is_forced or any(self._images.artefact_of(image, kind) is None for kind in needed):
            self._make_chunk_map(image, is_forced, progress)
        image = self._images.get_image(image_id)
        foreign = {
            kind.pointer: ""
            for kind in artefacts.Kind
            if kind.pointer in image.properties and self._images.artefact_of(image, kind) is None
        }
        ready = artefacts.state_properties(image_id, artefacts.State.READY)
        requested = self._boot_image_request(image)
        copied = dict.fromkeys(artefacts.LINEAGE_PROPERTIES, "")  # by Nova, or of an earlier map
        self._images.set_properties(image_id, {**foreign, **ready, **requested, **copied})
        self.spool.remove(image_id)
        seconds = (_now() - started).total_seconds()
        LOG.info("image %s: prepared in %.1f s", image_id, seconds)

    def _boot_image_request(self, image: image_record.Image) -> dict[str, str]:
        if self._conf.boot_images == "none":
            return artefacts.boot_properties(None)
        present = self._images.artefact_of(image, artefacts.Kind.BOOT_IMAGE)
        has_its_own = present is not None and not artefacts.is_inherited(present)
        state = artefacts.BootState.READY if has_its_own else artefacts.BootState.WAITING
        return artefacts.boot_properties(state)

    def _make_chunk_map(
        self, image: image_record.Image, is_forced: bool, progress: Progress
    ) -> None:
        self._quota.reserve_bytes(image, 0)
        with self.scopes.naming_of_image(image) as naming:
            hashing = service_hashing.ServiceHashing(
                self._chunk_bytes,
                naming,
                self._progress_counter(image, progress),
                self._budget(image),
            )
            if image.is_convertible:
                self._convert(image, hashing)
                return
            with self.spool.finished_map(image, naming.scope_keys) as waiting:
                if waiting is not None and not is_forced:
                    self._publish(image, waiting)
                    return
            path = self._images.local_path(image, self._conf.file_store_dirs)
            if path is not None:
                map_path = self.spool.work_path(image.id)
                hashing.hash_file(path, map_path, image.id, image.disk_format, image.os_hash)
                with map_path.open("rb") as file:
                    self._publish(image, file)
                return
            with (
                self.spool.temporary_map() as file,
                self._images.open_image_data(image.id) as pieces,
            ):
                stream_prehash.write_map(image, pieces, file, hashing, self.spool.folder)
                self._publish(image, file)

    def _budget(self, image: image_record.Image) -> preparation_budget.PreparationBudget:
        return preparation_budget.PreparationBudget(
            f"image {image.id}",
            image.size_bytes,
            self._conf.max_expansion_ratio,
            limits=self._cost_limits,
        )

    def _convert(self, image: image_record.Image, hashing: service_hashing.ServiceHashing) -> None:
        with stream_prehash.work_folder(self.spool.folder) as work:
            if self._reuse_conversion(image, work, hashing):
                return
            with (work / "image").open("w+b") as copied:
                with self._images.open_image_data(image.id) as pieces:
                    in_time = hashing.enforce_deadline(pieces)
                    stream_prehash.copy_stream(image, in_time, copied, image.os_hash)
                hashing.progress(image.size_bytes)
                isolation = sandbox.Sandbox(self._conf.builder_sandbox)
                limits = self._conversion_limits
                with conversion.convert_image(image, copied, work, isolation, limits) as made:
                    self._publish_converted(
                        image, made, work, hashing._replace(progress=lambda done_bytes: None)
                    )

    def _reuse_conversion(
        self,
        image: image_record.Image,
        work: pathlib.Path,
        hashing: service_hashing.ServiceHashing,
    ) -> bool:
        if self._images.artefact_of(image, CONVERTED) is None:
            return False
        try:
            read = stored_bytes.find_stored_bytes(self._images, image)
            with self.spool.temporary_map() as file:
                with self._images.open_image_data(read.glance_id) as pieces:
                    stream_prehash.write_map(
                        read.image, pieces, file, hashing, work, read.other_hash
                    )
                self._publish(image, file, read.image)
        except (errors.LimitExceeded, errors.QuotaExceeded):
            raise
        except (errors.Unusable, errors.FormatError, errors.ImageGone) as exc:
            LOG.warning("image %s: its converted image is incomplete: %s", image.id, exc)
            return False
        return True

    def _publish_converted(
        self,
        image: image_record.Image,
        made: IO[bytes],
        work: pathlib.Path,
        hashing: service_hashing.ServiceHashing,
    ) -> None:
        size_bytes = os.fstat(made.fileno()).st_size
        as_read = artefacts.as_read(image, image_record.Image(size_bytes=size_bytes))
        with self.spool.temporary_map() as file:
            stream_prehash.write_map_of_file(as_read, made, work, file, hashing, is_hashed=True)
            version = glance_client.FORMAT_VERSIONS[CONVERTED]
            record = artefacts.new_artefact(image, CONVERTED, self._images.project_id, version)
            artefact_id = self._images.create_image(record, made)
            try:
                self._publish(image, file, as_read, {CONVERTED.pointer: artefact_id})
            except errors.AcstorError:
                self._images.delete_artefact(artefact_id)
                raise
        self._images.delete_others(CONVERTED, image.id, artefact_id)

    def _publish(
        self,
        image: image_record.Image,
        file: IO[bytes],
        as_read: image_record.Image | None = None,
        said: Mapping[str, str] | None = None,
    ) -> None:
        """Publish a chunk map, after checking that it is of this image.

        :param as_read: the record of the bytes that agents read, if not the image's
        """
        file.flush()
        count = os.fstat(file.fileno()).st_size
        self._budget(image).check_artefact(CHUNK_MAP, count)
        self._quota.reserve_bytes(image, count)
        with mapped_file.map_file(file) as view:
            is_keyed = bool(artefacts.parse_chunk_map(as_read or image, view).scope_keys)
        file.seek(0)
        named_in = deduplication.DedupScope.PROJECT if is_keyed else deduplication.DedupScope.CLOUD
        before = self._images.artefact_of(image, CHUNK_MAP)
        also = {artefacts.SCOPE: named_in}
        self._images.publish_artefact(
            CHUNK_MAP, image, file, artefact_properties=also, image_properties=said
        )
        if before is not None and before.text(artefacts.SCOPE) != named_in:
            self._drop_boot_image(image)

    def _drop_boot_image(self, image: image_record.Image) -> None:
        """Delete a boot image with CIDs of another scope; the listener makes another."""
        boot_image = self._images.artefact_of(image, artefacts.Kind.BOOT_IMAGE)
        if boot_image is not None:
            self._images.set_properties(image.id, {artefacts.Kind.BOOT_IMAGE.pointer: ""})
            self._images.delete_artefact(boot_image.id)

    def _progress_counter(self, image: image_record.Image, progress: Progress) -> Progress:
        size_bytes = max(1, image.size_bytes)
        seen_bytes = 0

        def count(done_bytes: int) -> None:
            nonlocal seen_bytes
            self._counters.hashed_bytes.inc(max(0, done_bytes - seen_bytes))
            tenths = done_bytes * 10 // size_bytes
            if tenths != seen_bytes * 10 // size_bytes:
                LOG.info("image %s: %d %% hashed", image.id, 10 * tenths)
            seen_bytes = done_bytes
            progress(done_bytes)

        return count

    def _refuse(self, image: image_record.Image, why: str, retry: str = "") -> PreparationOutcome:
        LOG.info("image %s is not served: %s", image.id, why)
        pointers = {kind.pointer: "" for kind in artefacts.Kind}
        said = artefacts.state_properties(image.id, artefacts.State.REFUSED, why, retry)
        self._images.set_properties(image.id, {**pointers, **said})
        self.spool.remove(image.id)
        return PreparationOutcome.REFUSED

    def _fail(
        self, image: image_record.Image, why: str, retry: plan.Retry | None = None
    ) -> PreparationOutcome:
        retry = retry or plan.Retry.after_failure(plan.retry_of(image), _now())
        LOG.warning("image %s could not be prepared (attempt and next: %s): %s",
                    image.id, retry, why)  # fmt: skip
        said = artefacts.state_properties(image.id, artefacts.State.FAILED, why, str(retry))
        self._images.set_properties(image.id, said)
        return PreparationOutcome.FAILED

    def _clean_up(self, image_id: ids.ImageId) -> PreparationOutcome:
        for artefact in list(self._images.list_artefacts(image_id)):
            LOG.info("artefact %s: deleted with its image %s", artefact.id, image_id)
            self._images.delete_artefact(artefact.id)
            self._counters.deleted_artefacts.inc()
        self.spool.remove(image_id)
        return PreparationOutcome.GONE


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
