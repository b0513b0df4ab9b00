# SPDX-License-Identifier: Apache-2.0
"""The files under etc/ that a host's service manager reads, judged by its own tools."""

import pathlib
import re
import shutil
import subprocess

import pytest

from acstor_agent.process import service_manager
from acstor_nova import check
from tests.lab import agents

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = ROOT / "etc/systemd/system"
UNIT = UNITS / "acstor-agent.service"
INSTALLED_AT = "/opt/acstor/bin"


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"there is no {tool} here")


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def verify(unit):
    # Whether the manual pages of Documentation= exist says only whether this machine has man.
    return run("systemd-analyze", "verify", "--man=no", unit)


@needs("systemd-analyze")
def test_systemd_takes_the_units(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED_AT, str(agents.BIN)))
    assert verify(unit) == (0, "")
    service = tmp_path / "nova-compute.service"
    service.write_text("[Service]\nExecStart=/bin/true\n")
    shutil.copytree(UNITS / "nova-compute.service.d", tmp_path / "nova-compute.service.d")
    assert verify(service) == (0, "")


def test_unit_keeps_the_mount():
    """What tests/chaos/test_supervisor_restarted.py shows needs these settings."""
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert settings["Type"] == "notify"
    assert int(settings["FileDescriptorStoreMax"]) >= len(
        {service_manager.FUSE, service_manager.INIT}
    )
    assert settings["KillMode"] == "mixed"
    assert settings["ExecStart"].startswith(f"{INSTALLED_AT}/acstor-agent ")


@needs("systemd-sysusers")
def test_nova_may_use_the_control_socket(tmp_path):
    (tmp_path / "etc").mkdir()
    status, said = run(
        "systemd-sysusers", f"--root={tmp_path}", ROOT / "etc/sysusers.d/acstor.conf"
    )
    assert status == 0, said
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^acstor:.*:nova$", groups, re.MULTILINE)


@needs("systemd-tmpfiles")
def test_folders_are_made(tmp_path):
    config = ROOT / "etc/tmpfiles.d/acstor.conf"
    status, said = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", config)
    assert status == 0, said
    assert (tmp_path / "var/lib/acstor/mirror").is_dir()


def test_apparmor_rules_are_what_the_check_looks_for():
    rules = (ROOT / "etc/apparmor.d/local/usr.lib.libvirt.virt-aa-helper").read_text()
    assert f"/{check.AA_LOCAL}".endswith("/local/usr.lib.libvirt.virt-aa-helper")
    assert "/var/lib/acstor/mirror/images/*.raw r," in rules
