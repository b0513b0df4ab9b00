# SPDX-License-Identifier: Apache-2.0
"""The files under etc/ for a host's service manager, checked by its own tools."""

import pathlib
import re
import shutil
import subprocess

import pytest

from acstor_agent.process import fd_holder
from acstor_glance import sandbox
from acstor_nova.checks import host_check
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


def make_users(root, *names):
    (root / "etc").mkdir()
    for name in names:
        status, said = run("systemd-sysusers", f"--root={root}", ROOT / "etc/sysusers.d" / name)
        assert status == 0, said


def verify(unit):
    # The check of Documentation= depends only on an installed man.
    return run("systemd-analyze", "verify", "--man=no", unit)


@needs("systemd-analyze")
def test_systemd_verifies_the_agent_units(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED_AT, str(agents.BIN)))
    assert verify(unit) == (0, "")
    service = tmp_path / "nova-compute.service"
    service.write_text("[Service]\nExecStart=/bin/true\n")
    shutil.copytree(UNITS / "nova-compute.service.d", tmp_path / "nova-compute.service.d")
    assert verify(service) == (0, "")


def test_agent_unit_keeps_the_mount_over_restarts():
    """tests/chaos/test_supervisor_restarted.py depends on these settings."""
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert settings["Type"] == "notify"
    assert int(settings["FileDescriptorStoreMax"]) >= fd_holder.DESCRIPTORS
    assert settings["KillMode"] == "mixed"
    assert settings["ExecStart"].startswith(f"{INSTALLED_AT}/acstor-agent ")


@needs("systemd-sysusers")
def test_nova_user_is_in_the_groups_for_control_socket_and_mirrors(tmp_path):
    make_users(tmp_path, "acstor.conf", "acstor-nova.conf")
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^acstor:.*:nova$", groups, re.MULTILINE)
    assert re.search(r"^kvm:.*:nova$", groups, re.MULTILINE)


@needs("systemd-sysusers")
def test_host_without_nova_gets_no_nova_user(tmp_path):
    make_users(tmp_path, "acstor.conf", "acstor-controller.conf")
    assert "nova" not in (tmp_path / "etc/passwd").read_text()
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^acstor:.*:$", groups, re.MULTILINE)
    assert re.search(r"^kvm:.*:$", groups, re.MULTILINE)


def test_apparmor_rules_match_those_of_the_check():
    rules = (ROOT / "etc/apparmor.d/local/usr.lib.libvirt.virt-aa-helper").read_text()
    assert f"/{host_check.AA_LOCAL}".endswith("/local/usr.lib.libvirt.virt-aa-helper")
    assert "/var/lib/acstor/mirror/images/*.raw r," in rules


FOLDERS = ("acstor", "acstor/cache", "acstor/mirror", "acstor/state", "acstor/vault")
OTHERS = [
    "acstor-glance-listener.service",
    "acstor-decision.service",
    "acstor-checkpointd.service",
]
GATEWAY = "acstor-glance-gateway.service"
API = "acstor-decision-api.service"
SCORES = {
    "acstor-agent.service": 5.0,
    "acstor-glance-listener.service": 3.0,
    "acstor-decision.service": 1.5,
    API: 1.5,
    "acstor-checkpointd.service": 2.2,
    GATEWAY: 1.5,
}
"""Highest exposure by ``systemd-analyze security``, from 0 to 10.

The agent's mounts are visible to all, so it has no mount namespace: that counts 2.5. The checkpoint
daemon replaces disks by copies and keeps their owners: 0.4 more.
"""


@needs("systemd-analyze")
@pytest.mark.parametrize("name", OTHERS)
def test_systemd_verifies_the_controller_units(tmp_path, name):
    unit = tmp_path / name
    unit.write_text((UNITS / name).read_text().replace(INSTALLED_AT, str(agents.BIN)))
    assert run("systemd-analyze", "verify", "--man=no", unit) == (0, "")


@needs("systemd-analyze")
@pytest.mark.parametrize(("name", "place"), [(GATEWAY, "/opt/glance"), (API, "/opt/acstor")])
def test_systemd_verifies_the_units_of_wsgi_servers(tmp_path, name, place):
    """The servers are not installed here; the gateway's belongs to Glance's environment."""
    text = (UNITS / name).read_text()
    assert f"ExecStart={place}/bin/uwsgi " in text
    unit = tmp_path / name
    unit.write_text(text.replace(f"{place}/bin/uwsgi", "/bin/true"))
    assert verify(unit) == (0, "")


