# SPDX-License-Identifier: Apache-2.0
"""Artefacts of images in Glance: properties, states, and validation of pointers.

An artefact (chunk map, boot image, conversion) is a hidden, private Glance image of the service
project, to which a property of the original image points.  Tenants can write that property and Nova
copies it to snapshots, so :func:`why_foreign` checks the artefact.  Clouds store these names: do
not change or reuse them.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.image import image_record
from acstor_common.model import ids

PREFIX = "acstor_"  # prefix of acstor's properties; Glance's property protections use it


class Kind(enum.StrEnum):
    """Kind of an artefact: the value of its property ``acstor_kind``."""

    CHUNK_MAP = "chunk_map"
    BOOT_IMAGE = "boot_image"
    CONVERTED = "converted"

    @property
    def pointer(self) -> str:
        """The property of the image that holds the artefact's ID."""
        return PREFIX + self.value


CONVERTED_VERSION = 1  # format version of converted images: 1 is one qcow2 file

CONVERTED_FORMAT = layout.DiskFormat.QCOW2.glance_name  # disk format of converted images

SCOPE_SECRET = "scope_secret"  # value of ``acstor_kind`` for the cloud's scope secret


class State(enum.StrEnum):
    """State of an image's preparation: the value of its property ``acstor_state``."""

    HASHED = "hashed"  # the import plugin will publish the chunk map
    READY = "ready"  # the chunk map is published
    REFUSED = "refused"  # permanent; see acstor_message
    FAILED = "failed"  # see acstor_message, acstor_retry


class BootState(enum.StrEnum):
    """State of an image's boot image: the value of its property ``acstor_boot_state``."""

    WAITING = "waiting"  # for a listener to build it, or for a recorded boot
    BUILDING = "building"  # the image is booting; see acstor_boot_retry
    READY = "ready"  # published
    FAILED = "failed"  # see acstor_boot_message, acstor_boot_retry
    UNBOOTABLE = "unbootable"  # nothing bootable in it; permanent


class BootOrigin(enum.StrEnum):
    """Origin of a boot image: the value of its property ``acstor_origin``."""

    BUILT = "built"  # from a boot for this purpose
    RECORDED = "recorded"  # from boots that hosts recorded
    INHERITED = "inherited"  # from the boot image of an earlier version of the image


# Properties of images, in addition to the pointers.
STATE = "acstor_state"
MESSAGE = "acstor_message"
RETRY = "acstor_retry"  # number of attempts, and earliest time of the next one, or NEVER
NEVER = "never"  # only a forced preparation tries again
STATE_OF = "acstor_state_of"  # ID of the image they describe; differs on copies
BOOT_MESSAGE = "acstor_boot_message"  # reason of BootState.FAILED
BOOT_RETRY = "acstor_boot_retry"  # as RETRY
BOOT_STATE = "acstor_boot_state"
BASE = "acstor_base"  # ID of the image it was made from, readable by its owner
OWN_BYTES = "acstor_own_bytes"  # bytes that differ from the base at the same offset
SHARED_BYTES = "acstor_shared_bytes"  # blocks that its file shares with the base's

STATE_PROPERTIES = (STATE, MESSAGE, RETRY, STATE_OF, BOOT_STATE, BOOT_MESSAGE, BOOT_RETRY)
LINEAGE_PROPERTIES = (BASE, OWN_BYTES, SHARED_BYTES)
IMAGE_PROPERTIES = (*(kind.pointer for kind in Kind), *STATE_PROPERTIES, *LINEAGE_PROPERTIES)
"""All properties that acstor sets on images of tenants."""

PROTECTED = "acstor_protected="
"""Prefix of the tag of a protected image; then image, service project and time.

A tag, because Glance deletes hidden properties when a tenant updates the image."""

UNPROTECTED = "acstor_unprotected="
"""Prefix that replaces PROTECTED when the protection was removed."""

# Properties of artefacts.
KIND = "acstor_kind"
OF_IMAGE = "acstor_image_id"
OS_HASH_ALGO = "acstor_os_hash_algo"
OS_HASH_VALUE = "acstor_os_hash_value"
FORMAT = "acstor_format"  # format version
REVISION = "acstor_revision"  # increases when a better artefact replaces it
SCOPE = "acstor_scope"  # of a chunk map: the image's deduplication scope
ORIGIN = "acstor_origin"  # of a boot image

OF_PROJECT = "acstor_project_id"  # owner of the image at that time

