# SPDX-License-Identifier: Apache-2.0
"""Artefacts: what acstor makes of an image and keeps in Glance, and how it is found again.

An artefact (a chunk map, a boot image) is an image of Glance itself: hidden,
private, owned by the project of acstor's service user.  The image that it is of
points to it with one property.  The one rule: a pointer proves nothing, for a
tenant may write one and Nova copies properties onto snapshots; the artefact must
be owned by the service project and name the very image, by id and by Glance's
hash of its bytes (:func:`why_foreign`).

The names here are stored in clouds: they are never changed and never used again
for something else.
"""

import enum
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.image import image_record
from acstor_common.model import ids

PREFIX = "acstor_"
"""What every property of acstor begins with; Glance's property protections name it."""


class Kind(enum.StrEnum):
    """What an artefact is; the value stands in its property ``acstor_kind``."""

    CHUNK_MAP = "chunk_map"
    BOOT_IMAGE = "boot_image"
    CONVERTED = "converted"

    @property
    def pointer(self) -> str:
        """The property of the image that holds the artefact's id."""
        return PREFIX + self.value


CONVERTED_VERSION = 1
"""Of what an image of another format is converted to: 1 is one qcow2 file."""

AS_CONVERTED = layout.DiskFormat.QCOW2.glance_name
"""The format of such an artefact."""

SCOPE_SECRET = "scope_secret"
"""What ``acstor_kind`` says of the cloud's secret for scopes, which is of no image."""


class State(enum.StrEnum):
    """How far the preparation of an image is; the value of its property ``acstor_state``."""

    HASHED = "hashed"  # the import plugin has the chunk map and will publish it
    READY = "ready"  # the chunk map is published
    REFUSED = "refused"  # it cannot be served; acstor_message says why
    FAILED = "failed"  # acstor_message says why, acstor_retry when it is tried again


class BootState(enum.StrEnum):
    """How far an image's boot image is; the value of its property ``acstor_boot_state``."""

    WAITING = "waiting"  # for a listener that builds it, or for a boot that a host records
    BUILDING = "building"  # the image is booted; acstor_boot_retry says when it would be again
    READY = "ready"  # it is published
    FAILED = "failed"  # acstor_boot_message says why, acstor_boot_retry when it is tried again
    UNBOOTABLE = "unbootable"  # there is nothing to boot in it: it is not tried again


class BootOrigin(enum.StrEnum):
    """What a boot image was made of; the value of its property ``acstor_origin``."""

    BUILT = "built"  # the image was booted for it
    RECORDED = "recorded"  # of boots that hosts recorded
    INHERITED = "inherited"  # of what its predecessor's boot image holds


# Properties of images, beside the pointers.
STATE = "acstor_state"
MESSAGE = "acstor_message"
RETRY = "acstor_retry"  # attempts so far, and when the next one may begin
STATE_OF = "acstor_state_of"  # id of the image that all of these are about
BOOT_MESSAGE = "acstor_boot_message"  # why no boot image was built
BOOT_RETRY = "acstor_boot_retry"  # attempts to build one so far, and when the next one may begin
BOOT_STATE = "acstor_boot_state"  # how far its boot image is
BASE = "acstor_base"  # id of the image that it was made from, which its owner may read
OWN_BYTES = "acstor_own_bytes"  # what it has that its base has not at the same place
SHARED_BYTES = "acstor_shared_bytes"  # of its file in the store, what shares blocks with its base's

STATE_PROPERTIES = (STATE, MESSAGE, RETRY, STATE_OF, BOOT_STATE, BOOT_MESSAGE, BOOT_RETRY)
LINEAGE_PROPERTIES = (BASE, OWN_BYTES, SHARED_BYTES)
IMAGE_PROPERTIES = (*(kind.pointer for kind in Kind), *STATE_PROPERTIES, *LINEAGE_PROPERTIES)
"""Every property that acstor sets on images of tenants."""

PROTECTED = "acstor_protected="
"""What a tag begins with of an image that acstor protects from being deleted; the rest is which
image, for which service project, and since when.

No property: when a tenant changes an image, Glance deletes the properties that it hides from him.
"""

UNPROTECTED = "acstor_unprotected="
"""What the tag begins with instead as soon as acstor has seen that somebody took that back."""

# Properties of artefacts.
KIND = "acstor_kind"
OF_IMAGE = "acstor_image_id"
OS_HASH_ALGO = "acstor_os_hash_algo"
OS_HASH_VALUE = "acstor_os_hash_value"
FORMAT = "acstor_format"  # version of the artefact's own format
REVISION = "acstor_revision"  # grows when a better one takes its place
SCOPE = "acstor_scope"  # of a chunk map: scope in which the image's chunks are named
ORIGIN = "acstor_origin"  # of a boot image: what it was made of

OF_PROJECT = "acstor_project_id"  # owner of the image when it was made

