# SPDX-License-Identifier: Apache-2.0
"""Why an image is not served: by its record, its chunk map's, and its store's response."""

from typing import Any

import pytest

from acstor_common.disks import qcow2_header
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_glance.client import range_support
from acstor_glance.controller import image_scan
from acstor_glance.prepare import format_check
from tests.fakes import glance_records as records
from tests.fakes import memory_images

Reason = image_scan.ScanReason
REFUSED = {"acstor_state": "refused", "acstor_state_of": records.IMAGE_ID}
FAILED = {"acstor_state": "failed", "acstor_state_of": records.IMAGE_ID}


def ranges_of(_image: image_record.Image) -> range_support.ProbeResult:
    return range_support.ProbeResult(range_support.RangeSupport.RANGES)


def standing(
    image: image_record.Image, found: image_record.Image | None = None
) -> image_scan.ImageStatus:
    return image_scan.status_of(image, found, cloud())


def cloud(ranges_of: image_scan.RangesOf = ranges_of, **given: Any) -> image_scan.ScanContext:
    own = {"converted_of": lambda _image: None, **given}
    return image_scan.ScanContext(records.SERVICE_PROJECT, ranges_of, **own)


@pytest.mark.parametrize(
    ("changed", "reason", "detail"),
    [
        ({"status": "queued"}, Reason.NOT_ACTIVE, "queued"),
        ({"status": "deactivated"}, Reason.NOT_ACTIVE, "deactivated"),
        ({"disk_format": "vmdk"}, Reason.DISK_FORMAT, "vmdk"),
        ({"disk_format": "vmdk", "container_format": "ova"}, Reason.DISK_FORMAT, "vmdk"),
        ({"container_format": "ova"}, Reason.CONTAINER_FORMAT, "ova"),
        ({"os_encrypt_key_id": "7d2c"}, Reason.ENCRYPTED, ""),
        ({"size": 0}, Reason.EMPTY, ""),
        ({"os_hash_value": None}, Reason.NO_HASH, ""),
        ({}, Reason.NOT_MAPPED, ""),
        (FAILED, Reason.FAILED, ""),
        ({**FAILED, "acstor_retry": "3 2026-01-01T00:00:00+00:00"}, Reason.FAILED, ""),
        ({**FAILED, "acstor_retry": "1 never"}, Reason.REFUSED, "limit"),
        ({"acstor_state": "failed", "acstor_state_of": "another"}, Reason.NOT_MAPPED, ""),
        ({**REFUSED, "acstor_message": "it is encrypted. Convert"}, Reason.REFUSED, "encrypted"),
        ({**REFUSED, "acstor_message": "its format is vmdk, but ..."}, Reason.REFUSED, "format"),
        ({**REFUSED, "acstor_message": "of a later version"}, Reason.REFUSED, "other"),
    ],
)
def test_image_without_a_chunk_map_has_a_reason(
    changed: dict[str, Any], reason: image_scan.ScanReason, detail: str
) -> None:
    assert standing(records.image(**changed))[:2] == (reason, detail)


def test_image_with_its_own_chunk_map_is_served() -> None:
    image = records.image(stores="file")
    assert standing(image, records.artefact(image)) == (Reason.SERVED, "", "")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"os_hash_value": "00" * 64}, Reason.RECORD_DIFFERS),
        ({"os_hash_value": "00" * 64, "owner": records.TENANT}, Reason.NOT_MAPPED),
        ({"acstor_image_id": records.ARTEFACT_ID}, Reason.NOT_MAPPED),
        ({"acstor_format": "1"}, Reason.NOT_MAPPED),
        ({"acstor_kind": "boot_image"}, Reason.NOT_MAPPED),
        ({"status": "queued"}, Reason.NOT_MAPPED),
    ],
)
def test_foreign_chunk_map_does_not_count(
    changed: dict[str, Any], reason: image_scan.ScanReason
) -> None:
    image = records.image()
    other = {"acstor_os_hash_value": changed.pop("os_hash_value", image.os_hash.value.hex())}
    found = standing(image, records.artefact(image, **other, **changed))
    assert found.reason is reason
    assert found.why


def test_image_in_a_store_without_ranges_names_store_and_response() -> None:
    image = records.image(stores="s3,rbd")
    for readable, reason in (
        (range_support.RangeSupport.WHOLE, Reason.NO_RANGES),
        (range_support.RangeSupport.UNAVAILABLE, Reason.STORE_AWAY),
    ):
        answer = range_support.ProbeResult(readable, "it answers 400")
        asked = cloud(lambda _image, answer=answer: answer)
        found = image_scan.status_of(image, records.artefact(image), asked)
        assert found == (reason, "s3,rbd", "it answers 400")


def test_every_qcow2_refusal_has_a_label() -> None:
    for reason in qcow2_header.RefusalReason:
        message = f"{qcow2_header.Refused('image', reason, 'because').why}. Convert it"
        expected = reason.name.lower().replace("_", "-")
        assert image_scan.refusal_label(artefacts.fit_message(message)) == expected


def test_refusals_of_oslo_utils_use_our_labels() -> None:
    assert format_check.BACKING_FILE == qcow2_header.RefusalReason.BACKING_FILE
    assert format_check.EXTERNAL_DATA == qcow2_header.RefusalReason.EXTERNAL_DATA


