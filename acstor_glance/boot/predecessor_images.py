# SPDX-License-Identifier: Apache-2.0
"""Finds an image's predecessors, and derives its boot trace from theirs.

A predecessor is an older image of the same project with the same name, with the same distribution,
version and machine properties, or from which the image is a snapshot.
"""

import itertools
import operator
from collections.abc import Iterator

from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import glance_client

FAMILY_PROPERTIES = ("os_distro", "os_version")  # both must be set and equal
MACHINE_PROPERTIES = ("os_type", "hw_architecture", "architecture", "hw_firmware_type")
"""Equal, or missing in both, if distribution and version make the family."""
MAX_LISTED = 200
MAX_PREDECESSORS = 10
MIN_CHUNKS = 16  # fewer chunks in common are no boot


def find_predecessors(
    images: glance_client.GlanceClient, image: image_record.Image
) -> list[image_record.Image]:
    """Return the predecessors of ``image``, newest first."""
    found = {other.id: other for other in _listed(images, image) if is_predecessor(other, image)}
    newest = sorted(found.values(), key=operator.attrgetter("created_at"), reverse=True)
    return newest[:MAX_PREDECESSORS]


def _listed(
    images: glance_client.GlanceClient, image: image_record.Image
) -> Iterator[image_record.Image]:
    if not image.owner:
        return
    for wanted in ({"name": image.name}, {name: image.text(name) for name in FAMILY_PROPERTIES}):
        if all(wanted.values()):
            found = images.list_images(owner=image.owner, **wanted)
            yield from itertools.islice(found, MAX_LISTED)
    base_id = image.text(deduplication.BASE_IMAGE)
    base = images.read_or_none(base_id) if base_id else None
    if base is not None:
        yield base


def is_predecessor(other: image_record.Image, image: image_record.Image) -> bool:
    """Return whether ``other`` is a predecessor of ``image``."""
    if not image.owner or other.owner != image.owner or other.created_at >= image.created_at:
        return False
    is_base = image.text(deduplication.BASE_IMAGE) == other.id
    is_family = all(map(image.text, FAMILY_PROPERTIES)) and all(
        image.text(name) == other.text(name) for name in (*FAMILY_PROPERTIES, *MACHINE_PROPERTIES)
    )
    is_namesake = bool(image.name) and image.name == other.name
    return is_base or is_family or is_namesake


def inherit_trace(
    trace: boot_image.ProfiledTrace,
    predecessor_map: chunk_map.ChunkMap,
    image_map: chunk_map.ChunkMap,
) -> boot_image.ProfiledTrace:
    """Return the chunks with the data of a predecessor's trace; empty if too few."""
    parts = trace.parts()
    wanted = {
        predecessor_map.cid_of(chunk_no)
        for chunk_no in itertools.chain(*parts.values())
        if not predecessor_map.is_zero(chunk_no)
    }
    places: dict[ids.Cid, int] = {}
    for chunk_no in image_map.iter_data():
        cid = image_map.cid_of(chunk_no)
        if cid in wanted:
            places.setdefault(cid, chunk_no)
    found = {
        key: tuple(
            dict.fromkeys(
                places[cid] for cid in map(predecessor_map.cid_of, chunk_nos) if cid in places
            )
        )
        for key, chunk_nos in parts.items()
    }
    common = found.pop(ids.NO_PROFILE)
    if len(common) < MIN_CHUNKS:
        return boot_image.ProfiledTrace(())
    return boot_image.ProfiledTrace(common, {key: part for key, part in found.items() if part})
