# SPDX-License-Identifier: Apache-2.0
"""The base of an image, according to its properties.

Nova records the first image of a line of snapshots (:data:`deduplication.BASE_IMAGE`) and copies
properties to snapshots.  So acstor adds DIRECT_BASE, the image that the disk lies on, with the
snapshot's own ID to detect copies.  Tenants may write both: check :func:`deduplication.may_read`.
"""

import contextlib

from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids

DIRECT_BASE = "direct_base_image_ref"
"""Set with a tenant's token, so it does not have the protected prefix."""
MAX_GENERATIONS = 16  # bound on following bases, which may form a cycle


def direct_base(base: ids.ImageId, image_id: str) -> dict[str, str]:
    """Return the property of an image made of ``base`` and a delta."""
    return {DIRECT_BASE: f"{base} {image_id}"}


def bases_of(image: image_record.Image) -> list[ids.ImageId]:
    """Return the IDs of the image's claimed bases, the nearest first.

    >>> own, base = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11", "2b1d7c7e-9d0c-4f5e-8a56-0f4f1f5b7d22"
    >>> image = {"id": own, "direct_base_image_ref": f"{base} {own}"}
    >>> bases_of(image_record.Image.from_record(image)) == [base]
    True
    """
    direct, _, of_image = image.text(DIRECT_BASE).partition(" ")
    # With another image's ID the property is a copy.
    texts = [direct if of_image == image.id else "", image.text(deduplication.BASE_IMAGE)]
    found: dict[ids.ImageId, None] = {}
    for text in texts:
        with contextlib.suppress(ValueError):
            found[ids.parse_image_id(text)] = None
    return [base for base in found if base != image.id]