ARTEFACT_PROPERTIES = (
    *(KIND, OF_IMAGE, OF_PROJECT, OS_HASH_ALGO, OS_HASH_VALUE, FORMAT, REVISION, SCOPE, ORIGIN),
)
"""Every property that acstor sets on its artefacts."""

MESSAGE_CHARACTERS = 255
"""Nova keeps no more of a property."""


def pointer_of(image: image_record.Record, kind: Kind) -> ids.ImageId | None:
    """Return the id of the image's artefact; None if there is none or it is no id."""
    try:
        return ids.parse_image_id(image_record.text_of(image, kind.pointer))
    except ValueError:
        return None


def state_of(image: image_record.Record) -> State | None:
    """Return how far the image's preparation is; None if nothing says so about this very image."""
    if image_record.text_of(image, STATE_OF) != image_record.text_of(image, "id"):
        return None  # copied from the image that this one is a snapshot of
    try:
        return State(image_record.text_of(image, STATE))
    except ValueError:
        return None


def boot_state_of(image: image_record.Record) -> BootState | None:
    """Return how far the image's boot image is; None if nothing says so about this very image."""
    if state_of(image) is not State.READY:
        return None
    try:
        return BootState(image_record.text_of(image, BOOT_STATE))
    except ValueError:
        return None


def boot_properties(state: BootState | None, message: str = "", retry: str = "") -> dict[str, str]:
    """Return the properties that say how far the boot image is; an empty one is to be removed.

    :param state: None: nobody makes boot images
    """
    return {BOOT_STATE: state or "", BOOT_MESSAGE: fit_message(message), BOOT_RETRY: retry}


def state_properties(
    image_id: ids.ImageId, state: State, message: str = "", retry: str = ""
) -> dict[str, str]:
    """Return the properties that say how far the preparation is; an empty one is to be removed."""
    return {
        STATE: state.value,
        MESSAGE: fit_message(message),
        RETRY: retry,
        STATE_OF: image_id,
    }


class Lineage(NamedTuple):
    """What is known of an image and the image that it was made from.

    :param base: None: it was made from none, as far as is known
    :param own_bytes: what it has that its base has not at the same place; None: not known
    :param shared_bytes: of its file in the store; None: not known, or nothing can be shared there
    """

    base: ids.ImageId | None
    own_bytes: int | None
    shared_bytes: int | None


def lineage_of(image: image_record.Record) -> Lineage:
    """Return what is written down about this very image."""
    if state_of(image) is not State.READY:
        return Lineage(None, None, None)
    try:
        base = ids.parse_image_id(image_record.text_of(image, BASE))
    except ValueError:
        return Lineage(None, None, None)
    return Lineage(base, _count_of(image, OWN_BYTES), _count_of(image, SHARED_BYTES))


