# SPDX-License-Identifier: Apache-2.0
import os
import subprocess

import pytest

from acstor_agent.mount import open_files


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "mirror" / "images"
    folder.mkdir(parents=True)
    (folder / "a.raw").write_bytes(b"x")
    return str(folder / "a.raw")


def test_unopened_file_has_no_pids(path):
    assert open_files.pids_with_open(path) == []


def test_own_process_and_others_are_found(path):
    with open(path, "rb") as file, subprocess.Popen(["sleep", "60"], stdin=file) as other:
        try:
            assert open_files.pids_with_open(path) == sorted([os.getpid(), other.pid])
        finally:
            other.kill()
    assert open_files.pids_with_open(path) == []


def test_unlinked_file_counts_as_open(path, tmp_path):
    with open(path, "rb"):
        os.unlink(path)
        assert open_files.pids_with_open(path) == [os.getpid()]
        assert [user.paths for user in open_files.users_of(str(tmp_path / "mirror"))] == [(path,)]


def test_file_opened_through_a_symlink_counts_as_open(path, tmp_path):
    (tmp_path / "base").symlink_to(path)
    with open(tmp_path / "base", "rb"):
        assert open_files.pids_with_open(path) == [os.getpid()]


def test_symlinked_mount_point_is_resolved(path, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "mirror")
    with open(path, "rb"):
        assert open_files.pids_with_open(str(tmp_path / "link" / "images" / "a.raw")) == [
            os.getpid()
        ]


def test_file_with_the_path_as_a_prefix_is_not_matched(path):
    with open(path + "2", "wb"):
        assert open_files.pids_with_open(path) == []


def test_open_images_are_found_by_their_ids(path, tmp_path):
    image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
    image = tmp_path / "mirror" / "images" / f"{image_id}.raw"
    image.write_bytes(b"x")
    mount_point = str(tmp_path / "mirror")
    with open(path, "rb"), open(tmp_path / "elsewhere", "wb"):
        assert open_files.list_open_images(mount_point) == set()  # a.raw is no image
        with open(image, "rb"):
            assert open_files.list_open_images(mount_point) == {image_id}
            assert open_files.list_open_images(str(tmp_path / "mirr")) == set()
    assert open_files.list_open_images(mount_point) == set()
