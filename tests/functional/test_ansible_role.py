# SPDX-License-Identifier: Apache-2.0
"""The Ansible role: a controller and two compute hosts enabled, upgraded under load, and cleaned.

Broker, Keystone and Glance are the lab's. acstor is installed from its packages on Debian 13, and
an agent alone on Debian 12. The hosts have Nova's library from the distribution, and a process that
reads nova-compute's configuration in place of nova-compute. Each test continues the former one.

"""

import contextlib
import copy
import json

import pytest

from acstor_common import errors
from tests.fakes import hosts
from tests.lab import ansible_control
from tests.lab import debian_root
from tests.lab import documents
from tests.lab import local
from tests.lab import runs
from tests.lab import systemd_host
from tests.lab.openstack import api
from tests.lab.openstack import uploads

pytestmark = [
    hosts.needs_fuse,
    hosts.needs_take_over,
    pytest.mark.packages,
    pytest.mark.timeout(7200),
]

ROOT_PACKAGES = (
    *("systemd-sysv", "dbus", "openssh-server", "python3-apt"),
    *("nova-common", "qemu-utils", "fuse3", "uwsgi-plugin-python3", "python3-flask"),
    *("python3-cotyledon", "python3-msgspec", "python3-xxhash", "python3-glance-store"),
)
"""Packages for SSH and Ansible, then most dependencies of acstor's packages, which take minutes."""
OLD_ROOT_PACKAGES = ("systemd-sysv", "dbus", "openssh-server", "python3-apt", "fuse3", "qemu-utils")
OLD, OLD_ADDRESS = "compute3", "127.77.0.13"
ADDRESSES = {"controller1": "127.77.0.1", "compute1": "127.77.0.11", "compute2": "127.77.0.12"}
COMPUTES = ("compute1", "compute2")
CHECK = "ansible-playbook check.yml"
MIRROR = "/var/lib/acstor/mirror"
MIB = 1 << 20
DATA = local.random_bytes(24 * MIB, seed=19)
DEADLINE_S = 120.0
LEFT_BY_DESIGN = {"/var/lib/acstor-decision"}
FIND = """
find / -xdev -name '*acstor*' -not -path '/proc/*' -not -path '/sys/*' \\
    -not -path '/var/log/*' -not -path '/var/lib/systemd/*' -not -path '/var/lib/apt/*' \\
    -not -path '/root/*' -not -path '/etc/systemd/system/acstor-decision-api.service.d*' \\
    -not -path '/var/lib/acstor-decision/*'
"""

API_UNIT = """\
[Service]
ExecStart=
ExecStart=/usr/bin/uwsgi --plugin python3 --http-socket 127.77.0.1:9710 \\
    --module acstor_decision.wsgi:application --master --threads 16 --enable-threads --lazy-apps \\
    --need-app --die-on-term --add-header "Connection: close"
"""

NOVA_COMPUTE = """\
import signal, sys
from nova import config
from nova.conf import CONF
config.parse_args(sys.argv)
print("images_type", CONF.libvirt.images_type, flush=True)
signal.pause()
"""
NOVA_UNIT = """\
[Service]
User=nova
ExecStart=/usr/bin/python3 /usr/local/bin/nova-compute
"""

READER = """\
import os, random, sys
mirror, same = (os.open(path, os.O_RDONLY) for path in sys.argv[1:3])
size = os.fstat(same).st_size
reads = 0
while True:
    at = random.randrange(size)
    os.posix_fadvise(mirror, 0, 0, os.POSIX_FADV_DONTNEED)
    if os.pread(mirror, 65536, at) != os.pread(same, 65536, at):
        sys.exit("other bytes at %d" % at)
    reads += 1
    with open("/run/reads.new", "w") as reported:
        reported.write(str(reads))
    os.replace("/run/reads.new", "/run/reads")
"""