ARTEFACT_PROPERTIES = (
    *(KIND, OF_IMAGE, OF_PROJECT, OS_HASH_ALGO, OS_HASH_VALUE, FORMAT, REVISION, SCOPE, ORIGIN),
)
"""All properties that acstor sets on its artefacts."""

MESSAGE_CHARACTERS = 255  # Nova truncates properties to this length


def pointer_of(image: image_record.Image, kind: Kind) -> ids.ImageId | None:
    """Return the ID of the image's artefact; None if missing or malformed."""
    try:
        return ids.parse_image_id(image.text(kind.pointer))
    except ValueError:
        return None


def state_of(image: image_record.Image) -> State | None:
    """Return the state of the image's preparation; None if unknown."""
    if image.text(STATE_OF) != image.id:
        return None  # Nova copied it to a snapshot
    try:
        return State(image.text(STATE))
    except ValueError:
        return None


def is_refused(image: image_record.Image) -> bool:
    """Return whether the image is refused, or failed for good: it exceeds a limit."""
    state = state_of(image)
    is_final = image.text(RETRY).endswith(f" {NEVER}")
    return state is State.REFUSED or (state is State.FAILED and is_final)


def boot_state_of(image: image_record.Image) -> BootState | None:
    """Return the state of the image's boot image; None if unknown."""
    if state_of(image) is not State.READY:
        return None
    try:
        return BootState(image.text(BOOT_STATE))
    except ValueError:
        return None


def boot_properties(state: BootState | None, message: str = "", retry: str = "") -> dict[str, str]:
    """Return the properties of a boot image's state (None: disabled), also empty ones."""
    return {BOOT_STATE: state or "", BOOT_MESSAGE: fit_message(message), BOOT_RETRY: retry}


def state_properties(
    image_id: ids.ImageId, state: State, message: str = "", retry: str = ""
) -> dict[str, str]:
    """Return the properties of a preparation's state, also empty ones."""
    return {STATE: state.value, MESSAGE: fit_message(message), RETRY: retry, STATE_OF: image_id}


class Lineage(NamedTuple):
    """Relation of an image to its base; None: unknown or not applicable."""

    base: ids.ImageId | None
    own_bytes: int | None  # bytes that differ from the base at the same offset
    shared_bytes: int | None  # bytes of its file that share blocks with the base's


def lineage_of(image: image_record.Image) -> Lineage:
    """Return the recorded lineage of an image."""
    if state_of(image) is not State.READY:
        return Lineage(None, None, None)
    try:
        base = ids.parse_image_id(image.text(BASE))
    except ValueError:
        return Lineage(None, None, None)
    return Lineage(base, _count_of(image, OWN_BYTES), _count_of(image, SHARED_BYTES))


