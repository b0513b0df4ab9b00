# SPDX-License-Identifier: Apache-2.0
"""A spooled map is finished once the image's hash is known, or dropped."""

import os
import pathlib

import pytest

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_glance.prepare import map_spool
from acstor_glance.prepare import prehash
from tests.fakes import glance_records as records

IMAGE_ID = records.image().id


@pytest.fixture
def waiting(tmp_path: pathlib.Path) -> map_spool.MapSpool:
    staged = tmp_path / "staged"
    staged.write_bytes(records.BYTES)
    made = map_spool.MapSpool(tmp_path / "state")
    prehash.prehash(staged, made.map_path(IMAGE_ID), IMAGE_ID, chunk_bytes=16384, workers=1)
    return made


def test_spooled_map_is_bound_to_the_hash_of_glance(waiting: map_spool.MapSpool) -> None:
    image = records.image()
    with pytest.raises(errors.ChunkMapFormatError, match="made for other bytes"):
        artefacts.parse_chunk_map(image, waiting.map_path(IMAGE_ID).read_bytes())
    with waiting.finished_map(image, ()) as file:
        assert file is not None
        found = artefacts.parse_chunk_map(image, file.read())
    assert len(found) == -(-len(records.BYTES) // 16384)


def test_map_of_another_size_than_the_image_is_not_used(waiting: map_spool.MapSpool) -> None:
    with waiting.finished_map(records.image(size=len(records.BYTES) + 1), ()) as file:
        assert file is None


@pytest.mark.parametrize("damage", [b"", b"\x89acmap", b"x" * 500])
def test_damaged_map_is_not_used(waiting: map_spool.MapSpool, damage: bytes) -> None:
    waiting.map_path(IMAGE_ID).write_bytes(damage)
    with waiting.finished_map(records.image(), ()) as file:
        assert file is None


def test_image_without_a_map_has_none(tmp_path: pathlib.Path) -> None:
    with map_spool.MapSpool(tmp_path).finished_map(records.image(), ()) as file:
        assert file is None


def test_spool_is_private_to_its_user(tmp_path: pathlib.Path) -> None:
    map_spool.MapSpool(tmp_path)
    assert (tmp_path / "maps").stat().st_mode & 0o777 == 0o700


def test_old_map_is_removed(waiting: map_spool.MapSpool) -> None:
    assert waiting.remove_older(60.0) == 0
    os.utime(waiting.map_path(IMAGE_ID), (0, 0))
    assert waiting.remove_older(60.0) == 1
    assert not waiting.map_path(IMAGE_ID).exists()


def test_error_of_an_unusable_spool_names_the_option(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.Unusable, match="state_dir"):
        map_spool.MapSpool(tmp_path / "file")
