# SPDX-License-Identifier: Apache-2.0
"""Predecessors of an image, and its first boot image from the boots of its predecessor."""

import functools
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import build_modes
from acstor_glance.boot import predecessor_images
from acstor_glance.prepare import image_preparer
from acstor_glance.prepare import plan
from tests.fakes import glance_records as records
from tests.fakes import memory_images

CHUNK = 65536
chunks = functools.partial(memory_images.chunk_data, CHUNK)
BOOT_IMAGE = artefacts.Kind.BOOT_IMAGE
OLD, NEW = {"created_at": "2026-01-01T00:00:00Z"}, {"created_at": "2026-02-01T00:00:00Z"}
DEBIAN = {"os_distro": "debian", "os_version": "13"}
BOOTED = tuple(range(30, 2, -1))


@pytest.fixture
def made(
    images: memory_images.MemoryImages, conf: cfg.ConfigOpts
) -> boot_image_maker.BootImageMaker:
    return boot_image_maker.BootImageMaker(
        images, conf, build_modes.BuildModes(builds=False, records=True)
    )


@pytest.fixture
def prepare(images: memory_images.MemoryImages, conf: cfg.ConfigOpts) -> Any:
    def one(data: bytes, **record: Any) -> dict[str, Any]:
        image = images.add(data, **record)
        image_preparer.ImagePreparer(images, conf).prepare_image(ids.parse_image_id(image["id"]))
        assert image["acstor_boot_state"] == "waiting"
        return image

    return one


def boot(made: boot_image_maker.BootImageMaker, image: dict[str, Any], *trace: int) -> bool:
    """Let a host record a boot, and make a boot image from it."""
    size = image["size"]
    reported = trace_message.BootTrace(
        host="h1", image_id=image["id"], size_bytes=size, chunk_bytes=CHUNK, trace=trace
    )
    return made.make_boot_image(made.add_trace(reported))


def trace_of(images: memory_images.MemoryImages, image: dict[str, Any]) -> list[int]:
    """Return the trace of an image's boot image, checked against its chunk map."""
    boot_image, its_map = (images.data[image[kind.pointer]] for kind in (BOOT_IMAGE, CHUNK_MAP))
    found = chunk_map.ChunkMap.parse(its_map, "the map")
    return list(
        boot_frames.check_boot_image([boot_image], "the boot image", found.scope_keys).trace
    )


CHUNK_MAP = artefacts.Kind.CHUNK_MAP


def origin(images: memory_images.MemoryImages, image: dict[str, Any]) -> str:
    return str(images.records[image[BOOT_IMAGE.pointer]]["acstor_origin"])


@pytest.mark.parametrize(
    ("older", "younger", "is_one"),
    [
        ({}, {}, True),  # the same name
        ({"name": "a"}, {"name": "b"}, False),
        ({"name": "a", **DEBIAN}, {"name": "b", **DEBIAN}, True),
        ({"name": "a", **DEBIAN}, {"name": "b", **DEBIAN, "os_version": "14"}, False),
        ({"name": "a", "os_distro": "debian"}, {"name": "b", "os_distro": "debian"}, False),
        ({"name": "a", **DEBIAN}, {"name": "b", **DEBIAN, "hw_firmware_type": "uefi"}, False),
        ({"name": ""}, {"name": ""}, False),
        ({"name": "a"}, {"name": "b", "base_image_ref": records.IMAGE_ID}, True),
        ({"owner": "b" * 32}, {}, False),  # another project's boots stay secret
        (NEW, {}, False),  # it is younger, or the image itself
    ],
)
def test_predecessor_is_an_older_image_of_the_same_family(older, younger, is_one):
    other = records.image(**{**OLD, **older})
    image = records.image(**{**NEW, "id": records.ARTEFACT_ID, **younger})
    assert predecessor_images.is_predecessor(other, image) is is_one


def test_new_version_inherits_the_boot_image_for_equal_chunks(images, made, prepare):
    first = prepare(chunks(*range(40)), **OLD)
    assert boot(made, first, *BOOTED)
    moved = [*range(100, 105), *range(35)]  # five chunks more in front, the last ones gone
    moved[5 + 20] = 999  # and a new one
    second = prepare(chunks(*moved), **NEW)
    assert made.make_boot_image(ids.parse_image_id(second["id"]))
    assert trace_of(images, second) == [n + 5 for n in BOOTED if n != 20]
    assert origin(images, second) == "inherited"
    assert second["acstor_boot_state"] == "waiting"  # for its own
    image = images.get_image(second["id"])
    boot_image = images.artefact_of(image, BOOT_IMAGE)
    assert (
        plan.next_boot_image_build(image, {boot_image.id: boot_image}.get, images.project_id)
        is not None
    )
    assert not made.make_boot_image(ids.parse_image_id(second["id"]))  # once is enough
    assert boot(made, second, *(n + 5 for n in BOOTED))
    assert (origin(images, second), second["acstor_boot_state"]) == ("recorded", "ready")
    assert trace_of(images, second) == [n + 5 for n in BOOTED]
    found = images.artefact_of(images.get_image(second["id"]), BOOT_IMAGE)
    assert artefacts.revision_of(found) == 2  # so agents take it