def _count_of(image: image_record.Record, name: str) -> int | None:
    """Return a number of bytes that a property says; None if it says none."""
    text = image_record.text_of(image, name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def fit_message(message: str) -> str:
    """Return a message as it fits into a property, in one line."""
    return " ".join(message.split())[:MESSAGE_CHARACTERS]


def is_artefact(record: image_record.Record, project_id: str) -> bool:
    """Say whether ``record`` is an artefact and no tenant's image that looks like one."""
    return KIND in record and bool(project_id) and record.get("owner") == project_id


def is_left_alone(record: image_record.Record, project_id: str) -> bool:
    """Say whether acstor makes nothing of an image: an artefact, or one of another project.

    The listeners had another service project once, or a second acstor serves the same Glance.  A
    tenant who may write the same onto his image keeps that one, and no other, from preparation.
    """
    is_anothers = KIND in record and record.get("os_hidden") is True
    return is_anothers or is_artefact(record, project_id)


def kind_of(artefact: image_record.Record) -> Kind | None:
    """Return what the artefact is; None if this version does not know it."""
    try:
        return Kind(image_record.text_of(artefact, KIND))
    except ValueError:
        return None


def revision_of(artefact: image_record.Record) -> int:
    """Return the artefact's revision; 0 if it is no number."""
    text = image_record.text_of(artefact, REVISION)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def new_artefact(
    image: image_record.Record,
    kind: Kind,
    project_id: str,
    format_version: int,
    revision: int = 1,
    also: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the record with which an artefact of ``image`` is made in Glance.

    :param also: what its kind alone has: SCOPE of a chunk map, ORIGIN of a boot image
    :raises ValueError: the image has no hash yet, so nothing can be bound to it
    """
    os_hash = image_record.os_hash_of(image)
    if os_hash == chunk_map.UNKNOWN_OS_HASH:
        raise ValueError(f"image {image_record.text_of(image, 'id')} has no hash in Glance")
    image_id = image_record.image_id_of(image)
    disk_format = AS_CONVERTED if kind is Kind.CONVERTED else "raw"
    return {
        **_hidden(name_of(kind, image_id), kind.value, project_id),
        "disk_format": disk_format,
        OF_IMAGE: image_id,
        OF_PROJECT: image_record.text_of(image, "owner"),
        OS_HASH_ALGO: os_hash.algo,
        OS_HASH_VALUE: os_hash.value.hex(),
        FORMAT: str(format_version),
        REVISION: str(revision),
        **(also or {}),
    }


def name_of(kind: Kind, image_id: str) -> str:
    """Return the name of an image's artefact: those of a kind are sorted as their images are."""
    return f"acstor {kind.value} of {image_id}"


def new_secret(project_id: str) -> dict[str, Any]:
    """Return the record with which the cloud's secret for scopes is made in Glance."""
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


def is_stopgap(artefact: image_record.Record | None) -> bool:
    """Say whether a boot image serves only until the image has its own."""
    return artefact is not None and artefact.get(ORIGIN) == BootOrigin.INHERITED


def as_read(
    image: image_record.Record, converted: image_record.Record | None
) -> image_record.Record:
    """Return an image's record with the format and size of what agents read of it.

    :param converted: the artefact that is read instead of an image of another format; None: there
        is none
    """
    if converted is None:
        return image
    return {**image, "disk_format": AS_CONVERTED, "size": converted.get("size")}


def check_belongs(
    image: image_record.Record,
    artefact: image_record.Record,
    kind: Kind,
    project_id: str,
    format_version: int,
) -> None:
    """Raise unless ``artefact`` is what it should be; see :func:`why_foreign`.

    :raises errors.ForeignArtefact: it is not
    """
    why = why_foreign(image, artefact, kind, project_id, format_version)
    if why:
        raise errors.ForeignArtefact(
            image_record.text_of(image, "id"), kind.value, image_record.text_of(artefact, "id"), why
        )


def why_foreign(
    image: image_record.Record,
    artefact: image_record.Record,
    kind: Kind,
    project_id: str,
    format_version: int,
) -> str:
    """Say why ``artefact`` must not be used as the ``kind`` of ``image``; empty if it may be.

    Its own bytes prove nothing either before they are checked: this is about the records only.

    :param project_id: the service project; only its users can make an image that it owns
    :param format_version: the only version of the format that the caller can read
    """
    if not is_artefact(artefact, project_id):
        return "acstor's service project did not make it"
    found = image_record.text_of(artefact, KIND)
    if found != kind.value:
        return f"it is a {found or 'thing without a kind'}, not a {kind.value}"
    of_image = image_record.text_of(artefact, OF_IMAGE)
    if of_image != image_record.text_of(image, "id"):
        return f"it is of image {of_image or 'unknown'}"
    if _bound_hash(artefact) != image_record.os_hash_of(image) or not _bound_hash(artefact).algo:
        return "it is of other bytes: Glance's hash of the image is not the one it was made for"
    return _why_unreadable(artefact, format_version)


def is_of_other_bytes(
    image: image_record.Record, artefact: image_record.Record, kind: Kind, project_id: str
) -> bool:
    """Say whether ``artefact`` was made as the ``kind`` of ``image`` when that had other bytes."""
    is_of_image = image_record.text_of(artefact, OF_IMAGE) == image_record.text_of(image, "id")
    is_kind = is_artefact(artefact, project_id) and kind_of(artefact) is kind
    return is_of_image and is_kind and _bound_hash(artefact) != image_record.os_hash_of(image)


def _why_unreadable(artefact: image_record.Record, format_version: int) -> str:
    found = image_record.text_of(artefact, FORMAT)
    if found != str(format_version):
        return f"format version {found or 'unknown'} is not known (only {format_version} is)"
    status = image_record.text_of(artefact, "status")
    if status != image_record.ACTIVE:
        return f"its status is {status or 'unknown'}, not active"
    return ""


def _bound_hash(artefact: image_record.Record) -> chunk_map.OsHash:
    return image_record.parse_os_hash(
        image_record.text_of(artefact, OS_HASH_ALGO), image_record.text_of(artefact, OS_HASH_VALUE)
    )


def parse_chunk_map(image: image_record.Record, buffer: chunk_map.Buffer) -> chunk_map.ChunkMap:
    """Check that ``buffer`` is the chunk map of ``image``, down to its hash, and return it.

    :param image: as agents read it (:func:`as_read`)
    :raises errors.ChunkMapFormatError: it is damaged or the map of another image
    """
    image_id = image_record.image_id_of(image)
    found = chunk_map.ChunkMap.parse(
        buffer,
        f"chunk map of image {image_id}",
        expected_image_id=image_id,
        expected_stored_bytes=image_record.size_bytes_of(image),
    )
    if chunk_map.OsHash(found.os_hash_algo, found.os_hash_value) != image_record.os_hash_of(image):
        raise errors.ChunkMapFormatError(
            f"chunk map of image {image_id}", chunk_map.AT_OS_HASH_ALGO, "made for other bytes"
        )
    return found
