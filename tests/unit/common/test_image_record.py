# SPDX-License-Identifier: Apache-2.0
"""Images that acstor does not serve, and the reasons given."""

import pytest

from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from tests.fakes import glance_records as records

OTHER_DISK_FORMATS = "ami ari aki vhd vhdx vmdk vdi iso ploop gpt".split()


@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
def test_raw_and_qcow2_images_are_served(disk_format: str) -> None:
    assert image_record.why_not_served(records.image(disk_format=disk_format)) == ""


@pytest.mark.parametrize("disk_format", OTHER_DISK_FORMATS)
def test_other_disk_format_is_refused_with_the_remedy(disk_format: str) -> None:
    why = image_record.why_not_served(records.image(disk_format=disk_format))
    assert f"its disk format is {disk_format}" in why
    assert "image_conversion" in why


@pytest.mark.parametrize("container_format", ["ami", "ova", "ovf", "docker", "compressed", None])
def test_other_container_format_is_refused(container_format: str | None) -> None:
    why = image_record.why_not_served(records.image(container_format=container_format))
    assert "its container format is" in why


@pytest.mark.parametrize(
    "status", ["queued", "saving", "killed", "deactivated", "importing", "deleted"]
)
def test_inactive_image_is_refused(status: str) -> None:
    assert image_record.why_not_served(records.image(status=status)) == (
        f"its status is {status}, not active"
    )


@pytest.mark.parametrize("size", [0, None, -1, "17"])
def test_empty_image_is_refused(size: object) -> None:
    assert image_record.why_not_served(records.image(size=size)) == "it is empty"


@pytest.mark.parametrize(
    ("algo", "value"), [(None, None), ("sha512", None), ("sha512", ""), ("", "00"), ("sha512", "0")]
)
def test_image_without_a_hash_is_refused(algo: str | None, value: str | None) -> None:
    image = records.image(os_hash_algo=algo, os_hash_value=value)
    assert image.os_hash == chunk_map.UNKNOWN_OS_HASH
    assert "os_hash_value" in image_record.why_not_served(image)


def test_hash_too_long_for_a_map_is_unknown() -> None:
    assert image_record.parse_os_hash("sha512", "00" * 65) == chunk_map.UNKNOWN_OS_HASH
