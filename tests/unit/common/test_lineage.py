# SPDX-License-Identifier: Apache-2.0
"""The base images that an image's properties name."""

import pytest

from acstor_common.image import image_record
from acstor_common.image import lineage

OWN, DIRECT, FIRST = (f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in (1, 2, 3))


def image(direct="", first="", own=OWN):
    record = {"id": own, lineage.DIRECT_BASE: direct, "base_image_ref": first}
    return image_record.Image.from_record(record)


def test_composed_snapshot_names_its_direct_and_its_first_base():
    said = lineage.direct_base(DIRECT, OWN)[lineage.DIRECT_BASE]
    assert lineage.bases_of(image(said, FIRST)) == [DIRECT, FIRST]
    assert lineage.bases_of(image(said, DIRECT)) == [DIRECT]
    assert lineage.bases_of(image(said)) == [DIRECT]


def test_property_copied_from_another_image_is_ignored():
    said = lineage.direct_base(FIRST, DIRECT)[lineage.DIRECT_BASE]
    assert lineage.bases_of(image(said, FIRST)) == [FIRST]


@pytest.mark.parametrize("said", ["", "x", f"x {OWN}", f" {OWN}", OWN, f"{OWN} {OWN}", "../..", 7])
def test_invalid_base_and_the_image_itself_are_ignored(said):
    assert lineage.bases_of(image(said, said)) == []
