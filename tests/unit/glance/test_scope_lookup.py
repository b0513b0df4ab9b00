# SPDX-License-Identifier: Apache-2.0
"""Keyed CIDs of private images reveal nothing to other projects."""

import functools
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.client import scope_lookup
from acstor_glance.controller import artefact_verifier
from acstor_glance.prepare import image_preparation
from acstor_glance.prepare import image_preparer
from acstor_glance.prepare import plan
from tests.fakes import glance_records
from tests.fakes import memory_images

CHUNK = geometry.MIN_CHUNK_BYTES
data = functools.partial(memory_images.chunk_data, CHUNK)
A, B = "a" * 32, "b" * 32


@pytest.fixture
def preparer(
    images: memory_images.MemoryImages, conf: cfg.ConfigOpts
) -> image_preparer.ImagePreparer:
    return image_preparer.ImagePreparer(
        images, conf, limits=image_preparation.PreparationLimits(CHUNK)
    )


def prepared(
    preparer: image_preparer.ImagePreparer, raw: bytes, is_forced: bool = False, **record: Any
) -> chunk_map.ChunkMap:
    """Put an image into Glance, prepare it, and return its chunk map from Glance."""
    images = preparer._images
    assert isinstance(images, memory_images.MemoryImages)
    return again(preparer, images.add(raw, **record), is_forced)


def again(
    preparer: image_preparer.ImagePreparer, image: dict[str, Any], is_forced: bool = True
) -> chunk_map.ChunkMap:
    images = preparer._images
    assert isinstance(images, memory_images.MemoryImages)
    outcome = preparer.prepare_image(ids.parse_image_id(image["id"]), is_forced=is_forced)
    assert outcome is image_preparer.PreparationOutcome.PREPARED
    record = images.get_image(image["id"])
    pointer = artefacts.pointer_of(record, artefacts.Kind.CHUNK_MAP)
    assert pointer is not None
    return artefacts.parse_chunk_map(record, images.data[pointer])


def fault_of(images: memory_images.MemoryImages, image: dict[str, Any]) -> str:
    found = images.get_image(image["id"])
    return artefact_verifier.verify_image(images, found, is_thorough=True).fault


def names(found: chunk_map.ChunkMap) -> list[ids.Cid]:
    return [found.cid_of(chunk_no) for chunk_no in range(len(found))]


def test_two_projects_name_the_same_bytes_differently(
    preparer: image_preparer.ImagePreparer,
) -> None:
    first = prepared(preparer, data(1, 2), owner=A)
    second = prepared(preparer, data(1, 2), owner=B)
    third = prepared(preparer, data(2, 1), owner=A)
    assert not set(names(first)) & set(names(second))
    assert set(names(first)) == set(names(third))  # a project deduplicates with itself


@pytest.mark.parametrize("visibility", ["public", "community"])
def test_images_readable_by_all_deduplicate_with_all(
    preparer: image_preparer.ImagePreparer, visibility: str
) -> None:
    found = prepared(preparer, data(1, 2), owner=A, visibility=visibility)
    assert names(found) == [ids.cid_of(data(1)), ids.cid_of(data(2))]
    assert found.scope_keys == ()


def test_scope_cloud_gives_private_images_plain_cids(
    images: memory_images.MemoryImages, conf: cfg.ConfigOpts
) -> None:
    conf.set_override("dedup_scope", "cloud", "acstor_glance")
    preparer = image_preparer.ImagePreparer(
        images, conf, limits=image_preparation.PreparationLimits(CHUNK)
    )
    found = prepared(preparer, data(1), owner=A)
    assert names(found) == [ids.cid_of(data(1))]
    assert not list(images.list_artefacts(kind=artefacts.SCOPE_SECRET))  # no secret is needed


