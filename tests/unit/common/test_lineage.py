# SPDX-License-Identifier: Apache-2.0
"""What an image says it was made from."""

import pytest

from acstor_common.image import image_record
from acstor_common.image import lineage

OWN, DIRECT, FIRST = (f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in (1, 2, 3))


def image(direct="", first="", own=OWN):
    record = {"id": own, lineage.DIRECT_BASE: direct, "base_image_ref": first}
    return image_record.Image.from_record(record)


def test_composed_snapshot_names_what_it_was_composed_of_and_nova_the_first_of_its_line():
    said = lineage.direct_base(DIRECT, OWN)[lineage.DIRECT_BASE]
    assert lineage.bases_of(image(said, FIRST)) == [DIRECT, FIRST]
    assert lineage.bases_of(image(said, DIRECT)) == [DIRECT]
    assert lineage.bases_of(image(said)) == [DIRECT]


def test_property_that_nova_copied_from_the_image_before_counts_for_nothing():
    said = lineage.direct_base(FIRST, DIRECT)[lineage.DIRECT_BASE]
    assert lineage.bases_of(image(said, FIRST)) == [FIRST]


@pytest.mark.parametrize("said", ["", "x", f"x {OWN}", f" {OWN}", OWN, f"{OWN} {OWN}", "../..", 7])
def test_nonsense_and_itself_are_nothing(said):
    assert lineage.bases_of(image(said, said)) == []
