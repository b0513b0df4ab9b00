# SPDX-License-Identifier: Apache-2.0
"""A file name in the folder of exports means a complete file with the right bytes."""

import contextlib
import pathlib

import pytest

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_glance.controller import image_export
from acstor_glance.prepare import prehash
from tests.fakes import glance_records as records

OTHER_ID = "0c9e3f7a-1111-4222-8333-444455556666"


class MemoryGlance:
    """An image and its chunk map, with the operations that exports need."""

    def __init__(self, map_bytes: bytes) -> None:
        self.bytes = {records.IMAGE_ID: records.BYTES, records.ARTEFACT_ID: map_bytes}
        self.has_map = True

    def artefact_of(self, image, kind):
        has_one = self.has_map and kind is artefacts.Kind.CHUNK_MAP
        return records.artefact(image, kind) if has_one else None

    @contextlib.contextmanager
    def open_image_data(self, image_id):
        data = self.bytes[image_id]
        yield (data[at : at + 4096] for at in range(0, len(data), 4096))


@pytest.fixture
def glance(tmp_path):
    (tmp_path / "bytes").write_bytes(records.BYTES)
    image_id = ids.parse_image_id(records.IMAGE_ID)
    os_hash = records.image().os_hash
    prehash.prehash(tmp_path / "bytes", tmp_path / "map", image_id, os_hash=os_hash)
    return MemoryGlance((tmp_path / "map").read_bytes())


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "exported"
    path.mkdir()
    return path


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_image_and_map_are_exported_once_with_group_access(glance, folder):
    image = records.image()
    assert image_export.export(glance, image, folder) is image_export.ExportOutcome.EXPORTED
    assert names(folder) == [f"{records.IMAGE_ID}.acmap", f"{records.IMAGE_ID}.raw"]
    written = folder / f"{records.IMAGE_ID}.raw"
    assert written.read_bytes() == records.BYTES
    assert written.stat().st_mode & 0o777 == image_export.MODE
    glance.bytes[records.IMAGE_ID] = b"is not read again"
    assert image_export.export(glance, image, folder) is image_export.ExportOutcome.PRESENT


def test_image_with_a_wrong_hash_is_not_exported(glance, folder):
    glance.bytes[records.IMAGE_ID] = records.BYTES + bytes(2 * 4096)
    with pytest.raises(errors.Unusable, match="the sha512 of its data differs"):
        image_export.export(glance, records.image(), folder)
    assert names(folder) == []


def test_damaged_map_is_not_exported(glance, folder):
    glance.bytes[records.ARTEFACT_ID] = glance.bytes[records.ARTEFACT_ID][:-1] + b"?"
    with pytest.raises(errors.FormatError):
        image_export.export(glance, records.image(), folder)
    assert f"{records.IMAGE_ID}.acmap" not in names(folder)


def test_unprepared_image_is_left_out(glance, folder):
    image = records.image(status="deactivated")
    assert image_export.export(glance, image, folder) is image_export.ExportOutcome.UNPREPARED
    glance.has_map = False
    assert (
        image_export.export(glance, records.image(), folder)
        is image_export.ExportOutcome.UNPREPARED
    )
    assert names(folder) == []


def test_only_files_of_unserved_images_are_removed(folder):
    for name in (f"{records.IMAGE_ID}.raw", f"{OTHER_ID}.raw", f"{OTHER_ID}.acmap", "notes.raw"):
        (folder / name).write_bytes(b"")
    assert image_export.remove_unserved(folder, {records.IMAGE_ID}) == [OTHER_ID]
    assert names(folder) == [f"{records.IMAGE_ID}.raw", "notes.raw"]