class Rig:
    """Three hosts, their inventory, and a cloud around them."""

    def __init__(self, lab, control, machines, packages, hosts_file):
        self.lab, self.machines, self.packages = lab, machines, packages
        self.control, self.inventory = control, hosts_file
        self.play = control.play
        self.enable = documents.section("install/ansible.rst", "Enabling compute hosts")[-1]
        [self.enable_canary] = documents.section("install/ansible.rst", "Rolling it out")
        words = documents.section("install/ansible.rst", "Disabling and removing")
        self.disable, self.remove = words

    def run(self, name, line):
        """Run a shell command on a host, and return its output."""
        return self.machines[name].run("bash", "-ec", f"{{ {line}\n}} 2>&1")

    def ring(self, name):
        table = json.loads(self.run(name, "acstor-agent-ctl --json ring"))
        return {host["host"] for host in table["hosts"]}

    def version(self, name, package="acstor-agent"):
        return self.run(name, f"dpkg-query --show -f '${{Version}}' {package}")

    def images_type(self, name):
        """Return the images_type of the running nova-compute, as soon as it logs it."""
        runs.wait_for(lambda: bool(self._said(name)), DEADLINE_S, "nova-compute", str)
        return self._said(name)[-1]

    def _said(self, name):
        """Return the output of the running nova-compute, without that of earlier ones."""
        invocation = "$(systemctl show --value -p InvocationID nova-compute)"
        journal = f"journalctl --no-pager --output=cat _SYSTEMD_INVOCATION_ID={invocation}"
        return self.run(name, f"{journal} --grep=images_type || true").split()

    def agent_pid(self, name):
        return self.run(name, "systemctl show --value -p MainPID acstor-agent").strip()

    def is_there(self, name, path):
        return self.machines[name].path(path).exists()


def own(address):
    """Return options that let several agents share one loopback."""
    listen = f"{address}:9464"
    agent = {"metrics_listen": listen, "traffic_interfaces": "lo", "peer_security": "secure"}
    return {"acstor_address": address, "acstor_agent_options": {"acstor_agent": agent}}


def inventory(lab, reached, packages):
    """Return an inventory as an operator writes it."""
    computes = {name: reached[name] | own(ADDRESSES[name]) for name in COMPUTES}
    quiet = {"metrics_listen": ""}
    return {
        "acstor_controllers": {"hosts": {"controller1": reached["controller1"]}},
        "acstor_glance": {"hosts": {"controller1": {}}},
        "acstor_computes": {"hosts": computes},
        "acstor_canary": {"hosts": {"compute1": {}}},
        "all": {
            "vars": {
                "acstor_packages": str(packages),
                "acstor_transport_url": lab.rabbitmq.url,
                "acstor_auth_url": lab.keystone.auth_url,
                "acstor_user": "acstor",
                "acstor_agent_user": "acstor",
                "acstor_project": "service",
                "acstor_password": api.PASSWORD,
                "acstor_agent_password": api.PASSWORD,
                "acstor_region": api.REGION,
                "acstor_api_url": "http://127.77.0.1:9710",
                "acstor_api_check_url": "http://127.77.0.1:9710/healthz",
                "acstor_import_plugin": False,
                "acstor_builds_boot_images": False,
                "acstor_decision_options": {"acstor_decision": quiet},
                "acstor_glance_options": {"acstor_glance": quiet},
            }
        },
    }


@contextlib.contextmanager
def booted(folder, names, release="trixie", packages=ROOT_PACKAGES):
    """Boot clean hosts of a release of Debian; yield them by name."""
    root = debian_root.root(release, *packages)
    folder.joinpath("same").write_bytes(DATA)
    with contextlib.ExitStack() as stack:
        made = {}
        for name in names:
            own = folder / name
            own.mkdir()
            machine = systemd_host.SystemdHost(
                own, [], {"/srv/same": folder / "same"}, root=root, has_network=True
            )
            made[name] = stack.enter_context(machine)
            machine.run("hostname", name)
        yield made