def test_snapshots_of_two_projects_deduplicate_with_their_public_base(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    base = images.add(data(1, 2, 3), owner=A, visibility="public")
    base_names = names(again(preparer, base, is_forced=False))
    for owner in (A, B):
        found = prepared(preparer, data(1, 9, 3), owner=owner, base_image_ref=base["id"])
        assert names(found)[::2] == base_names[::2] and ids.is_keyed(found.cid_of(1))


def test_snapshot_of_a_shared_image_keeps_its_cids_only_for_members(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    base = images.add(data(1, 2), owner=A, visibility="shared")
    base_names = names(again(preparer, base, is_forced=False))
    stranger = prepared(preparer, data(1, 2), owner=B, base_image_ref=base["id"])
    assert not set(names(stranger)) & set(base_names)
    images.shared_with[base["id"]] = [B]
    member = prepared(preparer, data(1, 7), owner=B, base_image_ref=base["id"])
    assert member.cid_of(0) == base_names[0] and len(member.scope_keys) == 2


@pytest.mark.parametrize("visibility", ["private", "shared"])
def test_foreign_private_base_gives_no_common_cids(
    preparer: image_preparer.ImagePreparer,
    images: memory_images.MemoryImages,
    visibility: str,
) -> None:
    secret = images.add(data(1, 2), owner=A, visibility=visibility)
    secret_map = again(preparer, secret, is_forced=False)
    guess = prepared(preparer, data(1, 2), owner=B, base_image_ref=secret["id"])
    assert not set(names(guess)) & set(names(secret_map))
    assert not set(guess.scope_keys) & set(secret_map.scope_keys)


@pytest.mark.parametrize("ref", ["", "no id", "00000000-0000-4000-8000-000000000001", 7, None])
def test_invalid_base_reference_is_ignored(
    preparer: image_preparer.ImagePreparer, ref: object
) -> None:
    assert prepared(preparer, data(1), owner=A, base_image_ref=ref).scope_keys


@pytest.mark.expect_log("no deduplication with it: .* checksum")
def test_base_without_a_usable_chunk_map_gives_no_common_cids(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    base = images.add(data(1), owner=A, visibility="public")
    assert ids.is_keyed(prepared(preparer, data(1), owner=A, base_image_ref=base["id"]).cid_of(0))
    again(preparer, base)
    pointer = images.get_image(base["id"]).text("acstor_chunk_map")
    images.data[pointer] = images.data[pointer][:-1] + b"x"
    assert ids.is_keyed(prepared(preparer, data(1), owner=A, base_image_ref=base["id"]).cid_of(0))


def test_image_made_public_gets_plain_cids_only_on_a_forced_preparation(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    image = images.add(data(1), owner=A)
    again(preparer, image, is_forced=False)
    image["visibility"] = "public"
    outcome = preparer.prepare_image(ids.parse_image_id(image["id"]))
    assert outcome is image_preparer.PreparationOutcome.NOTHING  # its CIDs stay until then
    public = images.get_image(image["id"])
    boot = images.add(b"frames", **artefacts.new_artefact(
        public, artefacts.Kind.BOOT_IMAGE, images.project_id, boot_image.VERSION))  # fmt: skip
    image[artefacts.Kind.BOOT_IMAGE.pointer] = boot["id"]
    assert names(again(preparer, image)) == [ids.cid_of(data(1))]
    assert boot["id"] not in images.records  # its frames had CIDs of the project's scope
    assert artefacts.Kind.BOOT_IMAGE.pointer not in image


def test_stored_map_is_verified_in_its_original_scope(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    base = images.add(data(1, 2), owner=A, visibility="public")
    again(preparer, base)
    image = images.add(data(1, 9), owner=A, base_image_ref=base["id"])
    again(preparer, image)
    images.records.pop(base["id"])
    image["visibility"] = "public"
    assert fault_of(images, image) == ""
    images.data[image["id"]] = data(1, 8)
    assert "sha512" in fault_of(images, image)


# The secret


def secrets_of(images: memory_images.MemoryImages) -> list[dict[str, Any]]:
    found = images.list_artefacts(kind=artefacts.SCOPE_SECRET)
    return [images.records[secret.id] for secret in found]


def test_secret_is_made_once_and_hidden(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    prepared(preparer, data(1), owner=A)
    prepared(preparer, data(2), owner=B)
    (secret,) = secrets_of(images)
    assert (secret["visibility"], secret["os_hidden"]) == ("private", True)
    assert secret["owner"] == glance_records.SERVICE_PROJECT
    assert images.data[secret["id"]].hex() not in repr(secret)  # notifications show the record


def test_older_of_two_active_secrets_is_used(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    first = prepared(preparer, data(1), owner=A)
    for status, made in (("active", "2030"), ("queued", "2001")):
        record = artefacts.new_secret(images.project_id)
        images.add(b"x" * 32, **{**record, "status": status, "created_at": made})
    assert prepared(preparer, data(1), owner=A).scope_keys == first.scope_keys


def test_lost_secret_ends_only_deduplication_with_older_images(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    image = images.add(data(1), owner=A)
    first = again(preparer, image, is_forced=False)
    images.delete_artefact(secrets_of(images)[0]["id"])
    second = prepared(preparer, data(1), owner=A)
    assert second.scope_keys != first.scope_keys
    assert fault_of(images, image) == ""


def test_damaged_secret_is_named_and_nothing_is_published(
    images: memory_images.MemoryImages, conf: cfg.ConfigOpts
) -> None:
    record = images.add(b"s" * 32, **artefacts.new_secret(images.project_id))
    for damaged in (b"t" * 32, b"", b"s" * 31):
        images.data[record["id"]] = damaged
        with pytest.raises(errors.Unusable, match=f"{record['id']}.* damaged.* Delete it"):
            image = images.get_image(images.add(data(1), owner=A)["id"])
            with scope_lookup.ScopeLookup(images, conf).naming_of_image(image):
                pass


def test_secret_made_by_a_tenant_is_ignored(
    preparer: image_preparer.ImagePreparer, images: memory_images.MemoryImages
) -> None:
    forged = images.add(b"known to B" + bytes(22), **artefacts.new_secret(B))
    forged["created_at"] = "2001"
    prepared(preparer, data(1), owner=A)
    assert [s["id"] for s in secrets_of(images)] != [forged["id"]]


def test_secret_is_no_orphan() -> None:
    record = {"id": glance_records.ARTEFACT_ID, **artefacts.new_secret("p")}
    secret = image_record.Image.from_record(record)
    assert plan.why_orphan(secret, None, plan._AT_ONCE, 0) == ""
