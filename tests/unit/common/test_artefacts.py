# SPDX-License-Identifier: Apache-2.0
"""Artefacts are valid only if the service project made them for the same image bytes."""

import pytest

from acstor_common import errors
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.fakes import glance_records as records

OTHER_ID = "0c9e3f7a-1111-4222-8333-444455556666"
CHUNK_MAP = artefacts.Kind.CHUNK_MAP
VERSION = chunk_map.VERSION


def why(
    image: image_record.Image,
    artefact: image_record.Image,
    kind: artefacts.Kind = CHUNK_MAP,
    version: int = chunk_map.VERSION,
) -> str:
    return artefacts.why_foreign(image, artefact, kind, records.SERVICE_PROJECT, version)


def test_artefact_made_for_an_image_belongs_to_it() -> None:
    image = records.image()
    assert why(image, records.artefact(image)) == ""
    boot = records.artefact(image, artefacts.Kind.BOOT_IMAGE)
    assert why(image, boot, artefacts.Kind.BOOT_IMAGE, boot_image.VERSION) == ""


def test_artefact_is_hidden_private_and_of_the_service_project() -> None:
    also = {artefacts.SCOPE: "project", artefacts.ORIGIN: "built"}
    made = artefacts.new_artefact(records.image(), CHUNK_MAP, records.SERVICE_PROJECT, 2, also=also)
    assert (made["os_hidden"], made["visibility"]) == (True, "private")
    assert made["owner"] == records.SERVICE_PROJECT
    assert (made["disk_format"], made["container_format"]) == ("raw", "bare")
    names = {name for name in made if name.startswith(artefacts.PREFIX)}
    assert names == set(artefacts.ARTEFACT_PROPERTIES)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"owner": records.TENANT}, "does not belong to acstor's service project"),
        ({"owner": None}, "does not belong to acstor's service project"),
        ({"acstor_kind": "boot_image"}, "it is a boot_image, not a chunk_map"),
        ({"acstor_image_id": OTHER_ID}, f"it is for image {OTHER_ID}"),
        ({"acstor_os_hash_value": "00" * 64}, "for other bytes"),
        ({"acstor_os_hash_algo": "sha256"}, "for other bytes"),
        ({"acstor_os_hash_value": "no digits"}, "for other bytes"),
        ({"acstor_format": "1"}, "format version 1 is not known"),
        ({"acstor_format": None}, "format version unknown is not known"),
        ({"status": "queued"}, "its status is queued"),
    ],
)
def test_altered_artefact_is_foreign(changed: dict, said: str) -> None:
    image = records.image()
    assert said in why(image, records.artefact(image, **changed))


def test_image_without_a_kind_is_no_artefact() -> None:
    image = records.image()
    plain = records.artefact_record(image)
    del plain["acstor_kind"]
    assert "does not belong to acstor's service project" in why(
        image, image_record.Image.from_record(plain)
    )


def test_pointer_copied_onto_a_snapshot_has_no_effect() -> None:
    image = records.image()
    snapshot = records.image(id=OTHER_ID, acstor_chunk_map=records.ARTEFACT_ID)
    assert artefacts.pointer_of(snapshot, CHUNK_MAP) == records.ARTEFACT_ID
    assert why(snapshot, records.artefact(image)) == f"it is for image {records.IMAGE_ID}"


def test_artefact_forged_by_a_tenant_has_no_effect() -> None:
    image = records.image()
    forged = records.artefact(image, owner=records.TENANT)
    with pytest.raises(errors.ForeignArtefact, match="is ignored: it does not belong to acstor's"):
        artefacts.check_belongs(
            image, forged, CHUNK_MAP, records.SERVICE_PROJECT, chunk_map.VERSION
        )
    artefacts.check_belongs(
        image, records.artefact(image), CHUNK_MAP, records.SERVICE_PROJECT, chunk_map.VERSION
    )


def test_empty_project_owns_no_artefacts() -> None:
    artefact = records.artefact(records.image(), owner="")
    assert not artefacts.is_artefact(artefact, "")


def test_image_without_a_hash_has_no_artefacts() -> None:
    image = records.image(os_hash_algo=None, os_hash_value=None)
    with pytest.raises(ValueError, match="no hash in Glance"):
        artefacts.new_artefact(image, CHUNK_MAP, records.SERVICE_PROJECT, VERSION)
    no_hash = {artefacts.OS_HASH_ALGO: "", artefacts.OS_HASH_VALUE: ""}
    bound_to_nothing = records.artefact(records.image(), **no_hash)
    assert "for other bytes" in why(image, bound_to_nothing)


@pytest.mark.parametrize("text", ["", "no id", None, 7, "../../etc/passwd"])
def test_invalid_pointer_is_ignored(text: object) -> None:
    assert artefacts.pointer_of(records.image(acstor_chunk_map=text), CHUNK_MAP) is None


def test_state_copied_onto_a_snapshot_is_ignored() -> None:
    image_id = ids.parse_image_id(records.IMAGE_ID)
    set_on_image = artefacts.state_properties(image_id, artefacts.State.REFUSED, "because " * 99)
    assert len(set_on_image[artefacts.MESSAGE]) == artefacts.MESSAGE_CHARACTERS
    assert artefacts.state_of(records.image(**set_on_image)) is artefacts.State.REFUSED
    assert artefacts.state_of(records.image(id=OTHER_ID, **set_on_image)) is None
    assert artefacts.state_of(records.image(acstor_state_of=image_id, acstor_state="?")) is None


@pytest.mark.parametrize(
    ("text", "revision"),
    [("1", 1), ("12", 12), ("-1", 0), ("", 0), ("x", 0), ("9" * 30, 0), ("\u0663", 0)],
)
def test_malformed_revision_reads_as_zero(text: str, revision: int) -> None:
    artefact = image_record.Image(properties={"acstor_revision": text})
    assert artefacts.revision_of(artefact) == revision


def test_kind_of_a_later_version_is_unknown() -> None:
    image = records.image()
    assert artefacts.kind_of(records.artefact(image)) is CHUNK_MAP
    assert artefacts.kind_of(records.artefact(image, acstor_kind="dream")) is None


def map_of(image: image_record.Image, chunk_bytes: int = 65536) -> bytes:
    cut = geometry.Geometry(len(records.BYTES), chunk_bytes)
    image_id, os_hash = image.id, image.os_hash
    return chunk_maps.made(image_id, cut, [ids.cid_of(records.BYTES)], os_hash)


def test_chunk_map_is_bound_to_the_image_id_and_hash() -> None:
    image = records.image()
    assert len(artefacts.parse_chunk_map(image, map_of(image))) == 1
    rehashed = records.image(os_hash_value="00" * 64)
    with pytest.raises(errors.ChunkMapFormatError, match="made for other bytes"):
        artefacts.parse_chunk_map(rehashed, map_of(image))
    with pytest.raises(errors.ChunkMapFormatError, match=f"not of {OTHER_ID}"):
        artefacts.parse_chunk_map(records.image(id=OTHER_ID), map_of(image))
