# SPDX-License-Identifier: Apache-2.0
"""Makes boot images in Glance, by the builder or from recorded boots; failures are recorded."""

import contextlib
import datetime
import logging
import pathlib
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import boot_trace
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_common.wire import trace_message
from acstor_glance import conf as glance_conf
from acstor_glance import sandbox
from acstor_glance.boot import boot_builder
from acstor_glance.boot import boot_guest
from acstor_glance.boot import build_modes
from acstor_glance.boot import guest_disk
from acstor_glance.boot import predecessor_images
from acstor_glance.boot import trace_changes
from acstor_glance.boot import trace_store
from acstor_glance.client import artefact_quota
from acstor_glance.client import backing_images
from acstor_glance.client import glance_client
from acstor_glance.client import stored_bytes
from acstor_glance.client import work_leases
from acstor_glance.prepare import image_file
from acstor_glance.prepare import plan
from acstor_glance.prepare import preparation_budget

LOG = logging.getLogger(__name__)

BOOT_IMAGE = artefacts.Kind.BOOT_IMAGE
LONGEST_S = boot_guest.GuestLimits().longest_s
LIMIT_BYTES = 256 * geometry.MIB  # limit of the uncompressed chunks; a boot reads some tens of MiB
TRACES_NEEDED = 2
"""Since one may be unusual; one is enough if there is no boot image, nor a build due."""
TRACE_SHARE = 0.5  # share of the recorded boots that must have read a chunk of the boot image