def test_own_boot_image_replaces_an_inherited_one(images, made, prepare):
    assert boot(made, prepare(chunks(*range(40)), **OLD), *BOOTED)
    second = prepare(chunks(*range(41)), **NEW)
    assert made.make_boot_image(ids.parse_image_id(second["id"]))
    assert boot(made, second, *BOOTED)
    assert origin(images, second) == "recorded"


def test_unbootable_image_keeps_its_inherited_boot_image(images, made, conf, prepare):
    assert boot(made, prepare(chunks(*range(40)), **OLD), *BOOTED)
    arm = prepare(chunks(*range(41)), name="debian", hw_architecture="aarch64", **NEW)
    both = boot_image_maker.BootImageMaker(
        images, conf, build_modes.BuildModes(builds=True, records=True)
    )
    assert both.make_boot_image(ids.parse_image_id(arm["id"]))  # so it is announced to hosts
    assert (origin(images, arm), arm["acstor_boot_state"]) == ("inherited", "unbootable")
    assert not both.make_boot_image(ids.parse_image_id(arm["id"]))


def test_images_with_little_in_common_inherit_nothing(images, made, prepare):
    assert boot(made, prepare(chunks(*range(40)), **OLD), *BOOTED)
    image = prepare(chunks(*range(15), *range(100, 125)), **NEW)
    assert not made.make_boot_image(ids.parse_image_id(image["id"]))
    assert BOOT_IMAGE.pointer not in image


def test_images_of_other_projects_inherit_nothing(images, made, prepare):
    public = prepare(chunks(*range(40)), visibility="public", owner="a" * 32, **OLD)
    assert boot(made, public, *BOOTED)
    other = prepare(chunks(*range(40)), visibility="public", owner="b" * 32, **NEW)
    assert not made.make_boot_image(ids.parse_image_id(other["id"]))


def test_youngest_predecessor_with_a_boot_image_is_used(images, made, prepare):
    first = prepare(chunks(*range(40)), created_at="2025-01-01T00:00:00Z")
    assert boot(made, first, *BOOTED)
    second = prepare(chunks(*range(50, 90)), created_at="2025-06-01T00:00:00Z")
    assert boot(made, second, *reversed(BOOTED))
    prepare(chunks(*range(40)), created_at="2025-07-01T00:00:00Z")  # has none
    image = prepare(chunks(*range(40), *range(50, 90)), **NEW)
    assert made.make_boot_image(ids.parse_image_id(image["id"]))
    assert trace_of(images, image) == [n + 40 for n in reversed(BOOTED)]


@pytest.mark.parametrize("kind", [artefacts.Kind.CHUNK_MAP, BOOT_IMAGE])
def test_damaged_artefact_of_the_predecessor_is_ignored(images, made, prepare, kind):
    first = prepare(chunks(*range(40)), **OLD)
    assert boot(made, first, *BOOTED)
    pointer = first[kind.pointer]
    images.data[pointer] = b"x" * len(images.data[pointer])
    image = prepare(chunks(*range(40)), **NEW)
    assert not made.make_boot_image(ids.parse_image_id(image["id"]))
    assert image["acstor_state"] == "ready" and BOOT_IMAGE.pointer not in image


def test_outage_of_glance_is_reported_and_the_work_retried(images, made, prepare, monkeypatch):
    assert boot(made, prepare(chunks(*range(40)), **OLD), *BOOTED)
    image = prepare(chunks(*range(40)), **NEW)

    def away(**_filters: Any) -> Any:
        raise errors.ImageServiceUnreachable("list of images", "it is away")

    monkeypatch.setattr(images, "list_images", away)
    with pytest.raises(errors.ImageServiceUnreachable):
        made.make_boot_image(ids.parse_image_id(image["id"]))
    monkeypatch.undo()
    assert made.make_boot_image(ids.parse_image_id(image["id"]))
    assert origin(images, image) == "inherited"
