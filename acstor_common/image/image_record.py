# SPDX-License-Identifier: Apache-2.0
"""Images of Glance, parsed where a record of API v2 arrives, and whether acstor can serve one.

Tenants write additional properties, so no value of a record has a trusted type.
"""

import dataclasses
import re
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import ids

ACTIVE, QUEUED, SAVING = "active", "queued", "saving"
DEACTIVATED = "deactivated"
IMPORT_TASK = "os_glance_import_task"
"""Property of an image during its import, until shortly after it is active."""
SERVED_DISK_FORMATS = tuple(disk_format.glance_name for disk_format in layout.DiskFormat)
CONVERTIBLE_DISK_FORMATS = ("vmdk", "vhd", "vhdx", "vdi")
"""Formats that acstor converts if an operator enables it."""
CONVERTED = "acstor_converted"  # property that names the converted artefact of an image
SERVED_CONTAINER_FORMAT = "bare"
SERVED_VIRTUAL_BYTES = 2 << 40
"""Largest virtual size of an image that is prepared.

A chunk map has 1/2048 of the virtual size, and a raw image all of it, however small the upload."""

_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_NO_ID = ids.ImageId("")
_BASE_TEXTS = (
    *("name", "status", "owner", "visibility"),
    *("disk_format", "container_format", "created_at"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image in Glance; a text is empty where its record has none."""

    id: ids.ImageId = _NO_ID
    name: str = ""
    status: str = ""
    owner: str = ""
    visibility: str = ""
    disk_format: str = ""
    container_format: str = ""
    created_at: str = ""
    size_bytes: int = 0  # stored size; 0 if unknown
    os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH  # of the stored bytes
    is_hidden: bool = False
    is_protected: bool = False
    tags: tuple[str, ...] = ()
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)  # all other texts

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Image":
        """Parse a record of Glance's API v2; raises ValueError if its ID is no UUID."""
        texts = {name: value for name, value in record.items() if isinstance(value, str)}
        base = {name: texts.pop(name, "") for name in _BASE_TEXTS}
        image_id = ids.parse_image_id(texts.pop("id", ""))
        os_hash = parse_os_hash(texts.pop("os_hash_algo", ""), texts.pop("os_hash_value", ""))
        size, tags = record.get("size"), record.get("tags")
        return cls(
            id=image_id,
            size_bytes=size if isinstance(size, int) and size > 0 else 0,
            os_hash=os_hash,
            is_hidden=record.get("os_hidden") is True,
            is_protected=record.get("protected") is True,
            tags=tuple(tag for tag in tags if isinstance(tag, str))
            if isinstance(tags, list)
            else (),
            properties=texts,
            **base,
        )

    def text(self, name: str) -> str:
        """Return one of :attr:`properties`; "" if it is missing."""
        return self.properties.get(name, "")

    @property
    def is_convertible(self) -> bool:
        """Whether acstor can convert the image's format."""
        return self.disk_format in CONVERTIBLE_DISK_FORMATS

    @property
    def is_encrypted(self) -> bool:
        """Whether the image's properties declare it encrypted."""
        return any(
            name.startswith("os_encrypt") and value for name, value in self.properties.items()
        )


def parse_os_hash(algo: str, digits: str) -> chunk_map.OsHash:
    """Return a hash from its two properties; UNKNOWN_OS_HASH if malformed.

    >>> parse_os_hash("sha256", "00ff")
    OsHash(algo='sha256', value=b'\\x00\\xff')
    """
    if not _HEX.fullmatch(digits) or chunk_map_header.fault_of_os_hash(
        found := chunk_map.OsHash(algo, bytes.fromhex(digits))
    ):
        return chunk_map.UNKNOWN_OS_HASH
    return found


def why_not_served(image: Image, convertible: Collection[str] | None = None) -> str:
    """Return why Nova must download an image itself, and a remedy; "" if served.

    :param convertible: formats that are converted; None: serve an image that has a conversion

    >>> why_not_served(Image(status="queued"))
    'its status is queued, not active'
    """
    if image.status != ACTIVE:
        return f"its status is {image.status or 'unknown'}, not active"
    return why_format_not_served(image, convertible) or _why_nothing_to_bind(image)


def why_format_not_served(image: Image, convertible: Collection[str] | None = None) -> str:
    """Return why acstor does not serve an image's format; as :func:`why_not_served`."""
    container, disk = image.container_format, image.disk_format
    if convertible is None:
        convertible = CONVERTIBLE_DISK_FORMATS if image.text(CONVERTED) else ()
    if disk not in SERVED_DISK_FORMATS and disk not in convertible:
        ours = ", or acstor (convert_formats)" if disk in CONVERTIBLE_DISK_FORMATS else ""
        return (
            f"its disk format is {disk or 'unknown'}, and only {' and '.join(SERVED_DISK_FORMATS)} "
            "images are served: upload it as one of them, or let Glance convert imports (plugin "
            f"image_conversion, output_format = raw){ours}"
        )
    if container != SERVED_CONTAINER_FORMAT:
        return (
            f"its container format is {container or 'unknown'}, and only images in no container "
            "(bare) are served: upload the disk itself"
        )
    return ""


def _why_nothing_to_bind(image: Image) -> str:
    if not image.size_bytes:
        return "it is empty"
    if image.os_hash == chunk_map.UNKNOWN_OS_HASH:
        return (
            "Glance has no hash of it (os_hash_value), so nothing can be bound to its bytes: "
            "upload it, or let Glance hash new locations (do_secure_hash)"
        )
    return ""