class BootImageMaker:
    """Makes boot images of images in Glance."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        conf: cfg.ConfigOpts,
        modes: build_modes.BuildModes,
        *,
        cost_limits: preparation_budget.CostLimits = preparation_budget.COST_LIMITS,
    ) -> None:
        self._images, self._conf, self._modes = images, conf.acstor_glance, modes
        self._cost_limits = cost_limits
        state_dir = glance_conf.state_dir(conf)
        self._leases = work_leases.WorkLeases(
            self._conf.coordination_url, state_dir, BOOT_IMAGE.value
        )
        self._quota = artefact_quota.ArtefactQuota(images, conf)
        self._traces = trace_store.TraceStore(state_dir)
        self._folder = state_dir / "boot"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def list_recorded(self) -> list[ids.ImageId]:
        """Return the images with recorded boots, which may lack a boot image."""
        return self._traces.list_images()

    def add_trace(self, trace: trace_message.BootTrace) -> ids.ImageId:
        """Store the trace of one boot; return its image's ID."""
        if count := self._traces.add_trace(trace):
            LOG.info("image %s: %d boots are recorded", trace.image_id, count)
        return ids.parse_image_id(trace.image_id)

    def make_boot_image(
        self, image_id: ids.ImageId, may_begin: Callable[[str], bool] = lambda project: True
    ) -> bool:
        """Make the boot image that an image needs now; return whether one was made.

        :param may_begin: called with the image's project; returns whether to begin now
        """
        with self._leases.lease_image(image_id) as is_ours:
            image = self._images.read_or_none(image_id) if is_ours else None
            if image is None or image_record.why_not_served(image):
                return False
            present = self._images.artefact_of(image, BOOT_IMAGE)
            build = self._due_build(image, present)
            is_built_soon = build is not None and not build.attempts
            has_its_own = present is not None and not artefacts.is_inherited(present)
            needed = TRACES_NEEDED if has_its_own or is_built_soon else 1
            traces = self._traces.list_traces(image_id) if self._modes.records else []
            before = self._predecessor(image) if present is None else None
            if len(traces) < needed and build is None and before is None:
                return False
            if self._images.artefact_of(image, artefacts.Kind.CHUNK_MAP) is None:
                return False
            if not may_begin(image.owner):
                return False
            with self._chunk_map(image) as image_map:
                if self._merge(image, image_map, present, traces, needed):
                    return True
                has_one = before is not None and self._inherit(image, image_map, *before)
                if build is None:
                    return has_one
                if has_one:
                    present = self._images.artefact_of(self._images.get_image(image_id), BOOT_IMAGE)
                return self._build(image, image_map, present, build) or has_one

    def _due_build(
        self, image: image_record.Image, present: image_record.Image | None
    ) -> plan.Retry | None:
        if not self._modes.builds:
            return None
        retry = plan.next_boot_image_build(image, lambda _: present, self._images.project_id)
        return retry if retry is not None and retry.is_due(_now()) else None

    def _build(
        self,
        image: image_record.Image,
        image_map: chunk_map.ChunkMap,
        present: image_record.Image | None,
        before: plan.Retry,
    ) -> bool:
        retry = before.after_failure(_now())
        building = "it is being built, or the builder was killed"
        self._record_state(image, artefacts.BootState.BUILDING, building, str(retry))
        revision = artefacts.revision_of(present) + 1 if present else 1
        output = self._output(image.id)
        try:
            summary = self._boot(image, image_map, output, revision)
        except (errors.Unusable, errors.ChunkInvalid, OSError) as exc:
            self._record_failure(image, exc, retry)
            return False
        LOG.info("image %s: boot image built: %s", image.id, summary)
        self._publish(image, output, revision, artefacts.BootOrigin.BUILT)
        return True

    def _boot(
        self,
        image: image_record.Image,
        image_map: chunk_map.ChunkMap,
        output: pathlib.Path,
        revision: int,
    ) -> boot_builder.Summary:
        _check_machine(image)
        self._quota.reserve_bytes(image, 0)
        budget = self._budget(image_map, LONGEST_S)
        with self._bytes(image, budget) as path:
            summary = boot_builder.build(
                path,
                image_map,
                output,
                limits=boot_guest.GuestLimits(longest_s=LONGEST_S, boot_bytes=LIMIT_BYTES),
                budget=budget,
                firmware=firmware_of(image),
                revision=revision,
                isolation=sandbox.Sandbox(self._conf.builder_sandbox),
            )
        self._reserve(image, output)
        return summary

    def _record_failure(self, image: image_record.Image, exc: Exception, retry: plan.Retry) -> None:
        is_unbootable = isinstance(exc, errors.BootFailed)
        if is_unbootable or isinstance(exc, errors.LimitExceeded):
            retry = plan.Retry(retry.attempts, None)
        state = artefacts.BootState.UNBOOTABLE if is_unbootable else artefacts.BootState.FAILED
        LOG.info("image %s has no boot image (attempt and next: %s): %s",
                 image.id, retry, exc)  # fmt: skip
        self._record_state(image, state, _error_text(exc), str(retry))

    def _record_state(
        self, image: image_record.Image, state: artefacts.BootState, message: str, retry: str
    ) -> None:
        self._images.set_properties(image.id, artefacts.boot_properties(state, message, retry))

    def _budget(
        self, image_map: chunk_map.ChunkMap, longer_s: float = 0.0
    ) -> preparation_budget.PreparationBudget:
        return preparation_budget.PreparationBudget(
            f"image {image_map.image_id}",
            image_map.layout.stored.size_bytes,
            self._conf.max_expansion_ratio,
            preparation_budget.SPARE_S + longer_s,
            limits=self._cost_limits,
        )

    @contextlib.contextmanager
    def _bytes(
        self, image: image_record.Image, budget: preparation_budget.PreparationBudget
    ) -> Iterator[pathlib.Path]:
        """Yield a file with the image's bytes: the store's own, or a sparse copy."""
        read = stored_bytes.find_stored_bytes(self._images, image)
        local = self._images.local_path(read.own_image, self._conf.file_store_dirs)
        if local is not None:
            yield local
            return
        with tempfile.TemporaryFile(dir=self._folder) as file:  # unnamed, so a kill leaves none
            with self._images.open_image_data(read.glance_id) as pieces:
                image_file.write_sparse(file, budget.enforce_deadline(pieces))
            file.flush()
            yield pathlib.Path(f"/proc/self/fd/{file.fileno()}")

    def _merge(
        self,
        image: image_record.Image,
        image_map: chunk_map.ChunkMap,
        present: image_record.Image | None,
        traces: Sequence[trace_message.BootTrace],
        needed: int,
    ) -> bool:
        cut = image_map.geometry
        fitting = [
            (boot.profile_key, boot.trace)
            for boot in traces
            if (boot.size_bytes, boot.chunk_bytes) == (cut.size_bytes, cut.chunk_bytes)
        ]
        if len(fitting) < needed:
            return False
        limit = max(1, LIMIT_BYTES // cut.chunk_bytes)
        before = self._head_of(present) if present else None
        former = before.profiled_trace if before else None
        merged = boot_trace.merge_profiles(fitting, TRACE_SHARE, limit, needed, former)
        trace = trace_changes.without_repeats(merged, image_map)
        is_same = former is not None and not trace_changes.is_worth_rebuilding(trace, former)
        if not trace.common or (is_same and not artefacts.is_inherited(present)):
            return False
        revision = before.header.revision + 1 if before else 1
        if not self._publish_trace(
            image, image_map, trace, revision, artefacts.BootOrigin.RECORDED
        ):
            return False
        LOG.info("image %s: boot image of %d boots, revision %d, profiles: %d",
                 image.id, len(fitting), revision, len(trace.of_profiles))  # fmt: skip
        return True

    def _head_of(self, artefact: image_record.Image) -> boot_image.Head | None:
        raw = bytearray()
        with self._images.open_image_data(artefact.id) as pieces:
            for piece in pieces:
                raw += piece
                with contextlib.suppress(errors.BootImageFormatError):
                    return boot_image.parse_head(raw, f"boot image {artefact.id}")
        return None

    def _publish_trace(
        self,
        image: image_record.Image,
        image_map: chunk_map.ChunkMap,
        trace: boot_image.ProfiledTrace,
        revision: int,
        origin: artefacts.BootOrigin,
    ) -> bool:
        output = self._output(image.id)
        try:
            budget = self._budget(image_map)
            with self._bytes(image, budget) as path, path.open("rb") as file:
                disk = guest_disk.GuestDisk(file.fileno(), image_map, budget)
                boot_builder.write_boot_image(disk, image_map, trace, output, revision)
            self._reserve(image, output)
        except (errors.ChunkInvalid, errors.Unusable, OSError) as exc:
            LOG.warning("image %s: no boot image of recorded boots: %s", image.id, exc)
            return False
        self._publish(image, output, revision, origin)
        return True

    def _reserve(self, image: image_record.Image, output: pathlib.Path) -> None:
        """Charge a boot image to its project's quota; delete it if it does not fit."""
        count, size_bytes = output.stat().st_size, image.size_bytes
        budget = preparation_budget.PreparationBudget(
            f"image {image.id}", size_bytes, limits=self._cost_limits
        )
        try:
            budget.check_artefact(BOOT_IMAGE, count)
            self._quota.reserve_bytes(image, count)
        except errors.AcstorError:
            output.unlink()
            raise

    def _predecessor(
        self, image: image_record.Image
    ) -> tuple[image_record.Image, image_record.Image] | None:
        for other in predecessor_images.find_predecessors(self._images, image):
            found = self._images.artefact_of(other, BOOT_IMAGE)
            if found is not None and not image_record.why_not_served(other):
                return other, found
        return None

    def _inherit(
        self,
        image: image_record.Image,
        image_map: chunk_map.ChunkMap,
        before: image_record.Image,
        artefact: image_record.Image,
    ) -> bool:
        head = self._head_of(artefact)
        try:
            with self._chunk_map(before) as its_map:
                if head is None or max(head.trace, default=0) >= len(its_map):
                    return False
                trace = predecessor_images.inherit_trace(head.profiled_trace, its_map, image_map)
        except (errors.FormatError, errors.Unusable) as exc:
            LOG.info("image %s: boots of image %s are not used: %s", image.id, before.id, exc)
            return False
        inherited = artefacts.BootOrigin.INHERITED
        if not trace.common or not self._publish_trace(image, image_map, trace, 1, inherited):
            return False
        LOG.info("image %s: boot image of %d chunks that boots of image %s read",
                 image.id, sum(map(len, trace.parts().values())), before.id)  # fmt: skip
        return True

    def _output(self, image_id: ids.ImageId) -> pathlib.Path:
        """Return the boot image's path, without leftovers; the caller holds the lease."""
        output = self._folder / f"{image_id}.acboot"
        output.unlink(missing_ok=True)
        atomic_file.remove_leftovers(self._folder, output.name)
        return output

    @contextlib.contextmanager
    def _chunk_map(self, image: image_record.Image) -> Iterator[chunk_map.ChunkMap]:
        artefact = self._images.artefact_of(image, artefacts.Kind.CHUNK_MAP)
        if artefact is None:
            raise errors.Unusable(f"image {image.id}", "it has no chunk map")
        with backing_images.open_chunk_map(self._images, image, artefact, self._folder) as found:
            yield found

    def _publish(
        self,
        image: image_record.Image,
        path: pathlib.Path,
        revision: int,
        origin: artefacts.BootOrigin,
    ) -> None:
        is_its_own = origin is not artefacts.BootOrigin.INHERITED
        state = artefacts.BootState.READY if is_its_own else artefacts.BootState.WAITING
        try:
            with path.open("rb") as file:
                self._images.publish_artefact(
                    *(BOOT_IMAGE, image, file, revision),
                    artefact_properties={artefacts.ORIGIN: origin.value},
                    image_properties=artefacts.boot_properties(state),
                )
        finally:
            path.unlink()


def firmware_of(image: image_record.Image) -> boot_guest.Firmware:
    """Return the firmware by which Nova would boot the image."""
    wants_uefi = image.text("hw_firmware_type") == boot_guest.Firmware.UEFI
    return boot_guest.Firmware.UEFI if wants_uefi else boot_guest.Firmware.BIOS


def _check_machine(image: image_record.Image) -> None:
    for name in ("hw_architecture", "architecture"):
        value = image.text(name).lower()
        if value and value not in boot_guest.ARCHITECTURES:
            why = f"its property {name} is {value}, and boot images are built for x86_64 only"
            raise errors.BootFailed(f"image {image.id}", why)


def _error_text(exc: Exception) -> str:
    if not isinstance(exc, (errors.BootFailed, errors.LimitExceeded)):
        return str(exc)
    return f"{exc.why}. {exc.remedy}" if exc.remedy else exc.why


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
