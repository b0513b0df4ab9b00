# SPDX-License-Identifier: Apache-2.0
"""Artefacts of a project's images in the service's project are limited for each project."""

import pathlib

import pytest
from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.client import artefact_quota
from acstor_glance.prepare import image_preparation
from acstor_glance.prepare import image_preparer
from acstor_glance.prepare import preparation_budget
from tests.fakes import glance_options
from tests.fakes import manual_clock

GIB = 1 << 30
CHUNK_MAP, CONVERTED = artefacts.Kind.CHUNK_MAP, artefacts.Kind.CONVERTED
Outcome = image_preparer.PreparationOutcome


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> cfg.ConfigOpts:
    return glance_options.conf(
        state_dir=tmp_path / "state", artefact_quota_per_project=GIB, dedup_scope="cloud"
    )


def add(images, data: bytes, **record: str) -> image_record.Image:
    return images.get_image(images.add(data, **record)["id"])


def store(images, image, size: int, kind: artefacts.Kind = CHUNK_MAP) -> str:
    """Store an artefact of a given length in Glance."""
    made = images.add(b"", **artefacts.new_artefact(image, kind, images.project_id, 1))
    made["size"] = size
    return made["id"]


def test_quota_counts_the_artefacts_of_the_project(images, conf) -> None:
    mine, other = add(images, b"1"), add(images, b"2", owner="other")
    store(images, mine, GIB - 1500)
    store(images, mine, 500, CONVERTED)
    quota = artefact_quota.ArtefactQuota(images, conf)
    quota.reserve_bytes(mine, 600)
    with pytest.raises(errors.QuotaExceeded, match=r"1073741424 bytes, and 401 more .* of 1GiB"):
        quota.reserve_bytes(mine, 401)
    quota.reserve_bytes(mine, 400)
    with pytest.raises(errors.QuotaExceeded):
        quota.reserve_bytes(mine, 0)
    quota.reserve_bytes(other, GIB)


def test_quota_counts_64_mib_of_a_large_conversion(images, conf) -> None:
    mine = add(images, b"1")
    store(images, mine, 5 * GIB, CONVERTED)
    quota = artefact_quota.ArtefactQuota(images, conf)
    left = GIB - artefact_quota.CONVERTED_BYTES
    with pytest.raises(errors.QuotaExceeded):
        quota.reserve_bytes(mine, left + 1)
    quota.reserve_bytes(mine, left)


def test_deleted_artefact_frees_its_quota_soon(images, conf) -> None:
    clock, mine = manual_clock.ManualClock(), add(images, b"1")
    artefact_id = store(images, mine, GIB)
    quota = artefact_quota.ArtefactQuota(images, conf, clock)
    for _ in range(2):
        with pytest.raises(errors.QuotaExceeded):
            quota.reserve_bytes(mine, 1)
        images.delete_artefact(artefact_id)
    clock.now_s += artefact_quota.RECHECK_AGE_S + 1
    quota.reserve_bytes(mine, GIB)


@pytest.mark.expect_log("could not be prepared")
def test_image_beyond_the_quota_fails_and_is_retried(images, conf) -> None:
    artefact_id = store(images, add(images, b"1"), GIB)
    image = images.add(b"some bytes" * 100)
    image_id = ids.parse_image_id(image["id"])
    assert image_preparer.ImagePreparer(images, conf).prepare_image(image_id) is Outcome.FAILED
    assert "over their quota of 1GiB" in image["acstor_message"]
    assert image["acstor_retry"].startswith("1 2")
    images.delete_artefact(artefact_id)
    again = image_preparer.ImagePreparer(images, conf).prepare_image(image_id, is_forced=True)
    assert again is Outcome.PREPARED
    made = images.records[image[CHUNK_MAP.pointer]]
    assert made["acstor_project_id"] == image["owner"]


@pytest.mark.expect_log("could not be prepared")
def test_image_whose_chunk_map_is_too_long_fails_for_good(images, conf) -> None:
    limits = preparation_budget.CostLimits(spare_artefact_bytes=0)
    preparer = image_preparer.ImagePreparer(
        images, conf, limits=image_preparation.PreparationLimits(cost_limits=limits)
    )
    image = images.add(b"some bytes")
    assert preparer.prepare_image(ids.parse_image_id(image["id"])) is Outcome.FAILED
    assert "its 10 bytes do not allow that" in image["acstor_message"]
    assert image["acstor_retry"] == "1 never"
    assert list(images.list_artefacts()) == []