def _count_of(image: image_record.Image, name: str) -> int | None:
    text = image.text(name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def fit_message(message: str) -> str:
    """Return a message in one line, truncated for a property."""
    return " ".join(message.split())[:MESSAGE_CHARACTERS]


def is_artefact(record: image_record.Image, project_id: str) -> bool:
    """Return whether ``record`` is an artefact that the service project owns."""
    return KIND in record.properties and bool(project_id) and record.owner == project_id


def is_excluded(record: image_record.Image, project_id: str) -> bool:
    """Return whether an image is an artefact of any service project: two may use one Glance.

    A tenant who sets these properties excludes only their own image.
    """
    is_anothers = KIND in record.properties and record.is_hidden
    return is_anothers or is_artefact(record, project_id)


def kind_of(artefact: image_record.Image) -> Kind | None:
    """Return the artefact's kind; None if unknown."""
    try:
        return Kind(artefact.text(KIND))
    except ValueError:
        return None


def revision_of(artefact: image_record.Image) -> int:
    """Return the artefact's revision; 0 if malformed."""
    text = artefact.text(REVISION)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def new_artefact(
    image: image_record.Image,
    kind: Kind,
    project_id: str,
    format_version: int,
    revision: int = 1,
    also: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the Glance record of a new artefact; ValueError: Glance has no hash of the image.

    :param also: properties of its kind: SCOPE of a chunk map, ORIGIN of a boot image
    """
    os_hash = image.os_hash
    if os_hash == chunk_map.UNKNOWN_OS_HASH:
        raise ValueError(f"image {image.id} has no hash in Glance")
    disk_format = CONVERTED_FORMAT if kind is Kind.CONVERTED else "raw"
    return {
        **_hidden(name_of(kind, image.id), kind.value, project_id),
        "disk_format": disk_format,
        OF_IMAGE: image.id,
        OF_PROJECT: image.owner,
        OS_HASH_ALGO: os_hash.algo,
        OS_HASH_VALUE: os_hash.value.hex(),
        FORMAT: str(format_version),
        REVISION: str(revision),
        **(also or {}),
    }


def name_of(kind: Kind, image_id: str) -> str:
    """Return the name of an artefact; names of one kind sort as the image IDs."""
    return f"acstor {kind.value} of {image_id}"


def new_secret(project_id: str) -> dict[str, Any]:
    """Return the Glance record of a new scope secret."""
    return _hidden("acstor secret of the scopes", SCOPE_SECRET, project_id)


def _hidden(name: str, kind: str, project_id: str) -> dict[str, Any]:
    return {
        "name": name,
        "owner": project_id,
        "visibility": "private",
        "os_hidden": True,
        "disk_format": "raw",
        "container_format": image_record.SERVED_CONTAINER_FORMAT,
        KIND: kind,
    }


def is_inherited(artefact: image_record.Image | None) -> bool:
    """Return whether a boot image is inherited, until the image has its own."""
    return artefact is not None and artefact.text(ORIGIN) == BootOrigin.INHERITED


def as_read(image: image_record.Image, converted: image_record.Image | None) -> image_record.Image:
    """Return an image's record with the format and size of its conversion, which agents read."""
    if converted is None:
        return image
    return dataclasses.replace(image, disk_format=CONVERTED_FORMAT, size_bytes=converted.size_bytes)


def check_belongs(
    image: image_record.Image,
    artefact: image_record.Image,
    kind: Kind,
    project_id: str,
    format_version: int,
) -> None:
    """Raise ForeignArtefact unless an artefact is valid; see :func:`why_foreign`."""
    why = why_foreign(image, artefact, kind, project_id, format_version)
    if why:
        raise errors.ForeignArtefact(image.id, kind.value, artefact.id, why)


def why_foreign(
    image: image_record.Image,
    artefact: image_record.Image,
    kind: Kind,
    project_id: str,
    format_version: int,
) -> str:
    """Return why a record is no artefact of ``image``; "" if it is.  Its bytes are not checked."""
    if not is_artefact(artefact, project_id):
        return "it does not belong to acstor's service project"
    found = artefact.text(KIND)
    if found != kind.value:
        return f"it is a {found or 'record without a kind'}, not a {kind.value}"
    of_image = artefact.text(OF_IMAGE)
    if of_image != image.id:
        return f"it is for image {of_image or 'unknown'}"
    if not _is_made_for(artefact, image.os_hash):
        return "it is for other bytes: Glance's hash of the image is not the one it was made for"
    return _why_unreadable(artefact, format_version)


def is_of_other_bytes(
    image: image_record.Image, artefact: image_record.Image, kind: Kind, project_id: str
) -> bool:
    """Return whether an artefact was made of an image's former bytes."""
    is_of_image = artefact.text(OF_IMAGE) == image.id
    is_kind = is_artefact(artefact, project_id) and kind_of(artefact) is kind
    return is_of_image and is_kind and not _is_made_for(artefact, image.os_hash)


def _why_unreadable(artefact: image_record.Image, format_version: int) -> str:
    found = artefact.text(FORMAT)
    if found != str(format_version):
        return f"format version {found or 'unknown'} is not known (only {format_version} is)"
    status = artefact.status
    if status != image_record.ACTIVE:
        return f"its status is {status or 'unknown'}, not active"
    return ""


def _is_made_for(artefact: image_record.Image, os_hash: chunk_map.OsHash) -> bool:
    made_for = artefact.text(OS_HASH_ALGO), artefact.text(OS_HASH_VALUE)
    return os_hash != chunk_map.UNKNOWN_OS_HASH and made_for == (os_hash.algo, os_hash.value.hex())


def parse_chunk_map(image: image_record.Image, buffer: chunk_map.Buffer) -> chunk_map.ChunkMap:
    """Parse the map of an image :func:`as_read`, or raise ChunkMapFormatError."""
    found = chunk_map.ChunkMap.parse(
        buffer,
        f"chunk map of image {image.id}",
        expected_image_id=image.id,
        expected_stored_bytes=image.size_bytes,
    )
    if chunk_map.OsHash(found.os_hash_algo, found.os_hash_value) != image.os_hash:
        raise errors.ChunkMapFormatError(
            f"chunk map of image {image.id}",
            chunk_map_header.AT_OS_HASH_ALGO,
            "made for other bytes",
        )
    return found
