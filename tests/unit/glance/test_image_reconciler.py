# SPDX-License-Identifier: Apache-2.0
"""A reconcile pass over all images: its findings, deletions and memory."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_glance.client import glance_client
from acstor_glance.controller import image_reconciler
from acstor_glance.prepare import plan
from tests.fakes import glance_records as records
from tests.fakes import memory_images

Kind = artefacts.Kind
OLD = "2026-01-01T00:00:00Z"
WANTED = plan.DesiredArtefacts({Kind.CHUNK_MAP: chunk_map.VERSION})
MOST_BYTES_OF_IMAGE = 3000


def run(images: glance_client.GlanceClient, *, builds: bool = False) -> image_reconciler.Findings:
    return image_reconciler.ImageReconciler(images, WANTED, builds_boot_images=builds).run()


def add_artefact(
    images: memory_images.MemoryImages, image: dict[str, Any], kind: Kind, **also: str
) -> dict[str, Any]:
    """Give an image an artefact and a pointer to it."""
    record = artefacts.new_artefact(
        images.get_image(image["id"]),
        kind,
        records.SERVICE_PROJECT,
        records.VERSIONS[kind],
        also=also,
    )
    made = images.add(b"artefact", **record)
    image[kind.pointer] = made["id"]
    return made


def add_ready(images: memory_images.MemoryImages, **record: Any) -> dict[str, Any]:
    """Add a prepared image with its boot image."""
    image = images.add(b"image", **record)
    image |= {artefacts.STATE: "ready", artefacts.STATE_OF: image["id"]}
    image[artefacts.BOOT_STATE] = "ready"
    for kind in (Kind.CHUNK_MAP, Kind.BOOT_IMAGE):
        add_artefact(images, image, kind, created_at=OLD)
    return image


def test_complete_images_are_counted_and_left_unchanged(
    images: memory_images.MemoryImages,
) -> None:
    for _ in range(3):
        add_ready(images)
    found = run(images, builds=True)
    assert (found.images, found.artefacts, found.boot_states) == (3, 6, {"ready": 3})
    assert (found.to_prepare, found.to_build, found.deleted) == ({}, {}, [])


def test_work_is_returned_in_the_order_of_glance(images: memory_images.MemoryImages) -> None:
    hidden = images.add(b"1", created_at="2026-09-01T00:00:00Z", os_hidden=True)
    older, younger = (images.add(b"2", created_at=f"2026-0{n}-01T00:00:00Z") for n in (3, 4))
    expected = [younger["id"], older["id"], hidden["id"]]
    assert list(run(images).to_prepare) == expected
    for image in (hidden, older, younger):
        image |= {artefacts.STATE: "ready", artefacts.STATE_OF: image["id"]}
        add_artefact(images, image, Kind.CHUNK_MAP, created_at=OLD)
    found = run(images, builds=True)
    assert (found.to_prepare, list(found.to_build)) == ({}, expected)


@pytest.mark.parametrize(
    "altered",
    [
        {"owner": records.TENANT},
        {"status": "queued"},
        {artefacts.OF_IMAGE: records.IMAGE_ID},
        {artefacts.OS_HASH_VALUE: "00" * 64},
        {artefacts.OS_HASH_ALGO: "sha256"},
        {artefacts.FORMAT: "1"},
        {artefacts.KIND: "boot_image"},
    ],
    ids=lambda altered: next(iter(altered)),
)
def test_image_with_a_foreign_chunk_map_is_prepared_again(
    images: memory_images.MemoryImages, altered: dict[str, str]
) -> None:
    image = add_ready(images)
    assert run(images).to_prepare == {}
    images.records[image[Kind.CHUNK_MAP.pointer]].update(altered)
    assert image["id"] in run(images).to_prepare


def test_image_with_an_inherited_boot_image_is_built(images: memory_images.MemoryImages) -> None:
    image = add_ready(images)
    assert run(images, builds=True).to_build == {}
    images.records[image[Kind.BOOT_IMAGE.pointer]][artefacts.ORIGIN] = "inherited"
    assert run(images, builds=True).to_build == {image["id"]: image["owner"]}


def test_replaced_or_orphaned_artefacts_are_deleted(
    images: memory_images.MemoryImages,
) -> None:
    kept, gone = add_ready(images), add_ready(images)
    before = kept[Kind.CHUNK_MAP.pointer]
    add_artefact(images, kept, Kind.CHUNK_MAP, created_at=OLD)
    of_gone = [gone[kind.pointer] for kind in (Kind.CHUNK_MAP, Kind.BOOT_IMAGE)]
    images.delete_artefact(gone["id"])
    secret = images.add(b"secret", **artefacts.new_secret(records.SERVICE_PROJECT))
    found = run(images)
    assert sorted(found.deleted) == sorted([before, *of_gone])
    assert images.records.keys().isdisjoint(found.deleted)
    assert secret["id"] in images.records and run(images).deleted == []


class Unlisted(memory_images.MemoryImages):
    """Leaves an existing image out of its list."""

    unlisted = ""

    def list_images(self, sorted_by: str = "", **filters: Any) -> Iterator[image_record.Image]:
        return (one for one in super().list_images(sorted_by, **filters) if one.id != self.unlisted)


def test_artefacts_are_deleted_only_after_a_second_check_of_their_image() -> None:
    images = Unlisted()
    images.unlisted = add_ready(images)["id"]
    assert run(images).deleted == []


class Decoded(memory_images.MemoryImages):
    """Returns records that share no objects, like those from a network."""

    def list_images(self, sorted_by: str = "", **filters: Any) -> Iterator[image_record.Image]:
        for image in super().list_images(sorted_by, **filters):
            record = json.loads(json.dumps(self.records[image.id]))
            yield image_record.Image.from_record(record)


def peak_bytes_with(count: int) -> int:
    """Return the additional memory of a pass at its peak."""
    images = Decoded()
    for _ in range(count):
        add_ready(images)
    tracemalloc.start()
    try:
        found = run(images, builds=True)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert (found.images, found.deleted) == (count, [])


def test_memory_of_a_pass_grows_little_with_the_number_of_images() -> None:
    peak_bytes_with(1)  # objects that are made once
    a_few, many = peak_bytes_with(100), peak_bytes_with(300)
    assert (many - a_few) / 200 < MOST_BYTES_OF_IMAGE
