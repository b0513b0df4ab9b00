# SPDX-License-Identifier: Apache-2.0
"""Finds the bytes that agents read of an image: its own, or its conversion's."""

import dataclasses
from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import glance_client

CONVERTED = artefacts.Kind.CONVERTED


class StoredBytes(NamedTuple):
    """The bytes that agents read of an image."""

    image: image_record.Image  # with the format and the size of these bytes
    glance_id: ids.ImageId  # the Glance image that holds them
    os_hash: chunk_map.OsHash

    @property
    def own_image(self) -> image_record.Image:
        """``image`` with the ID of the stored bytes; only ID and size are valid."""
        return dataclasses.replace(self.image, id=self.glance_id)

    @property
    def other_hash(self) -> chunk_map.OsHash | None:
        """The hash of the bytes if they are a conversion's, else None."""
        return None if self.glance_id == self.image.id else self.os_hash


def find_stored_bytes(images: glance_client.GlanceClient, image: image_record.Image) -> StoredBytes:
    """Return the bytes that agents read; Unusable if the conversion is missing."""
    if not image.is_convertible:
        return StoredBytes(image, image.id, image.os_hash)
    found = images.artefact_of(image, CONVERTED)
    if found is None:
        raise errors.Unusable(f"image {image.id}", "it has no converted copy", "Prepare it")
    return StoredBytes(artefacts.as_read(image, found), found.id, found.os_hash)
