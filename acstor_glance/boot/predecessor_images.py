# SPDX-License-Identifier: Apache-2.0
"""Finds an image's predecessors, and derives its boot trace from theirs.

A predecessor is an older image of the same project with the same name, with the same distribution,
version and machine properties, or from which the image is a snapshot.
"""

import itertools
import operator
from collections.abc import Iterator
from collections.abc import Sequence

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
    trace: Sequence[int], predecessor_map: chunk_map.ChunkMap, image_map: chunk_map.ChunkMap
) -> tuple[int, ...]:
    """Return the chunks with the data of a predecessor's trace; empty if too few."""
    wanted = {
        predecessor_map.cid_of(chunk_no)
        for chunk_no in trace
        if not predecessor_map.is_zero(chunk_no)
    }
    places: dict[ids.Cid, int] = {}
    for chunk_no in image_map.iter_data():
        cid = image_map.cid_of(chunk_no)
        if cid in wanted:
            places.setdefault(cid, chunk_no)
    found = dict.fromkeys(places.get(predecessor_map.cid_of(chunk_no), -1) for chunk_no in trace)
    found.pop(-1, None)
    return tuple(found) if len(found) >= MIN_CHUNKS else ()
