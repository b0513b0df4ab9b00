# SPDX-License-Identifier: Apache-2.0
"""What needs no mount; workers that die are in tests/chaos/test_agent_supervisor.py."""

import subprocess
import sys

import pytest

from acstor_agent.process import supervisor
from acstor_common import errors


def test_folders_are_made_and_locked(tmp_path):
    folders = [tmp_path / "a" / "b", tmp_path / "c"]
    with supervisor.lock_folders(folders):
        assert all(folder.is_dir() for folder in folders)


def test_locked_folder_is_refused_until_it_is_free(tmp_path):
    with supervisor.lock_folders([tmp_path]):
        with (
            pytest.raises(errors.Unusable, match=f"{tmp_path}: another agent uses it"),
            supervisor.lock_folders([tmp_path]),
        ):
            pass
    with supervisor.lock_folders([tmp_path]):
        pass


def test_refusal_of_one_folder_lets_go_of_the_others(tmp_path):
    taken, free = tmp_path / "taken", tmp_path / "free"
    with supervisor.lock_folders([taken]):
        with pytest.raises(errors.Unusable), supervisor.lock_folders([free, taken]):
            pass
        with supervisor.lock_folders([free]):
            pass


def test_lock_ends_with_its_process(tmp_path):
    script = (
        "import os, pathlib, sys\n"
        "from acstor_agent.process import supervisor\n"
        "with supervisor.lock_folders([pathlib.Path(sys.argv[1])]): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    with supervisor.lock_folders([tmp_path]):
        pass


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.Unusable, match=str(folder)):
            supervisor.make_folder(folder)
