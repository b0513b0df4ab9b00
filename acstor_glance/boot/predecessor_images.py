# SPDX-License-Identifier: Apache-2.0
"""Finds an image's predecessors, and derives its boot trace from theirs.

A predecessor is an older image of the same project with the same name, with the same distribution,
version and machine properties, or from which the image is a snapshot. Of its trace, only chunks
that the image also has are used.
"""

import itertools
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common.formats import chunk_map
from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import glance_client

NAME, BASE = "name", deduplication.BASE_IMAGE
FAMILY = ("os_distro", "os_version")
"""Both must be set and equal."""
SAME = ("os_type", "hw_architecture", "architecture", "hw_firmware_type")
"""Equal, or missing in both, if distribution and version make the family."""
MOST_LISTED = 200
MOST_LOOKED_AT = 10
"""Limit of predecessors to look at, newest first."""
LEAST_CHUNKS = 16
"""Fewer chunks in common are no boot."""


def find_predecessors(
    images: glance_client.GlanceClient, image: image_record.Record
) -> list[image_record.Record]:
    """Return the predecessors of ``image``, newest first."""
    found = {other["id"]: other for other in _listed(images, image) if is_predecessor(other, image)}
    return sorted(found.values(), key=_made_at, reverse=True)[:MOST_LOOKED_AT]


def _listed(
    images: glance_client.GlanceClient, image: image_record.Record
) -> Iterator[image_record.Record]:
    owner = image_record.text_of(image, "owner")
    if not owner:
        return
    for names in ((NAME,), FAMILY):
        wanted = {name: image_record.text_of(image, name) for name in names}
        if all(wanted.values()):
            yield from itertools.islice(images.list_images(owner=owner, **wanted), MOST_LISTED)
    base = image_record.text_of(image, BASE)
    record = images.read_or_none(base) if base else None
    if record is not None:
        yield record


def is_predecessor(other: image_record.Record, image: image_record.Record) -> bool:
    """Return whether ``other`` is a predecessor of ``image``."""

    def same(name: str) -> str | None:
        value = image_record.text_of(image, name)
        return value if value == image_record.text_of(other, name) else None

    if not same("owner") or _made_at(other) >= _made_at(image):
        return False
    is_base = image_record.text_of(image, BASE) == other["id"]
    is_family = all(map(same, FAMILY)) and None not in map(same, SAME)
    return is_base or is_family or bool(same(NAME))


def _made_at(image: image_record.Record) -> str:
    return image_record.text_of(image, "created_at")


def inherit_trace(
    trace: Sequence[int], of: chunk_map.ChunkMap, image_map: chunk_map.ChunkMap
) -> tuple[int, ...]:
    """Return the chunks with the same data as a predecessor's trace, in its order.

    :param of: the predecessor's chunk map
    :return: empty if they have fewer than LEAST_CHUNKS in common
    """
    wanted = {of.cid_of(chunk_no) for chunk_no in trace if not of.is_zero(chunk_no)}
    places: dict[ids.Cid, int] = {}
    for chunk_no in range(len(image_map)):
        cid = image_map.cid_of(chunk_no)
        if cid in wanted:
            places.setdefault(cid, chunk_no)
    found = dict.fromkeys(places.get(of.cid_of(chunk_no), -1) for chunk_no in trace)
    found.pop(-1, None)
    return tuple(found) if len(found) >= LEAST_CHUNKS else ()
