# SPDX-License-Identifier: Apache-2.0
"""Counts all images by status: served, or why not, as in :class:`control_wire.Fallback`."""

import dataclasses
import enum
import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.disks import qcow2_header
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.wire import control_wire
from acstor_glance.client import glance_client
from acstor_glance.client import image_iteration
from acstor_glance.client import range_support

MAX_EXAMPLES = 5
MAX_LABELS = 200  # limit of labels; further details count as OTHER_DETAIL
OTHER_DETAIL = "others"
_DETAIL = re.compile(r"[a-z0-9][a-z0-9_.,-]{0,63}")
_FORMAT_WORDS = "its format "


RangesOf = Callable[[image_record.Image], range_support.ProbeResult]


class ScanReason(enum.StrEnum):
    """Status of an image: served, or why not."""

    SERVED = "served"
    NOT_ACTIVE = control_wire.Fallback.NOT_ACTIVE.value
    DISK_FORMAT = control_wire.Fallback.DISK_FORMAT.value
    CONTAINER_FORMAT = "container-format"
    ENCRYPTED = control_wire.Fallback.ENCRYPTED.value
    EMPTY = "empty"
    NO_HASH = "no-hash"
    REFUSED = "refused"
    FAILED = "failed"
    RECORD_DIFFERS = control_wire.Fallback.RECORD_DIFFERS.value
    NOT_MAPPED = control_wire.Fallback.NOT_MAPPED.value
    NO_RANGES = "no-ranges"
    STORE_AWAY = "store-away"


FAULTY = frozenset({ScanReason.FAILED, ScanReason.RECORD_DIFFERS, ScanReason.STORE_AWAY})

_WHAT_TO_DO = {
    ScanReason.SERVED: "",
    ScanReason.NOT_ACTIVE: "nothing: they do not exist or were deactivated",
    ScanReason.DISK_FORMAT: "upload them as raw or qcow2, let Glance convert imports, or name the "
    "format in convert_formats",
    ScanReason.CONTAINER_FORMAT: "upload the disk itself, in no container (bare)",
    ScanReason.ENCRYPTED: "nothing: Nova downloads encrypted images itself",
    ScanReason.EMPTY: "nothing: they are empty",
    ScanReason.NO_HASH: "upload them, or let Glance hash new locations (do_secure_hash)",
    ScanReason.REFUSED: "acstor_message of each has the reason and the remedy",
    ScanReason.FAILED: "acstor_message of each has the reason, acstor_retry the next attempt",
    ScanReason.RECORD_DIFFERS: "their chunk map does not match the data in Glance: prepare "
    "them, and find out who changed them",
    ScanReason.NOT_MAPPED: "wait for the listener, or prepare",
    ScanReason.NO_RANGES: "run acstor-glance-gateway; without it one host downloads each of them "
    "completely, for all hosts",
    ScanReason.STORE_AWAY: "check the store, or its gateway",
}


class ImageStatus(NamedTuple):
    """Status of one image; ``detail``, such as the disk format, may be empty."""

    reason: ScanReason
    detail: str = ""
    why: str = ""


@dataclasses.dataclass
class Count:
    """Images with one reason and detail; examples and text of the first ones."""

    reason: ScanReason
    images: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    why: str = ""

    @property
    def message(self) -> str:
        """The remedy, and the text for the first image."""
        what_to_do = _WHAT_TO_DO[self.reason]
        return f"{what_to_do}; of the first: {self.why}" if self.why else what_to_do


class ScanContext(NamedTuple):
    """Lookups beside an image's record."""

    project_id: str
    ranges_of: RangesOf
    converted_of: Callable[[image_record.Image], image_record.Image | None]
    convertible: Collection[str] = ()


def status_of(
    image: image_record.Image, found: image_record.Image | None, context: ScanContext
) -> ImageStatus:
    """Return the status of an image; ``found`` is the record that it names as its chunk map."""
    by_record = _by_record(image, context.convertible)
    if by_record is not None:
        return by_record
    if _why_foreign(image, found, image_iteration.CHUNK_MAP, context.project_id):
        return _unmapped(image, found, context.project_id)
    read = image
    if image.is_convertible:
        converted = context.converted_of(image)
        why = _why_foreign(image, converted, artefacts.Kind.CONVERTED, context.project_id)
        if why or converted is None:
            return ImageStatus(ScanReason.NOT_MAPPED, "", f"its converted copy: {why}")
        read = converted
    stores = range_support.stores_of(read)
    answer = context.ranges_of(read)
    if answer.support is range_support.RangeSupport.RANGES:
        return ImageStatus(ScanReason.SERVED)
    is_whole = answer.support is range_support.RangeSupport.WHOLE
    return ImageStatus(
        ScanReason.NO_RANGES if is_whole else ScanReason.STORE_AWAY, stores, answer.why
    )


