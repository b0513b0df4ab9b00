# SPDX-License-Identifier: Apache-2.0
"""Finds the backing image that an image's properties name, with its chunk map.

Tenants can write these properties: Glance must say that the owner may read the backing image.
"""

import contextlib
import logging
import pathlib
import tempfile
from collections.abc import Iterator

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.image import lineage
from acstor_glance import mapped_file
from acstor_glance.client import glance_client
from acstor_glance.client import stored_bytes

LOG = logging.getLogger(__name__)


def find_backing_image(
    images: glance_client.GlanceClient, image: image_record.Image
) -> image_record.Image | None:
    """Return the nearest backing image that exists and that the owner may read."""
    for base_id in lineage.bases_of(image):
        base = images.read_or_none(base_id)
        if base is None or image_record.why_not_served(base):
            continue
        if deduplication.may_read(image.owner, base) or deduplication.may_read(
            image.owner, base, _members(images, base)
        ):
            return base
        LOG.info("image %s: shares nothing with image %s, which its owner may not read",
                 image.id, base_id)  # fmt: skip
    return None


@contextlib.contextmanager
def chunk_map_of(
    images: glance_client.GlanceClient, image: image_record.Image | None
) -> Iterator[chunk_map.ChunkMap | None]:
    """Yield the chunk map of an image, valid inside the block; None: it has none."""
    artefact = images.artefact_of(image, artefacts.Kind.CHUNK_MAP) if image is not None else None
    if image is None or artefact is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(open_chunk_map(images, image, artefact))
        except (errors.ChunkMapFormatError, errors.Unusable) as exc:
            LOG.warning("image %s: no deduplication with it: %s", image.id, exc)
            found = None
        yield found


@contextlib.contextmanager
def open_chunk_map(
    images: glance_client.GlanceClient,
    image: image_record.Image,
    artefact: image_record.Image,  # the chunk map in Glance
    folder: pathlib.Path | None = None,  # of a temporary copy; None: the system's
) -> Iterator[chunk_map.ChunkMap]:
    """Yield an image's chunk map, valid inside the block, or raise ChunkMapFormatError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        with images.open_image_data(artefact.id) as pieces:
            file.writelines(pieces)
        with mapped_file.map_file(file) as view:
            stored = stored_bytes.find_stored_bytes(images, image)
            yield artefacts.parse_chunk_map(stored.image, view)


def _members(images: glance_client.GlanceClient, image: image_record.Image) -> list[str]:
    is_shared = image.visibility == "shared"
    return images.list_members(image.id) if is_shared else []