@needs("systemd-analyze")
@pytest.mark.parametrize("name", SCORES)
def test_units_stay_below_their_exposure_score(name):
    _, said = run("systemd-analyze", "security", "--offline=true", "--no-pager", UNITS / name)
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert score, said
    assert float(score[1]) <= SCORES[name], said


@pytest.mark.parametrize("name", SCORES)
def test_units_disable_core_dumps(name):
    assert re.search(r"^LimitCORE=0$", (UNITS / name).read_text(), re.MULTILINE)


def test_agent_stays_in_the_mount_namespace_of_the_host():
    """Each of these gives a unit a mount namespace of its own (systemd.exec(5), SANDBOXING)."""
    text = re.sub(r"^#.*$", "", UNIT.read_text(), flags=re.MULTILINE)
    forbidden = (
        r"^(Private(Tmp|Devices|Mounts|IPC)|Protect(System|Home|Proc|Kernel\w+|ControlGroups)"
        r"|\w*Paths|ProcSubset|BindPaths|RootDirectory|DynamicUser|LoadCredential|MountFlags)="
    )
    assert not re.search(forbidden, text, re.MULTILINE)


@needs("systemd-sysusers")
def test_service_users_have_no_login_and_only_nova_is_in_the_group(tmp_path):
    make_users(tmp_path, "acstor.conf", "acstor-nova.conf", "acstor-controller.conf")
    users = dict(line.split(":", 1) for line in (tmp_path / "etc/passwd").read_text().splitlines())
    assert {"acstor-glance", "acstor-decision", sandbox.USERS[0]} <= set(users)
    assert all(users[name].endswith("nologin") for name in users if name.startswith("acstor"))
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^acstor:.*:nova$", groups, re.MULTILINE)  # and no other member


@needs("systemd-tmpfiles")
def test_folders_are_created_with_restricted_modes(tmp_path):
    make_users(tmp_path, "acstor.conf")
    config = ROOT / "etc/tmpfiles.d/acstor.conf"
    status, said = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", config)
    assert status == 0, said
    modes = {
        path: (tmp_path / path).stat().st_mode & 0o7777
        for path in ("etc/acstor", *(f"var/lib/{name}" for name in FOLDERS))
    }
    assert modes == {
        "etc/acstor": 0o750,
        "var/lib/acstor": 0o711,
        "var/lib/acstor/cache": 0o700,
        "var/lib/acstor/mirror": 0o755,
        "var/lib/acstor/state": 0o700,
        "var/lib/acstor/vault": 0o700,
    }


def test_guides_create_files_with_passwords_readable_only_by_root():
    """Before the first write, so that the content is never readable by others."""
    text = (ROOT / "doc/source/install/index.rst").read_text()
    edited = re.findall(r"^ +\$EDITOR (/etc/acstor/\S+)", text, re.MULTILINE)
    assert len(edited) == 3
    for file in edited:
        before = text[: text.index(f"$EDITOR {file}")]
        assert f"install -m 600 /dev/null {file} " in before
    assert not re.search(r"install -d /etc/acstor", text)


@needs("apparmor_parser")
def test_apparmor_profile_of_the_agent_parses(tmp_path):
    profile = ROOT / "etc/apparmor.d/acstor-agent"
    parse = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", "--base", "/etc/apparmor.d"]
    status, said = run(*parse, profile)
    assert status == 0, said
    status, whole = run(*parse, "--preprocess", profile)
    reached = [line.strip() for line in whole.splitlines() if "systemd/private" in line]
    assert status == 0 and [line for line in reached if not line.startswith(("#", "deny "))] == []
    broken = tmp_path / "broken"
    broken.write_text(profile.read_text().replace("capability chown,", "capability chwon,"))
    assert run(*parse, broken)[0] != 0
    name = re.search(r"^profile (\S+) ", profile.read_text(), re.MULTILINE)[1]
    assert f"AppArmorProfile=-{name}\n" in UNIT.read_text()
