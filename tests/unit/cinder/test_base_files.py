# SPDX-License-Identifier: Apache-2.0
"""Base files of overlay volumes: links, users, copies."""

import pathlib

import pytest

from acstor_cinder import base_files

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
FIRST, SECOND = "volume-1", "volume-2"
DATA = b"image" * 100


@pytest.fixture
def mirror(tmp_path):
    path = tmp_path / "images" / f"{IMAGE}.raw"
    path.parent.mkdir()
    path.write_bytes(DATA)
    return path


@pytest.fixture
def share(tmp_path):
    path = tmp_path / "share"
    path.mkdir()
    return path


@pytest.fixture
def base():
    return base_files.base_name(IMAGE, bytes(range(64)))


def test_volumes_share_a_base_until_the_last_one_is_removed(share, mirror, base):
    for volume in (FIRST, SECOND):
        link = base_files.add_user(share, volume, base, mirror)
        assert (share / link).read_bytes() == DATA
        assert base_files.base_of(share, volume) == base
    base_files.remove_user(share, FIRST)
    assert base_files.base_of(share, FIRST) is None
    assert (share / f"{SECOND}.{IMAGE}").read_bytes() == DATA
    base_files.copy_path(share, base).touch()
    base_files.remove_user(share, SECOND)
    assert list(share.iterdir()) == []


def test_mirror_is_derived_from_the_base_name_and_not_from_a_link(share, mirror, base):
    base_files.add_user(share, FIRST, base, mirror)
    (share / base).unlink()
    (share / base).symlink_to("/etc/shadow")  # by another user of the share
    assert base_files.list_uncopied(share) == [base]
    assert base_files.mirror_of(base, mirror.parents[1]) == mirror
    with pytest.raises(ValueError, match="is not the name of a base file"):
        base_files.mirror_of(f"{base}/../../../etc/shadow", mirror.parents[1])


def test_changed_image_bytes_get_another_base(share, mirror, base):
    other = base_files.base_name(IMAGE, bytes(64))
    base_files.add_user(share, FIRST, base, mirror)
    base_files.add_user(share, SECOND, other, mirror)
    base_files.remove_user(share, FIRST)
    assert base_files.list_uncopied(share) == [other]


def test_copy_replaces_the_link(share, mirror, base):
    link = base_files.add_user(share, FIRST, base, mirror)
    assert base_files.list_uncopied(share) == [base]
    base_files.copy_path(share, base).write_bytes(DATA)
    assert base_files.finish_copy(share, base, len(DATA))
    mirror.unlink()
    assert base_files.list_uncopied(share) == []
    assert (share / link).read_bytes() == DATA


def test_incomplete_copy_is_not_used(share, mirror, base):
    base_files.add_user(share, FIRST, base, mirror)
    base_files.copy_path(share, base).write_bytes(DATA[:-1])
    with pytest.raises(OSError, match="has 499 bytes, and the image 500"):
        base_files.finish_copy(share, base, len(DATA))
    assert base_files.list_uncopied(share) == [base]


def test_copy_without_users_is_removed(share, mirror, base):
    base_files.add_user(share, FIRST, base, mirror)
    base_files.remove_user(share, FIRST)
    base_files.copy_path(share, base).write_bytes(DATA)
    assert not base_files.finish_copy(share, base, len(DATA))
    assert list(share.iterdir()) == []


def test_foreign_files_are_no_bases(share, mirror, base):
    (share / f"{FIRST}.{IMAGE}").write_bytes(b"a snapshot")
    (share / f"{FIRST}.info").write_bytes(b"{}")
    (share / "acstor-notes").symlink_to(pathlib.Path("elsewhere"))
    assert base_files.base_of(share, FIRST) is None
    assert base_files.list_uncopied(share) == []
    base_files.remove_user(share, FIRST)
    assert len(list(share.iterdir())) == 3
