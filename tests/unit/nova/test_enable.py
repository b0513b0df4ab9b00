# SPDX-License-Identifier: Apache-2.0
"""Enabling and disabling acstor on a compute host is idempotent."""

import pathlib
import stat
import sys

import pytest
from oslo_config import cfg

from acstor_nova import enable
from acstor_nova.checks import host_check
from acstor_nova.cmd import manage

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command with a given nova.conf and returns its output."""
    conf = tmp_path / "nova.conf"

    def run(*words, nova_conf="[libvirt]\nvirt_type = kvm\n"):
        conf.write_text(nova_conf)
        words = [*words, "--folder", str(tmp_path / "d"), "--config-file", str(conf)]
        monkeypatch.setattr(sys, "argv", ["acstor-nova-manage", *words])
        status = manage.main()
        printed = capsys.readouterr()
        return status, printed.out.partition(":")[0], printed.err

    return run


def test_enable_and_disable_change_once_and_check_changes_nothing(run, tmp_path):
    file = tmp_path / "d/acstor.conf"
    assert run("disable") == (0, "unchanged", "")
    assert run("enable", "--check") == (1, "would be changed", "")
    assert not file.exists()
    assert run("enable") == (0, "changed", "")
    assert run("enable") == run("enable", "--check") == (0, "unchanged", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert run("disable", "--check") == (1, "would be changed", "")
    assert file.exists()
    assert run("disable") == (0, "changed", "")
    assert run("disable") == (0, "unchanged", "")
    assert not file.parent.exists()


def test_lines_of_the_operator_in_the_file_are_kept(run, tmp_path):
    file = tmp_path / "d/acstor.conf"
    run("enable")
    file.write_text(own := f"{enable.TEXT}gateway_url = https://192.0.2.1:9711\n")
    (file.parent / "other.conf").write_text("")
    assert run("enable") == (0, "unchanged", "")
    assert file.read_text() == own
    assert run("disable")[0] == 0
    assert [path.name for path in file.parent.iterdir()] == ["other.conf"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[libvirt]\nimages_type = acstor\n", "[libvirt] images_type = acstor"),
        ("[DEFAULT]\nconfig_source = vault, acstor\n", "[DEFAULT] config_source = vault, acstor"),
    ],
)
def test_disable_names_other_settings_of_acstor(run, tmp_path, text, said):
    run("enable")
    status, done, error = run("disable", nova_conf=text)
    assert (status, done) == (1, "changed")
    assert f"{tmp_path}/nova.conf: {said}" in error


def test_unwritable_or_unremovable_file_is_named(run, tmp_path):
    (tmp_path / "d").write_text("a file, no folder")
    status, _, error = run("enable")
    assert status == 1 and f"{tmp_path}/d/acstor.conf: cannot be written" in error
    (tmp_path / "d").unlink()
    (tmp_path / "d/acstor.conf/inside").mkdir(parents=True)
    status, _, error = run("disable")
    assert status == 1 and f"{tmp_path}/d/acstor.conf: cannot be removed" in error


def test_packaged_file_equals_the_written_one(tmp_path):
    assert (ROOT / "etc/nova/acstor.conf").read_text() == enable.TEXT


def test_nova_compute_reads_the_directory_besides_given_files(tmp_path, monkeypatch):
    """oslo.config searches the user's directory in the same way as /etc/nova."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert enable.enable(tmp_path / ".nova" / enable.FOLDER.name)
    (tmp_path / "nova.conf").write_text("[DEFAULT]\nstate_path = /elsewhere\n")
    for prog, found in (("nova-compute", ["acstor"]), ("nova-api", [])):
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(tmp_path / "nova.conf")], project="nova", prog=prog)
        assert (conf.config_source or []) == found


def test_written_file_enables_acstor(tmp_path):
    assert enable.enable(tmp_path / "d")
    conf = host_check.load_conf([str(tmp_path / "d/acstor.conf")])
    found = {one.what: one.level for one in host_check._configuration(conf)}
    assert set(found.values()) == {host_check.Level.OK}
    assert enable.find_other_settings(conf, tmp_path / "d") == []