def prepare(name, machine):
    """Install the lab's own parts on a host."""
    if name in COMPUTES:
        machine.path("/usr/local/bin/nova-compute").write_text(NOVA_COMPUTE)
        machine.path("/etc/systemd/system/nova-compute.service").write_text(NOVA_UNIT)
        machine.path("/root/reader").write_text(READER)
    else:
        dropin = machine.path("/etc/systemd/system/acstor-decision-api.service.d")
        dropin.mkdir()
        dropin.joinpath("lab.conf").write_text(API_UNIT)
    machine.run("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def rig(image_services, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ansible")
    try:
        packages = debian_root.built("trixie")
        ansible_control.install()
        control = ansible_control.Control(folder)
        with booted(folder, ADDRESSES) as machines:
            reached = {
                name: ansible_control.serve_ssh(machine, ADDRESSES[name], control.key)
                for name, machine in machines.items()
            }
            for name, machine in machines.items():
                prepare(name, machine)
            control.run(documents.section("install/ansible.rst", "Enabling compute hosts")[:-1])
            hosts_file = inventory(image_services, reached, packages)
            control.edit(hosts_file)
            yield Rig(image_services, control, machines, packages, hosts_file)
    except errors.Unusable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def image_id(rig):
    """Return an image that the role's listener has prepared."""
    uploaded = uploads.Images(rig.lab)
    made = uploaded.upload(DATA)
    uploaded.wait_state(made)
    yield made
    uploaded.clean_up()


def test_check_mode_changes_nothing_on_clean_hosts(rig):
    played = rig.play(rig.enable, "--check")
    assert not played.failed, played.said
    assert min(played.changed.values()) > 0
    for name in ADDRESSES:
        assert not rig.is_there(name, "/etc/apt/sources.list.d/acstor.list")
        assert not rig.is_there(name, "/etc/acstor")


def test_failed_canary_leaves_the_other_hosts_unchanged(rig):
    wrong = ("-e", "acstor_agent_password=wrong", "-e", "acstor_joins_within_s=9")
    played = rig.play(rig.enable, *wrong)
    assert played.failed == {"compute1"}, played.said
    assert "Keystone refuses the credentials" in played.said, played.said
    assert not rig.is_there("compute2", "/etc/apt/sources.list.d/acstor.list")


def test_canary_is_enabled_alone(rig):
    played = rig.play(rig.enable_canary)
    assert not played.failed, played.said
    assert rig.ring("compute1") == {"compute1"}
    assert not rig.play(CHECK, "--limit", "acstor_canary").failed
    assert not rig.is_there("compute2", "/etc/apt/sources.list.d/acstor.list")


def test_next_run_enables_the_other_hosts(rig):
    played = rig.play(rig.enable)
    assert not played.failed, played.said
    assert played.changed["compute1"] == 0, played.said
    for name in COMPUTES:
        assert rig.ring(name) == set(COMPUTES)
        assert rig.images_type(name) == "acstor"
        assert rig.run(name, "stat -c '%a %U' /etc/acstor/acstor-agent.conf") == "600 root\n"
        rig.run(name, "acstor-nova-manage check")
    assert not rig.play(CHECK).failed


def test_mirrors_equal_the_image(rig, image_id):
    for name in COMPUTES:
        rig.run(name, f"cmp {MIRROR}/images/{image_id}.raw /srv/same")


@pytest.mark.parametrize("arguments", [(), ("--check",)], ids=["again", "check mode"])
def test_second_run_changes_nothing(rig, arguments):
    played = rig.play(rig.enable, *arguments)
    assert not played.failed, played.said
    assert played.changed == dict.fromkeys(ADDRESSES, 0), played.said


def test_check_names_a_host_whose_agent_is_stopped(rig):
    rig.run("compute2", "systemctl stop acstor-agent")
    played = rig.play(CHECK, "-e", "acstor_joins_within_s=3")
    assert played.failed == {"compute2"}, played.said
    rig.run("compute2", "systemctl start acstor-agent")
    assert not rig.play(CHECK).failed


