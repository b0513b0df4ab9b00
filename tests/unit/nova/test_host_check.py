# SPDX-License-Identifier: Apache-2.0
"""The check of a compute host, without Nova, on a host simulated by files."""

import json
import os
import struct
import sys

import pytest

from acstor_common.model import geometry
from acstor_common.service import version
from acstor_common.wire import control_wire
from acstor_nova import compute_user
from acstor_nova.checks import host_check
from acstor_nova.cmd import manage
from tests.fakes import gateway_server
from tests.fakes import scripted_agent

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
OTHER = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
MIB = geometry.MIB
LIMIT_BYTES = 100 * MIB


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
        self.fallbacks, self.on_dead_mounts = {"disk-format": 0}, []
        self.user = compute_user.current_user()
        self.kept, self.images, self.promised_bytes = "host", {}, 0

    def put(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def configure(self, images_type="acstor", more="", own=""):
        self.nova_conf.write_text(
            f"{more}\n"
            f"[DEFAULT]\nconfig_source = acstor\ninstances_path = {self.folder}/instances\n"
            f"[libvirt]\nimages_type = {images_type}\n"
            f"[acstor]\ndriver = acstor\ncontrol_socket = {self.folder}/control.sock\n"
            f"mount_point = {self.mount_point}\n{own}\n"
        )

    def status(self, mount_point=None):
        return {
            "version": version.installed(),
            "ring": {"epoch": 7, "hosts": 2},
            "worker_pid": 7,
            "mount_point": str(mount_point or self.mount_point),
            "nova": {"fallbacks": self.fallbacks},
            "guests": {"on_dead_mounts": self.on_dead_mounts},
            "keep_images": self.kept,
            "cache": {"limit_bytes": LIMIT_BYTES, "reserved_bytes": self.promised_bytes},
            "images": self.images,
        }

    def make_instance(self, image_id, name):
        """Make an instance's disk on the link of an image."""
        link = self.folder / "instances/_base" / image_id[-4:]
        mirror = self.mount_point / "images" / f"{image_id}.raw"
        mirror.parent.mkdir(exist_ok=True)
        mirror.touch()
        if not link.is_symlink():
            link.symlink_to(mirror)
        disk = self.folder / "instances" / name / "disk"
        disk.parent.mkdir()
        disk.write_bytes(struct.pack(">4sIQI", b"QFI\xfb", 3, 32, len(str(link))).ljust(32, b"\0"))
        with disk.open("ab") as file:
            file.write(str(link).encode())
        return disk

    def image(self, state="fully_cached", size_bytes=10 * MIB, **changes):
        """Return the agent's status of an image; without a state it is not pinned."""
        whole = {
            "state": state,
            "why": "",
            "cached_share": 1.0,
            "remaining_s": None,
            "shortfall_bytes": 0,
        }
        whole |= {"total_bytes": size_bytes, "remaining_bytes": 0}
        return {"size_bytes": size_bytes, "fill": {**whole, **changes} if state else None}

    def findings(self):
        """Return all findings by subject; problems take precedence."""
        found = host_check.check_host(
            host_check.load_conf([str(self.nova_conf)]), self.user, self.folder
        )
        found.sort(key=lambda one: one.level != host_check.Level.OK)
        return {one.what: one for one in found}

    def look(self):
        """Return the problems, without Nova, which is not in this virtualenv."""
        every = self.findings()
        every.pop("nova")
        return {what: found for what, found in every.items() if found.level != host_check.Level.OK}


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def agent(machine):
    answers = {control_wire.Status: lambda r: scripted_agent.done(machine.status())(r)}
    with scripted_agent.running(machine.folder / "control.sock", answers) as running:
        yield running


def test_healthy_host_has_no_problem(machine, agent):
    assert machine.look() == {}


def test_stock_image_backend_is_an_error(machine, agent):
    machine.configure("qcow2")
    found = machine.look()["[libvirt] images_type"]
    assert (found.level, found.detail) == ("error", "it is qcow2")


def test_missing_library_is_named(machine, agent, monkeypatch):
    """The package may be installed without its dependencies."""
    monkeypatch.setitem(sys.modules, "acstor_nova.evacuation.recovering_backend", None)
    found = machine.look()["libraries"]
    assert (
        found.level == "error"
        and "no module acstor_nova.evacuation.recovering_backend" in found.detail
    )


def test_images_type_may_come_from_the_config_source(machine, agent):
    text = machine.nova_conf.read_text().replace("images_type = acstor", "")
    machine.nova_conf.write_text(text)
    assert machine.look() == {}
    machine.nova_conf.write_text(text.replace("config_source = acstor", ""))
    assert "acstor-nova-manage enable" in machine.look()["[DEFAULT] config_source"].remedy


def test_gateway_is_probed(machine, agent):
    with gateway_server.running() as gateway:
        machine.configure(own=f"gateway_url = {gateway.url}")
        assert machine.findings()["[acstor] gateway_url"].detail == gateway.url
        gateway.refuse("GET", 404, "there is nothing here")
        assert "(404): there is nothing here" in machine.look()["[acstor] gateway_url"].detail
    found = machine.look()["[acstor] gateway_url"]
    assert found.level == "warning" and "no answer from the gateway at" in found.detail


def test_unreachable_agent_is_an_error(machine):
    assert machine.look()["agent"].level == "error"


def test_different_mount_point_of_the_agent_is_named(machine, agent):
    agent.answers[control_wire.Status] = scripted_agent.done(machine.status("/elsewhere"))
    assert "/elsewhere" in machine.look()["mount_point"].detail


def test_unmounted_mirror_is_an_error(machine, agent):
    machine.put("proc/self/mountinfo", "36 1 0:32 / / rw - ext4 /dev/sda rw\n")
    assert machine.look()["mirror"].level == "error"


def test_fallbacks_are_shown(machine, agent):
    machine.fallbacks = {"disk-format": 2, "signed": 0}
    assert machine.look()["fallbacks"].detail == "Nova fell back to its own download: disk-format 2"


def test_guest_on_a_dead_mount_is_an_error(machine, agent):
    assert machine.findings()["guests"].level == "ok"
    machine.on_dead_mounts = ["s1", "s2"]
    found = machine.look()["guests"]
    assert found.level == "error" and "s1, s2" in found.detail and "reboot --hard" in found.remedy


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
        machine.put(host_check.AA_HELPER, rules)
    assert ("apparmor" not in machine.look()) is is_well
    if rules and not is_well:
        machine.put(host_check.AA_LOCAL, f"{machine.mount_point}/images/* r,")
        assert "apparmor" not in machine.look()


@pytest.mark.parametrize(("switch", "is_well"), [("1 1", True), ("0 0", False)])
def test_selinux_must_let_guests_read_mirrors(machine, agent, switch, is_well):
    machine.put("sys/fs/selinux/enforce", "1")
    machine.put("sys/fs/selinux/booleans/virt_use_fusefs", switch)
    assert ("selinux" not in machine.look()) is is_well


@pytest.mark.parametrize(
    ("more", "is_well"),
    [
        ("", True),
        ("[image_cache]\nmanager_interval = 0", True),
        ("[image_cache]\nmanager_interval = 5399", True),
        ("[image_cache]\nmanager_interval = 5400", False),
        ("[image_cache]\nmanager_interval = -1", False),
        ("[DEFAULT]\nimage_cache_manager_interval = -1", False),
    ],
)
def test_image_cache_manager_must_run_often_enough(machine, agent, more, is_well):
    machine.configure(more=more)
    assert machine.look().keys() == (set() if is_well else {"[image_cache] manager_interval"})


@pytest.mark.parametrize(
    ("interval_s", "what"), [(5400, "images never count as unused"), (-1, "lose their pins")]
)
def test_effect_of_a_wrong_manager_interval_is_named(machine, agent, interval_s, what):
    machine.configure(more=f"[image_cache]\nmanager_interval = {interval_s}")
    assert what in machine.look()["[image_cache] manager_interval"].detail


def test_unpinned_images_are_a_warning_with_the_dependent_instances(machine, agent):
    machine.make_instance(IMAGE, "one")
    machine.make_instance(IMAGE, "two")
    machine.kept, machine.images = "none", {IMAGE: machine.image(None)}
    found = machine.look()["keep_images"]
    assert found.level == "warning" and "2 instances of this host always depend" in found.detail
    machine.kept, machine.images = "cloud", {IMAGE: machine.image()}
    assert machine.look() == {}


@pytest.mark.parametrize("is_known", [True, False])
def test_future_lack_of_cache_space_is_a_warning(machine, agent, is_known):
    """The image of an instance may not be pinned yet."""
    machine.make_instance(IMAGE, "one")
    machine.make_instance(OTHER, "two")
    machine.promised_bytes = 70 * MIB
    size_bytes = 21 * MIB if is_known else None
    machine.images = {IMAGE: machine.image(), OTHER: machine.image(None, size_bytes)}
    found = machine.findings()["space for images"]
    assert "1 images of instances are not pinned yet" in found.detail
    if not is_known:
        assert found.level == "ok" and "1 of unknown size" in found.detail
        return
    assert found.level == "warning" and "will be no space" in found.detail
    assert f"to {-(-91 * MIB * 10 // 9)} or more" in found.remedy
    machine.images[OTHER] = machine.image(None, 20 * MIB)
    assert machine.look() == {}


def test_image_without_cache_space_is_named_with_the_needed_limit(machine, agent):
    machine.make_instance(IMAGE, "one")
    machine.promised_bytes = 10 * MIB
    lacks = machine.image("no_space", None, cached_share=None, shortfall_bytes=90 * MIB)
    machine.images = {IMAGE: lacks}
    found = machine.look()["space for images"]
    assert f"{IMAGE} lacks 90 MiB" in found.detail
    assert f"to {200 * MIB} or more" in found.remedy
    machine.images = {IMAGE: machine.image()}
    assert machine.look() == {}


@pytest.mark.parametrize(("promised_bytes", "is_well"), [(80 * MIB, True), (81 * MIB, False)])
def test_cache_nearly_full_of_pinned_images_is_a_warning(machine, agent, promised_bytes, is_well):
    machine.promised_bytes = promised_bytes
    assert ("space for images" not in machine.look()) is is_well


def test_filling_images_are_information_and_failing_ones_a_warning(machine, agent):
    for number in range(3):
        machine.make_instance(IMAGE, f"one{number}")
    machine.make_instance(OTHER, "two")
    machine.make_instance("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13", "three")
    filling = machine.image("filling", cached_share=0.4, remaining_s=12.0)
    machine.images = {IMAGE: filling, OTHER: machine.image()}
    assert machine.look() == {}
    detail = machine.findings()["cached images"].detail
    assert detail.startswith("4 instances still depend on other hosts or the image store: ")
    assert f"{IMAGE} filling 40 %, 12 s left" in detail and "0a13 not pinned yet" in detail
    machine.images[IMAGE] = machine.image("failing", why="the source is away", cached_share=None)
    found = machine.look()["failing images"]
    assert found.detail == f"{IMAGE}: the source is away"
    machine.images[IMAGE] = machine.image()
    (machine.folder / "instances/three/disk").unlink()
    assert machine.look() == {}
    assert machine.findings()["cached images"].detail == "all 2 images of instances"


def test_paused_image_of_an_instance_is_a_warning(machine, agent):
    machine.make_instance(IMAGE, "one")
    machine.images = {IMAGE: machine.image("paused", cached_share=0.4)}
    found = machine.look()["paused images"]
    assert IMAGE in found.detail and "image resume" in found.remedy


def test_image_without_a_map_does_not_count_as_pinned(machine, agent):
    machine.make_instance(IMAGE, "one")
    machine.promised_bytes = 75 * MIB
    nothing = {"cached_share": None, "total_bytes": 0, "remaining_bytes": None}
    machine.images = {IMAGE: machine.image("failing", 21 * MIB, why="no map", **nothing)}
    assert "will be no space" in machine.look()["space for images"].detail
    machine.images = {IMAGE: machine.image("fully_cached", 21 * MIB, total_bytes=0)}  # only zeros
    assert machine.look() == {}


def test_unreadable_disks_are_a_warning(machine, agent):
    machine.make_instance(IMAGE, "one")
    machine.images = {IMAGE: machine.image()}
    disk = machine.folder / "instances/two/disk"
    disk.parent.mkdir()
    disk.symlink_to(disk)  # unreadable even for root
    found = machine.look()["instances"]
    assert found.level == "warning" and f"{disk}: Too many levels" in found.detail
    disk.unlink()
    assert machine.look() == {}
    (machine.folder / "instances").rename(machine.folder / "elsewhere")
    every = machine.findings()
    assert f"{machine.folder}/instances: No such file" in every["instances"].detail
    assert "no instance on a mirror was found in" in every["cached images"].detail


def test_disks_without_a_mirror_are_ignored(machine, agent):
    machine.make_instance(IMAGE, "one").write_bytes(b"no qcow2")
    (machine.folder / "instances/two").mkdir()
    machine.kept = "none"
    assert "0 instances" in machine.look()["keep_images"].detail


def test_check_command_prints_findings_and_exits_with_their_status(
    machine, agent, monkeypatch, capsys
):
    found = [host_check.CheckResult("agent", host_check.Level.OK, "there")]
    monkeypatch.setattr(host_check, "check_host", lambda conf, user: found)
    argv = ["acstor-nova-manage", "check", "--config-file", str(machine.nova_conf)]
    monkeypatch.setattr(sys, "argv", [*argv, "--json"])
    assert manage.main() == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == [{"what": "agent", "level": "ok", "detail": "there", "remedy": ""}]
    found.append(host_check.CheckResult("mirror", host_check.Level.ERROR, "gone", "Mount it."))
    monkeypatch.setattr(sys, "argv", argv)
    assert manage.main() == 1
    assert "Mount it." in capsys.readouterr().out
    argv[-1] = "/nowhere/nova.conf"
    assert manage.main() == 1
    assert "/nowhere/nova.conf" in capsys.readouterr().err
    argv[-1] = str(machine.nova_conf)
    monkeypatch.setattr(sys, "argv", [*argv, "--user", "nobody-of-that-name"])
    assert manage.main() == 1
    assert "there is no user nobody-of-that-name" in capsys.readouterr().err


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look as somebody else")


@needs_root
def test_socket_closed_to_nova_compute_is_an_error(machine, agent):
    for folder in (machine.folder, *machine.folder.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    os.chmod(machine.folder / "control.sock", 0o660)
    assert machine.look() == {}
    machine.user = compute_user.account("nobody")
    found = machine.look()["agent"]
    assert found.level == "error" and "control_group" in found.remedy
    assert "for user root and group root (mode 0660" in found.detail
    assert "this process is user nobody, groups nogroup" in found.detail
    assert (os.geteuid(), os.getegid()) == (0, 0)
    machine.user = machine.user._replace(groups=machine.user.groups | {0})
    assert "agent" not in machine.look()


@needs_root
def test_mirror_closed_to_nova_compute_is_an_error(machine, agent):
    for folder in (machine.folder, *machine.folder.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    machine.mount_point.chmod(0o550)
    machine.user = compute_user.account("nobody")
    found = machine.look()["mirror"]
    assert found.level == "error" and "mirror_group" in found.remedy
    assert "for root and group root, and user nobody" in found.detail


@needs_root
def test_missing_group_is_a_warning_only_if_it_opens_socket_or_mirror(machine, agent):
    machine.user = compute_user.account("nobody")._replace(groups=frozenset({0}), pid=70)
    assert "checked as" not in machine.look()
    os.chown(machine.mount_point, -1, compute_user.account("nobody").gid)
    found = machine.look()["checked as"]
    assert found.level == "warning" and "Restart nova-compute" in found.remedy