def _why_foreign(
    image: image_record.Image,
    found: image_record.Image | None,
    kind: artefacts.Kind,
    project_id: str,
) -> str:
    if found is None:
        return "it does not exist"
    version = glance_client.FORMAT_VERSIONS[kind]
    return artefacts.why_foreign(image, found, kind, project_id, version)


def _by_record(image: image_record.Image, convertible: Collection[str]) -> ImageStatus | None:
    if image.status != image_record.ACTIVE:
        return ImageStatus(ScanReason.NOT_ACTIVE, image.status)
    if image_record.why_format_not_served(image, convertible):
        disk = image.disk_format
        if disk not in (*image_record.SERVED_DISK_FORMATS, *convertible):
            return ImageStatus(ScanReason.DISK_FORMAT, disk)
        container = image.container_format
        return ImageStatus(ScanReason.CONTAINER_FORMAT, container)
    if image.is_encrypted:
        return ImageStatus(ScanReason.ENCRYPTED)
    if not image.size_bytes:
        return ImageStatus(ScanReason.EMPTY)
    why_not = image_record.why_not_served(image, convertible)
    return ImageStatus(ScanReason.NO_HASH) if why_not else None


def _unmapped(
    image: image_record.Image, found: image_record.Image | None, project_id: str
) -> ImageStatus:
    state, message = artefacts.state_of(image), image.text(artefacts.MESSAGE)
    if artefacts.is_refused(image):
        is_limited = state is artefacts.State.FAILED
        label = "limit" if is_limited else refusal_label(message)
        return ImageStatus(ScanReason.REFUSED, label, message)
    if state is artefacts.State.FAILED:
        return ImageStatus(ScanReason.FAILED, "", message)
    why = _why_foreign(image, found, image_iteration.CHUNK_MAP, project_id) if found else ""
    is_other = found is not None and artefacts.is_of_other_bytes(
        image, found, image_iteration.CHUNK_MAP, project_id
    )
    return ImageStatus(ScanReason.RECORD_DIFFERS if is_other else ScanReason.NOT_MAPPED, "", why)


def refusal_label(message: str) -> str:
    """Return the label for the reason in a refusal's message.

    >>> refusal_label("it has a backing file. Upload it converted")
    'backing-file'
    """
    for reason in qcow2_header.RefusalReason:
        if message.startswith(reason.value):
            return reason.name.lower().replace("_", "-")
    return "format" if message.startswith(_FORMAT_WORDS) else "other"


class ImageScan:
    """Counts images by reason and detail."""

    def __init__(
        self,
        images: glance_client.GlanceClient,
        ranges_of: RangesOf,
        convertible: Collection[str] = (),
    ) -> None:
        self._images, self._ranges_of, self._convertible = images, ranges_of, convertible
        self.counts: dict[str, Count] = {}

    def run(self) -> Iterator[int]:
        """Count all images; yield the number so far after each."""
        context = ScanContext(
            self._images.project_id,
            self._ranges_of,
            self._images.read_converted,
            self._convertible,
        )
        for number, (image, found) in enumerate(image_iteration.iterate_images(self._images), 1):
            self._add(image.id, status_of(image, found, context))
            yield number

    def _add(self, image_id: str, status: ImageStatus) -> None:
        count = self.counts.setdefault(self._label(status), Count(status.reason))
        count.images += 1
        count.why = count.why or status.why
        if len(count.examples) < MAX_EXAMPLES:
            count.examples.append(image_id)

    def _label(self, status: ImageStatus) -> str:
        if not status.detail:
            return status.reason.value
        shown = status.detail if _DETAIL.fullmatch(status.detail) else OTHER_DETAIL
        label = f"{status.reason}:{shown}"
        has_label = label in self.counts or len(self.counts) < MAX_LABELS
        return label if has_label else f"{status.reason}:{OTHER_DETAIL}"

    @property
    def is_healthy(self) -> bool:
        """Whether no reason needs an operator's attention."""
        return not any(count.reason in FAULTY for count in self.counts.values())
