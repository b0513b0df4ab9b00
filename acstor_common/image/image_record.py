# SPDX-License-Identifier: Apache-2.0
"""Image records of Glance, and whether acstor can serve an image.

A record is a mapping as Glance's API v2 returns it, base and additional properties side by side.
Tenants write additional properties, so no value has a trusted type.
"""

import re
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import ids

Record = Mapping[str, Any]
"""An image as Glance's API v2 returns it."""

ACTIVE, QUEUED, SAVING = "active", "queued", "saving"
DEACTIVATED = "deactivated"
IMPORT_TASK = "os_glance_import_task"
"""Property of an image during its import, until shortly after it is active."""
SERVED_DISK_FORMATS = tuple(one.glance_name for one in layout.DiskFormat)
CONVERTIBLE_DISK_FORMATS = ("vmdk", "vhd", "vhdx", "vdi")
"""Formats that acstor converts if an operator enables it."""
CONVERTED = "acstor_converted"
"""Property that names the converted artefact of an image."""
SERVED_CONTAINER_FORMAT = "bare"
SERVED_VIRTUAL_BYTES = 2 << 40
"""Largest virtual size of an image that is prepared.

A chunk map has 1/2048 of the virtual size, and a raw image all of it, however small the upload."""

_HEX = re.compile(r"(?:[0-9a-f]{2})+")


def image_id_of(record: Record) -> ids.ImageId:
    """Return the image's ID, or raise ValueError."""
    return ids.parse_image_id(text_of(record, "id"))


def text_of(record: Record, name: str) -> str:
    """Return a property; "" if it is missing or no text."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


def size_bytes_of(record: Record) -> int:
    """Return the stored size; 0 if unknown."""
    size = record.get("size")
    return size if isinstance(size, int) and size > 0 else 0


def os_hash_of(record: Record) -> chunk_map.OsHash:
    """Return Glance's hash of the image's bytes; UNKNOWN_OS_HASH if it has none."""
    return parse_os_hash(text_of(record, "os_hash_algo"), text_of(record, "os_hash_value"))


def parse_os_hash(algo: str, digits: str) -> chunk_map.OsHash:
    """Return a hash from its two properties; UNKNOWN_OS_HASH if malformed.

    >>> parse_os_hash("sha256", "00ff")
    OsHash(algo='sha256', value=b'\\x00\\xff')
    """
    if not _HEX.fullmatch(digits) or chunk_map.fault_of_os_hash(
        found := chunk_map.OsHash(algo, bytes.fromhex(digits))
    ):
        return chunk_map.UNKNOWN_OS_HASH
    return found


def is_convertible(record: Record) -> bool:
    """Return whether acstor can convert the image's format."""
    return text_of(record, "disk_format") in CONVERTIBLE_DISK_FORMATS


def why_not_served(record: Record, convertible: Collection[str] | None = None) -> str:
    """Return why Nova must download an image itself, and a remedy; "" if served.

    :param convertible: formats that are converted; None: serve an image that points to its
        conversion

    >>> why_not_served({"status": "queued"})
    'its status is queued, not active'
    """
    status = text_of(record, "status")
    if status != ACTIVE:
        return f"its status is {status or 'unknown'}, not active"
    return why_format_not_served(record, convertible) or _why_nothing_to_bind(record)


def why_format_not_served(record: Record, convertible: Collection[str] | None = None) -> str:
    """Return why acstor does not serve an image's format; "" if it does.

    :param convertible: as for :func:`why_not_served`
    """
    container, disk = text_of(record, "container_format"), text_of(record, "disk_format")
    if convertible is None:
        convertible = CONVERTIBLE_DISK_FORMATS if text_of(record, CONVERTED) else ()
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


def is_encrypted(record: Record) -> bool:
    """Return whether the image's properties declare it encrypted.

    >>> is_encrypted({"os_encrypt_format": "LUKS"}), is_encrypted({"os_encrypt_format": ""})
    (True, False)
    """
    return any(name.startswith("os_encrypt") and record[name] for name in record)


def _why_nothing_to_bind(record: Record) -> str:
    if not size_bytes_of(record):
        return "it is empty"
    if os_hash_of(record) == chunk_map.UNKNOWN_OS_HASH:
        return (
            "Glance has no hash of it (os_hash_value), so nothing can be bound to its bytes: "
            "upload it, or let Glance hash new locations (do_secure_hash)"
        )
    return ""
