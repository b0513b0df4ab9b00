# SPDX-License-Identifier: Apache-2.0
"""Image records of Glance's API v2."""

import hashlib
from typing import Any

from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record

IMAGE_ID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
ARTEFACT_ID = "2b1d7c7e-9d0c-4f5e-8a56-0f4f1f5b7d22"
SERVICE_PROJECT = "5e5b1c3d2f4e4d6f8a9b0c1d2e3f4a5b"
TENANT = "aa5b1c3d2f4e4d6f8a9b0c1d2e3f4a5b"
BYTES = b"what the image holds" * 1000
CATALOG_PATHS = ("", "/", "/v2", "/v2/", "/v2.9", "/image", "/image/v2/")
"""Paths of Glance's URL in Keystone's catalog."""


def record(**changed: Any) -> dict[str, Any]:
    """Return the record of a raw image that acstor can serve."""
    return {
        "id": IMAGE_ID,
        "name": "debian",
        "status": "active",
        "disk_format": "raw",
        "container_format": "bare",
        "visibility": "private",
        "os_hidden": False,
        "owner": TENANT,
        "size": len(BYTES),
        "os_hash_algo": "sha512",
        "os_hash_value": hashlib.sha512(BYTES).hexdigest(),
        **changed,
    }


def image(**changed: Any) -> image_record.Image:
    """Return a raw image that acstor can serve."""
    return image_record.Image.from_record(record(**changed))


VERSIONS = {
    artefacts.Kind.CHUNK_MAP: chunk_map.VERSION,
    artefacts.Kind.BOOT_IMAGE: boot_image.VERSION,
    artefacts.Kind.CONVERTED: artefacts.CONVERTED_VERSION,
}


def artefact_record(
    of: image_record.Image, kind: artefacts.Kind = artefacts.Kind.CHUNK_MAP, **changed: Any
) -> dict[str, Any]:
    """Return the record of an image's artefact."""
    made = artefacts.new_artefact(of, kind, SERVICE_PROJECT, VERSIONS[kind])
    return {"id": ARTEFACT_ID, "status": "active", "size": 4711, **made, **changed}


def artefact(
    of: image_record.Image, kind: artefacts.Kind = artefacts.Kind.CHUNK_MAP, **changed: Any
) -> image_record.Image:
    """Return an image's artefact."""
    return image_record.Image.from_record(artefact_record(of, kind, **changed))
