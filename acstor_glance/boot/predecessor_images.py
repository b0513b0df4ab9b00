# SPDX-License-Identifier: Apache-2.0
"""Which images came before another one of its family, and what their boots tell of it.

Glance knows no families.  An image came before another one if the same project owns both, it is
older, and the two have the same name, or the same distribution, version and way to boot, or the
younger one is a snapshot of it (FAMILY, NAME and BASE are what says so).  Of a predecessor only
numbers of chunks are used, and of those only the ones whose contents the younger image has as
well.
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
"""Both have to be there, and the same."""
SAME = ("os_type", "hw_architecture", "architecture", "hw_firmware_type")
"""The same too, where the family is told by its distribution: or missing in both."""
MOST_LISTED = 200
MOST_LOOKED_AT = 10
"""Predecessors that are looked at, the youngest first: one of them has a boot image, or none."""
LEAST_CHUNKS = 16
"""Fewer chunks in common are no boot: so many a host reads who only looks at an image."""


def find_predecessors(
    images: glance_client.GlanceClient, image: image_record.Record
) -> list[image_record.Record]:
    """Return images that came before ``image``, the youngest first.

    :raises errors.ImageServiceError: Glance does not say
    """
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
    """Say whether an image came before another one of its family."""

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
    """Return where an image has what a boot of its predecessor read, in the order of that boot.

    :param of: the predecessor's chunk map
    :return: chunks of ``image_map``; empty if they have too little in common
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
