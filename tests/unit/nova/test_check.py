# SPDX-License-Identifier: Apache-2.0
"""What the check of a compute host finds; without Nova, on a host that is made of files."""

import json
import sys

import pytest

from acstor_common import control_wire
from acstor_nova import check
from acstor_nova.cmd import manage
from tests.fakes import scripted_agent

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


class Machine:
    """A compute host's files."""

    def __init__(self, folder):
        self.folder = folder
        self.mount_point = folder / "mirror"
        self.put("proc/self/mountinfo", f"36 1 0:32 / {self.mount_point} rw - fuse.acstor acstor\n")
        self.put("proc/sys/kernel/osrelease", "6.12.0-1-amd64\n")
        self.mount_point.mkdir()
        (folder / "instances/_base").mkdir(parents=True)
        self.nova_conf = folder / "nova.conf"
        self.configure()
        self.fallbacks = {"not-raw": 0}

    def put(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def configure(self, images_type="acstor"):
        self.nova_conf.write_text(
            f"[DEFAULT]\nconfig_source = acstor\ninstances_path = {self.folder}/instances\n"
            f"[libvirt]\nimages_type = {images_type}\n"
            f"[acstor]\ndriver = acstor\ncontrol_socket = {self.folder}/control.sock\n"
            f"mount_point = {self.mount_point}\nagent_timeout_s = 20\n"
        )

    def status(self, mount_point=None):
        return {
            "worker_pid": 7,
            "mount_point": str(mount_point or self.mount_point),
            "nova": {"fallbacks": self.fallbacks},
        }

    def look(self):
        """Return what is not well, without Nova, which is not in this virtualenv."""
        findings = check.check(check.load_conf([str(self.nova_conf)]), self.folder)
        bad = {found.what: found for found in findings if found.level != check.Level.OK}
        bad.pop("nova", None)
        return bad


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def agent(machine):
    answers = {control_wire.Status: lambda r: scripted_agent.done(machine.status())(r)}
    with scripted_agent.running(machine.folder / "control.sock", answers) as running:
        yield running


def test_host_in_order_has_nothing_to_mend(machine, agent):
    assert machine.look() == {}


def test_stock_backend_is_named(machine, agent):
    machine.configure("qcow2")
    found = machine.look()["[libvirt] images_type"]
    assert (found.level, found.detail) == ("error", "it is qcow2")


def test_agent_that_is_away_is_named(machine):
    assert machine.look()["agent"].level == "error"


def test_other_mount_point_is_named(machine, agent):
    agent.answers[control_wire.Status] = scripted_agent.done(machine.status("/elsewhere"))
    assert "/elsewhere" in machine.look()["mount_point"].detail


def test_mirror_that_is_not_mounted_is_named(machine, agent):
    machine.put("proc/self/mountinfo", "36 1 0:32 / / rw - ext4 /dev/sda rw\n")
    assert machine.look()["mirror"].level == "error"


def test_fallbacks_are_shown(machine, agent):
    machine.fallbacks = {"not-raw": 2, "signed": 0}
    assert machine.look()["fallbacks"].detail == "Nova did without acstor: not-raw 2"


def test_dangling_link_is_shown(machine, agent):
    link = machine.folder / "instances/_base/abc"
    link.symlink_to(f"/nowhere/images/{IMAGE}.raw")
    (machine.folder / "instances/_base/other").symlink_to("/nowhere")
    found = machine.look()["image cache"]
    assert found.level == "warning"
    assert str(link) in found.detail


def test_old_kernel_is_a_warning(machine, agent):
    machine.put("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    assert machine.look()["kernel"].level == "warning"


@pytest.mark.parametrize(
    ("rules", "is_well"), [("/var/lib/nova/** r,", False), ("/**.raw r,", True), (None, True)]
)
def test_apparmor_must_let_libvirt_read_mirrors(machine, agent, rules, is_well):
    machine.put("sys/module/apparmor/parameters/enabled", "Y\n")
    if rules:
        machine.put(check.AA_HELPER, rules)
    assert ("apparmor" not in machine.look()) is is_well
    if rules and not is_well:
        machine.put(check.AA_LOCAL, f"{machine.mount_point}/images/* r,")
        assert "apparmor" not in machine.look()


@pytest.mark.parametrize(("switch", "is_well"), [("1 1", True), ("0 0", False)])
def test_selinux_must_let_guests_read_mirrors(machine, agent, switch, is_well):
    machine.put("sys/fs/selinux/enforce", "1")
    machine.put("sys/fs/selinux/booleans/virt_use_fusefs", switch)
    assert ("selinux" not in machine.look()) is is_well


def test_command_prints_findings_and_its_status_says_whether_all_is_well(
    machine, agent, monkeypatch, capsys
):
    found = [check.Finding("agent", check.Level.OK, "there")]
    monkeypatch.setattr(check, "check", lambda conf: found)
    argv = ["acstor-nova-manage", "check", "--config-file", str(machine.nova_conf)]
    monkeypatch.setattr(sys, "argv", [*argv, "--json"])
    assert manage.main() == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == [{"what": "agent", "level": "ok", "detail": "there", "remedy": ""}]
    found.append(check.Finding("mirror", check.Level.ERROR, "gone", "Mount it."))
    monkeypatch.setattr(sys, "argv", argv)
    assert manage.main() == 1
    assert "Mount it." in capsys.readouterr().out
    argv[-1] = "/nowhere/nova.conf"
    assert manage.main() == 1
    assert "/nowhere/nova.conf" in capsys.readouterr().err
