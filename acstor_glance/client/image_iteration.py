# SPDX-License-Identifier: Apache-2.0
"""Iterates over all images with their chunk maps: merges two sorted lists, page by page."""

from collections.abc import Iterator
from typing import NamedTuple

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_glance.client import glance_client

CHUNK_MAP = artefacts.Kind.CHUNK_MAP


class MappedImage(NamedTuple):
    """An image, and the record its pointer names, which may be another image's."""

    image: image_record.Image
    chunk_map: image_record.Image | None


def iterate_images(images: glance_client.GlanceClient) -> Iterator[MappedImage]:
    """Yield every image except artefacts."""
    project_id = images.project_id
    maps = _Maps(images)
    for image in images.list_images(sorted_by="id"):
        if not artefacts.is_excluded(image, project_id):
            yield MappedImage(image, maps.linked_map(image))


class _Maps:
    def __init__(self, images: glance_client.GlanceClient) -> None:
        self._images = images
        found = images.list_artefacts(kind=CHUNK_MAP.value, sorted_by="name")
        self._left = (record for record in found if _is_in_order(record))
        self._next = next(self._left, None)

    def linked_map(self, image: image_record.Image) -> image_record.Image | None:
        """Return the record that an image points to, from the list if it is there."""
        pointer = artefacts.pointer_of(image, CHUNK_MAP)
        found = None
        while self._next is not None and _image_of(self._next) <= image.id:
            if self._next.id == pointer:
                found = self._next
            self._next = next(self._left, None)
        return found or (self._images.read_or_none(pointer) if pointer else None)


def _image_of(artefact: image_record.Image) -> str:
    return artefact.text(artefacts.OF_IMAGE)


def _is_in_order(artefact: image_record.Image) -> bool:
    return artefact.name == artefacts.name_of(CHUNK_MAP, _image_of(artefact))