def test_agent_alone_is_installed_and_removed_on_debian_12(rig, image_id, tmp_path):
    packages = debian_root.built("bookworm")
    with booted(tmp_path, [OLD], "bookworm", OLD_ROOT_PACKAGES) as machines:
        machine = rig.machines[OLD] = machines[OLD]
        reached = ansible_control.serve_ssh(machine, OLD_ADDRESS, rig.control.key)
        words = {"acstor_nova": False, "acstor_packages": str(packages)}
        changed = copy.deepcopy(rig.inventory)
        changed["acstor_computes"]["hosts"][OLD] = reached | own(OLD_ADDRESS) | words
        rig.control.edit(changed)
        for changes in (True, False):
            played = rig.play(rig.enable, "--limit", OLD)
            assert not played.failed and bool(played.changed[OLD]) == changes, played.said
        assert rig.ring(OLD) == {*COMPUTES, OLD}
        rig.run(OLD, f"cmp {MIRROR}/images/{image_id}.raw /srv/same")
        assert not rig.play(rig.remove, "--limit", OLD).failed
        assert not rig.run(OLD, FIND)
    del rig.machines[OLD]
    rig.control.edit(rig.inventory)


def test_upgrade_fails_no_read(rig, image_id):
    for name in COMPUTES:
        reader = f"python3 /root/reader {MIRROR}/images/{image_id}.raw /srv/same"
        rig.run(name, f"systemd-run --quiet --unit=reader {reader}")
    before = {name: (rig.version(name), rig.agent_pid(name)) for name in COMPUTES}
    played = rig.play(rig.enable, "-e", f"acstor_packages={rig.packages / 'next'}")
    assert not played.failed, played.said
    for name in COMPUTES:
        version, pid = before[name]
        assert rig.version(name) == version.removesuffix("-1") + "-2"
        assert rig.agent_pid(name) not in ("0", pid)
        reads = int(rig.run(name, "cat /run/reads"))
        runs.wait_for(
            lambda name=name, reads=reads: int(rig.run(name, "cat /run/reads")) > reads,
            DEADLINE_S,
            "reads after the upgrade",
            lambda name=name: rig.run(name, "systemctl status reader || true"),
        )
        rig.run(name, "systemctl is-active reader")
    assert rig.version("controller1", "acstor-decision").endswith("-2")


def test_disable_playbook_resets_nova_and_keeps_the_agents(rig):
    played = rig.play(rig.disable)
    assert not played.failed, played.said
    for name in COMPUTES:
        assert rig.images_type(name) == "default"
        rig.run(name, "systemctl is-active acstor-agent reader")
    assert set(rig.play(rig.disable).changed.values()) == {0}
    assert set(rig.play(rig.disable, "--check").changed.values()) == {0}


def test_removal_is_refused_on_a_host_whose_guests_read_mirrors(rig):
    played = rig.play(rig.remove, "--limit", "compute1")
    assert played.failed == {"compute1"}
    assert "guests of this host read images" in played.said, played.said
    rig.run("compute1", "systemctl is-active acstor-agent reader")
    for name in COMPUTES:
        rig.run(name, "systemctl stop reader")


def test_removal_leaves_only_files_left_by_design(rig):
    played = rig.play(rig.remove)
    assert not played.failed, played.said
    for name in ADDRESSES:
        left = set(rig.run(name, FIND).split())
        assert left <= LEFT_BY_DESIGN
        assert "acstor" not in rig.run(name, "systemctl list-units --all 'acstor*' --no-legend")
        assert "acstor" not in rig.run(name, "cat /proc/self/mounts")
        assert "acstor" not in rig.run(name, "dpkg-query --list | grep ^ii || true")
    played = rig.play(rig.remove)
    assert played.changed == dict.fromkeys(ADDRESSES, 0), played.said
