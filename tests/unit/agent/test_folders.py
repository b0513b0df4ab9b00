# SPDX-License-Identifier: Apache-2.0
import pathlib
import subprocess
import sys

import pytest

from acstor_agent.process import folders
from acstor_common import errors


def test_folders_are_made_and_locked(tmp_path):
    wanted = [tmp_path / "a" / "b", tmp_path / "c"]
    with folders.lock_folders(wanted):
        assert all(folder.is_dir() for folder in wanted)


def test_locked_folder_is_refused_until_it_is_free(tmp_path):
    with folders.lock_folders([tmp_path]):
        with (
            pytest.raises(errors.Unusable, match=f"{tmp_path}: another agent uses it"),
            folders.lock_folders([tmp_path]),
        ):
            pass
    with folders.lock_folders([tmp_path]):
        pass


def test_refused_folder_releases_locks_on_the_others(tmp_path):
    taken, free = tmp_path / "taken", tmp_path / "free"
    with folders.lock_folders([taken]):
        with pytest.raises(errors.Unusable), folders.lock_folders([free, taken]):
            pass
        with folders.lock_folders([free]):
            pass


def test_lock_ends_with_its_process(tmp_path):
    script = (
        "import os, pathlib, sys\n"
        "from acstor_agent.process import folders\n"
        "with folders.lock_folders([pathlib.Path(sys.argv[1])]): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    with folders.lock_folders([tmp_path]):
        pass


def test_error_names_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.Unusable, match=str(folder)):
            folders.make_folder(folder)


def test_make_private_restricts_modes_of_folder_and_entries(tmp_path):
    outside = tmp_path / "outside"
    outside.touch(0o644)
    folder = tmp_path / "a" / "state"
    folders.make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o005 == 0o005
    folder.chmod(0o755)
    (folder / "file").touch(0o644)
    (folder / "maps").mkdir(0o755)
    (folder / "link").symlink_to(outside)
    folders.make_private(folder)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes == {"state": 0o700, "file": 0o600, "maps": 0o700, "link": 0o644}


def test_error_names_folder_that_cannot_be_made_private(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(pathlib.Path, "chmod", refuse)
    (tmp_path / "state").mkdir(0o755)
    with pytest.raises(errors.Unusable, match="state: cannot be made private"):
        folders.make_private(tmp_path / "state")


def test_make_private_ignores_a_file_that_vanishes_meanwhile(tmp_path, monkeypatch):
    """Another process uses the folder: a holder makes the folder of a running agent private."""
    folder = tmp_path / "state"
    folders.make_private(folder)
    (folder / "kept").touch(0o644)
    listed = [folder / "temporary", folder / "kept"]
    monkeypatch.setattr(pathlib.Path, "iterdir", lambda path: iter(listed))
    folders.make_private(folder)
    assert (folder / "kept").stat().st_mode & 0o077 == 0


def test_made_folder_is_world_readable_regardless_of_umask(tmp_path):
    with folders.umask(0o077):
        folders.make_folder(tmp_path / "mnt" / "mirror")
    assert (tmp_path / "mnt").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "mnt" / "mirror").stat().st_mode & 0o777 == 0o755


def test_lock_inherited_by_a_child_is_released_on_clean_exit(tmp_path):
    """A worker that is stuck in the kernel must not block the next agent."""
    with folders.lock_folders([tmp_path]):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with folders.lock_folders([tmp_path]):
            pass
    finally:
        child.kill()
        child.wait()
