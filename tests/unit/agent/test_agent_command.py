# SPDX-License-Identifier: Apache-2.0
"""Checks of ``acstor-agent`` before it mounts; starts and stops are in tests/functional."""

import os
import pathlib

import pytest

from acstor_agent.cmd import agent
from acstor_common import errors


def load(folder: pathlib.Path, **own: object):
    lines = [f"{name} = {value}" for name, value in own.items()]
    shared = f"[acstor]\nmount_point = {folder}/mirror\ncontrol_socket = {folder}/run/control\n"
    path = folder / "acstor.conf"
    path.write_text(shared + "[acstor_agent]\n" + "\n".join(lines))
    return agent.load_conf(["--config-file", str(path)])


def test_mount_point_is_not_accessed(tmp_path, monkeypatch):
    """A mount that a service manager kept has no worker yet: an access would block forever."""
    asked = []

    def lstat(path, **options):
        asked.append(os.fspath(path))
        return real(path, **options)

    real = os.lstat
    (tmp_path / "mirror").mkdir()
    conf = load(tmp_path, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    monkeypatch.setattr(os, "lstat", lstat)
    agent.check_mirror_accessible(conf, tmp_path / "state")
    assert str(tmp_path) in asked
    assert str(tmp_path / "mirror") not in asked


@pytest.mark.parametrize("option", ["state_dir", "cache_dir"])
def test_folder_that_contains_the_mount_point_is_refused(tmp_path, option):
    folders = {"state_dir": tmp_path / "state", "cache_dir": tmp_path / "cache", option: tmp_path}
    conf = load(tmp_path, **folders)
    with pytest.raises(errors.Unusable, match=f"it is inside .acstor_agent. {option}"):
        agent.check_mirror_accessible(conf, folders["state_dir"])
