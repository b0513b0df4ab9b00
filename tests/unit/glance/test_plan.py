# SPDX-License-Identifier: Apache-2.0
"""The next step for an image follows from its record, and is nothing after it was done."""

import datetime

import pytest

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.prepare import plan
from tests.fakes import glance_records as records

NOW = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)
CHUNK_MAP, BOOT_IMAGE = artefacts.Kind.CHUNK_MAP, artefacts.Kind.BOOT_IMAGE
WANTED = plan.DesiredArtefacts({CHUNK_MAP: records.VERSIONS[CHUNK_MAP]})
OTHER_ID = "0c9e3f7a-1111-4222-8333-444455556666"
READY = {"acstor_state": "ready", "acstor_state_of": records.IMAGE_ID}
POINTER = {"acstor_chunk_map": records.ARTEFACT_ID}


def step(image: image_record.Image, *found: image_record.Image) -> plan.Step:
    by_id = {one.id: one for one in found}
    return plan.plan_image(image, by_id.get, records.SERVICE_PROJECT, WANTED, NOW).step


def failed(retry: str, state: str = "failed") -> dict[str, str]:
    return {"acstor_state": state, "acstor_state_of": records.IMAGE_ID, "acstor_retry": retry}


def test_new_image_is_prepared() -> None:
    assert step(records.image()) is plan.Step.PREPARE


def test_prepared_image_needs_nothing() -> None:
    image = records.image(**POINTER, **READY)
    assert step(image, records.artefact(image)) is plan.Step.NOTHING


def test_chunk_map_without_the_state_is_finished() -> None:
    image = records.image(**POINTER)
    assert step(image, records.artefact(image)) is plan.Step.PREPARE


def test_every_desired_artefact_must_exist() -> None:
    both = plan.DesiredArtefacts({kind: records.VERSIONS[kind] for kind in (CHUNK_MAP, BOOT_IMAGE)})
    image = records.image(**POINTER, **READY)
    found = {ids.ImageId(records.ARTEFACT_ID): records.artefact(image)}
    missing = plan.plan_image(image, found.get, records.SERVICE_PROJECT, both, NOW)
    assert missing == plan.Plan(plan.Step.PREPARE, "it has no boot_image")
    image = records.image(**POINTER, **READY, acstor_boot_image=OTHER_ID)
    found[ids.ImageId(OTHER_ID)] = records.artefact(image, artefacts.Kind.BOOT_IMAGE, id=OTHER_ID)
    complete = plan.plan_image(image, found.get, records.SERVICE_PROJECT, both, NOW)
    assert complete.step is plan.Step.NOTHING


def test_image_that_falsely_claims_to_be_ready_is_prepared() -> None:
    assert step(records.image(**READY)) is plan.Step.PREPARE
    assert step(records.image(**POINTER, **READY)) is plan.Step.PREPARE


@pytest.mark.parametrize(
    "altered",
    [
        {"owner": records.TENANT},
        {"acstor_image_id": OTHER_ID},
        {"acstor_os_hash_value": "00" * 64},
        {"acstor_format": "9"},
    ],
)
def test_image_with_a_foreign_chunk_map_is_prepared(altered: dict[str, str]) -> None:
    image = records.image(**POINTER, **READY)
    assert step(image, records.artefact(image, **altered)) is plan.Step.PREPARE


@pytest.mark.parametrize("status", ["queued", "saving", "importing", "deactivated", "killed"])
def test_inactive_image_is_left_unchanged(status: str) -> None:
    assert step(records.image(status=status)) is plan.Step.NOTHING


def test_artefact_is_ignored_and_a_forged_one_is_prepared_as_an_image() -> None:
    artefact = records.artefact(records.image())
    assert step(artefact) is plan.Step.NOTHING
    lookalike = records.image(acstor_kind="chunk_map", acstor_image_id=OTHER_ID)
    assert step(lookalike) is plan.Step.PREPARE


def test_artefact_of_another_service_project_is_ignored() -> None:
    image = records.image()
    secret = artefacts.new_secret(records.SERVICE_PROJECT)
    for made in (records.artefact_record(image), secret):
        anothers = {**made, "id": records.ARTEFACT_ID, "status": "active", "owner": "another"}
        assert step(image_record.Image.from_record(anothers)) is plan.Step.NOTHING


