# SPDX-License-Identifier: Apache-2.0
"""What agents read of an image: its own bytes, or of another format what it was converted to.

Who reads an image's bytes to compare them with its chunk map asks here which.
"""

from typing import NamedTuple

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_glance.client import glance_client

CONVERTED = artefacts.Kind.CONVERTED


class StoredBytes(NamedTuple):
    """What is read.

    :param record: the image's, with the format and size of what is read
    :param glance_id: what Glance has these bytes under
    :param os_hash: theirs, as Glance knows it
    """

    record: image_record.Record
    glance_id: str
    os_hash: chunk_map.OsHash

    @property
    def own_record(self) -> image_record.Record:
        """What Glance says of these bytes: their id and their size, and no more that is right."""
        return {**self.record, "id": self.glance_id}

    @property
    def other_hash(self) -> chunk_map.OsHash | None:
        """Their hash, if it is not the image's; else None."""
        return None if self.glance_id == self.record["id"] else self.os_hash


def find_stored_bytes(
    images: glance_client.GlanceClient, image: image_record.Record
) -> StoredBytes:
    """Return what is read of an image.

    :raises errors.Unusable: it was not converted
    """
    if not image_record.is_convertible(image):
        return StoredBytes(image, str(image["id"]), image_record.os_hash_of(image))
    found = images.artefact_of(image, CONVERTED)
    if found is None:
        raise errors.Unusable(f"image {image['id']}", "nothing was converted", "Prepare it")
    os_hash = image_record.os_hash_of(found)
    return StoredBytes(artefacts.as_read(image, found), str(found["id"]), os_hash)
