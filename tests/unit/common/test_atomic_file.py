# SPDX-License-Identifier: Apache-2.0
"""An atomic write leaves either the old or the complete new file under its name."""

import pathlib

import pytest

from acstor_common.util import atomic_file


def test_file_appears_when_it_is_complete(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_file.atomic_write(path, mode=0o600) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_leaves_only_the_old_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_file.atomic_write(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_processes_can_be_removed(tmp_path: pathlib.Path) -> None:
    kept = tmp_path / "file"
    kept.write_bytes(b"whole")
    (tmp_path / f"{atomic_file.INCOMING}x1").write_bytes(b"half")
    atomic_file.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