def test_unserved_image_is_refused_once() -> None:
    image = records.image(disk_format="vmdk")
    refusal = plan.plan_image(image, {}.get, records.SERVICE_PROJECT, WANTED, NOW)
    assert refusal.step is plan.Step.REFUSE
    said = artefacts.state_properties(image.id, artefacts.State.REFUSED, refusal.why)
    assert step(records.image(disk_format="vmdk", **said)) is plan.Step.NOTHING
    assert step(records.image(disk_format="vmdk", **said, **POINTER)) is plan.Step.REFUSE
    for disk_format in ("raw", "qcow2"):
        assert step(records.image(disk_format=disk_format, **said)) is plan.Step.PREPARE


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        ("1 2026-11-20T11:59:59+00:00", plan.Step.PREPARE),
        ("1 2026-11-20T12:00:01+00:00", plan.Step.WAIT),
        ("3 never", plan.Step.WAIT),
        ("", plan.Step.PREPARE),
        ("1 2026-11-20T12:00:01", plan.Step.PREPARE),
        ("many never", plan.Step.PREPARE),
        ("1 tomorrow", plan.Step.PREPARE),
    ],
)
def test_failed_image_waits_for_its_next_attempt(retry: str, expected: plan.Step) -> None:
    assert step(records.image(**failed(retry))) is expected
    with_map = records.image(**failed(retry), **POINTER)
    assert step(with_map, records.artefact(with_map)) is expected


def test_image_with_refused_bytes_is_never_read_again() -> None:
    assert step(records.image(**failed("1 never", "refused"))) is plan.Step.WAIT


def test_failure_copied_onto_a_snapshot_does_not_delay_it() -> None:
    snapshot = records.image(id=OTHER_ID, **failed("9 never"))
    assert step(snapshot) is plan.Step.PREPARE


def test_each_failure_doubles_the_time_up_to_a_limit() -> None:
    retry, waits = plan.Retry(), []
    for _ in range(13):
        retry = retry.after_failure(NOW)
        assert retry.at is not None
        waits.append((retry.at - NOW).total_seconds())
        assert plan.Retry.parse(str(retry)) == retry
    assert waits[:4] == [60, 120, 240, 480]
    assert waits[-3:] == [60 * 2**10, 86400, 86400]
    assert plan.Retry(99999, None).after_failure(NOW).attempts == 100000


def orphan(artefact: image_record.Image, image: image_record.Image | None = None) -> str:
    return plan.why_orphan(artefact, image, NOW, 3600)


def test_artefact_in_use_is_no_orphan() -> None:
    image = records.image(**POINTER)
    assert orphan(records.artefact(image, created_at="2026-01-01T00:00:00Z"), image) == ""


def test_artefact_of_a_deleted_image_is_an_orphan_at_once() -> None:
    artefact = records.artefact(records.image(), created_at="2026-11-20T11:59:59Z")
    assert orphan(artefact) == f"image {records.IMAGE_ID} does not exist"


@pytest.mark.parametrize(
    ("made", "is_orphan"),
    [("2026-11-20T11:30:00Z", False), ("2026-11-20T10:59:00Z", True), ("long ago", False)],
)
def test_artefact_without_a_pointer_is_given_time(made: str, is_orphan: bool) -> None:
    image = records.image()
    assert bool(orphan(records.artefact(image, created_at=made), image)) is is_orphan


def test_artefact_of_an_unknown_kind_is_kept() -> None:
    image = records.image()
    later = records.artefact(image, acstor_kind="dream", created_at="2026-01-01T00:00:00Z")
    assert orphan(later, image) == ""


def test_ready_image_without_a_boot_image_is_built_when_it_is_due() -> None:
    def due(image: image_record.Image, *found: image_record.Image) -> plan.Retry | None:
        by_id = {one.id: one for one in found}
        return plan.next_boot_image_build(image, by_id.get, records.SERVICE_PROJECT)

    later = NOW + datetime.timedelta(hours=1)
    assert due(records.image(**POINTER)) is None  # not ready yet
    first = due(records.image(**POINTER, **READY))
    assert first is not None and first.attempts == 0 and first.at is not None and first.at < NOW
    waiting = records.image(**READY, acstor_boot_retry=str(plan.Retry(2, later)))
    assert due(waiting) == plan.Retry(2, later)
    assert due(records.image(**READY, acstor_boot_retry="1 never")) is None
    image = records.image(**READY, acstor_boot_image=OTHER_ID)
    assert due(image) is not None  # it points to nothing
    assert due(image, records.artefact(image, artefacts.Kind.BOOT_IMAGE, id=OTHER_ID)) is None


def test_failed_build_copied_from_another_image_does_not_count() -> None:
    copied = {**READY, "acstor_state_of": OTHER_ID, "acstor_boot_retry": "1 never"}
    assert (
        plan.next_boot_image_build(records.image(**copied), {}.get, records.SERVICE_PROJECT) is None
    )
    assert step(records.image(**copied)) is plan.Step.PREPARE  # which clears it