class Listed(memory_images.MemoryImages):
    """Images that count their single lookups."""

    def __init__(self, *found: dict[str, Any]) -> None:
        super().__init__()
        self.records, self.looked_up = {record["id"]: record for record in found}, 0

    def get_image(self, image_id: str) -> image_record.Image:
        self.looked_up += 1
        return super().get_image(image_id)


def image_id(number: int, of: str = "a") -> str:
    return f"{of * 8}-0000-4000-8000-{number:012x}"


def mapped(number: int, **changed: Any) -> list[dict[str, Any]]:
    """Return records of an image and its chunk map, with ids in reverse order."""
    pointer = image_id(1000 - number, "b")
    image = {"id": image_id(number), "acstor_chunk_map": pointer}
    artefact = records.artefact_record(records.image(**image), id=pointer, **changed)
    return [records.record(**image), artefact]


def count(listed: Listed) -> dict[str, int]:
    counting = image_scan.ImageScan(listed, ranges_of)
    assert list(counting.run()) == list(range(1, sum(map(is_image, listed.records.values())) + 1))
    return {label: one.images for label, one in counting.counts.items()}


def is_image(record: dict[str, Any]) -> bool:
    return "acstor_kind" not in record


def test_images_and_chunk_maps_are_joined_without_single_lookups() -> None:
    listed = Listed(*(record for number in range(250) for record in mapped(number)))
    assert count(listed) == {"served": 250}
    assert listed.looked_up == 0


@pytest.mark.parametrize("name", ["aaa", "zzz", f"acstor chunk_map of {image_id(9)}"])
def test_renamed_artefact_is_looked_up_and_hides_no_other(
    name: str,
) -> None:
    listed = Listed(*mapped(1), *mapped(2, name=name), *mapped(3))
    assert count(listed) == {"served": 3}
    assert listed.looked_up == 1


def test_superseded_and_orphaned_chunk_maps_are_ignored() -> None:
    image, own = mapped(2)
    older = {**own, "id": image_id(7, "c")}
    orphan = mapped(1)[1]
    assert count(Listed(image, own, older, orphan, *mapped(3))) == {"served": 2}


def test_dangling_or_foreign_pointers_count_as_not_mapped() -> None:
    copied = records.record(id=image_id(5), acstor_chunk_map=mapped(1)[1]["id"])
    lost = records.record(id=image_id(6), acstor_chunk_map=image_id(6, "d"))
    assert count(Listed(*mapped(1), copied, lost)) == {"served": 1, "not-mapped": 2}


def test_labels_and_examples_are_limited() -> None:
    odd = [records.record(id=image_id(n), disk_format=f"x{n}") for n in range(500)]
    rude = [records.record(id=image_id(900), disk_format="\x1b[31m")]
    counting = image_scan.ImageScan(Listed(*odd, *rude), ranges_of)
    list(counting.run())
    assert len(counting.counts) == image_scan.MAX_LABELS + 1
    others = counting.counts["disk-format:others"]
    assert others.images == 501 - image_scan.MAX_LABELS
    assert len(others.examples) == image_scan.MAX_EXAMPLES
    assert counting.is_healthy


def test_image_that_needs_an_operator_is_unhealthy() -> None:
    image, own = mapped(1)
    counting = image_scan.ImageScan(Listed({**image, "os_hash_value": "11" * 64}, own), ranges_of)
    list(counting.run())
    assert not counting.is_healthy
    [only] = counting.counts.values()
    assert "of the first: it is for other bytes" in only.message


def converted_image(
    **changed: Any,
) -> tuple[image_record.Image, image_record.Image, image_record.Image]:
    """Return an image of another format, its chunk map, and its conversion."""
    image = records.image(disk_format="vmdk", stores="s3")
    kind = artefacts.Kind.CONVERTED
    return image, records.artefact(image), records.artefact(image, kind, stores="file", **changed)


def test_image_of_another_format_is_served_by_its_conversion() -> None:
    image, own, made = converted_image()
    asked: list[image_record.Image] = []

    def ask(record: image_record.Image) -> range_support.ProbeResult:
        asked.append(record)
        return range_support.ProbeResult(range_support.RangeSupport.RANGES)

    given = {"converted_of": lambda _image: made, "convertible": ["vmdk"]}
    assert image_scan.status_of(image, own, cloud(ask, **given)).reason is Reason.SERVED
    assert asked == [made]


@pytest.mark.parametrize(
    ("convertible", "changed", "reason"),
    [
        ([], {}, Reason.DISK_FORMAT),
        (["vhdx"], {}, Reason.DISK_FORMAT),
        (["vmdk"], {"owner": records.TENANT}, Reason.NOT_MAPPED),
        (["vmdk"], {"acstor_os_hash_value": "00" * 64}, Reason.NOT_MAPPED),
        (["vmdk"], None, Reason.NOT_MAPPED),
    ],
)
def test_image_of_another_format_is_not_served_without_its_own_conversion(
    convertible: list[str], changed: dict[str, Any] | None, reason: image_scan.ScanReason
) -> None:
    image, own, made = converted_image(**(changed or {}))
    found = None if changed is None else made
    asked = cloud(converted_of=lambda _image: found, convertible=convertible)
    assert image_scan.status_of(image, own, asked).reason is reason
