# SPDX-License-Identifier: Apache-2.0
"""From which image another one was made, as properties of it say.

Nova names the first image of a line of snapshots (:data:`deduplication.BASE_IMAGE`), and copies
every property of an image to the snapshots of its servers.  So the host that sends changes names
the image that the disk lies on, and the snapshot that this is true of.

A tenant may write either, so it is a hint.  Who uses it asks first whether the owner
of the image may read the other one (:func:`deduplication.may_read`).
"""

import contextlib

from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids

DIRECT_BASE = "direct_base_image_ref"
"""Not one of acstor's own properties, which Glance lets no tenant set: it is set with a tenant's
token."""
MOST_GENERATIONS = 16
"""So many images before an image are looked up; a line of more, or a ring, ends there."""


def direct_base(base: ids.ImageId, image_id: str) -> dict[str, str]:
    """Return the property of an image that was made of ``base`` and of changes."""
    return {DIRECT_BASE: f"{base} {image_id}"}


def bases_of(image: image_record.Record) -> list[ids.ImageId]:
    """Return the ids of images that this one says it was made from, the nearest first.

    >>> own, base = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11", "2b1d7c7e-9d0c-4f5e-8a56-0f4f1f5b7d22"
    >>> bases_of({"id": own, "direct_base_image_ref": f"{base} {own}"}) == [base]
    True
    """
    own_id = image_record.text_of(image, "id")
    direct, _, of_image = image_record.text_of(image, DIRECT_BASE).partition(" ")
    # That of another image was copied from the image that this one was made from.
    said = [
        direct if of_image == own_id else "",
        image_record.text_of(image, deduplication.BASE_IMAGE),
    ]
    found: dict[ids.ImageId, None] = {}
    for text in said:
        with contextlib.suppress(ValueError):
            found[ids.parse_image_id(text)] = None
    return [base for base in found if base != own_id]
