# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: built, installed by the guide's commands, upgraded, removed and purged.

``tools/test.sh packages`` or ``pytest -m packages`` runs these tests; all other runs skip them.

"""

import contextlib
import re
import subprocess

import pytest

from acstor_common import errors
from tests.fakes import hosts
from tests.lab import debian_root
from tests.lab import documents
from tests.lab import local
from tests.lab import runs
from tests.lab import systemd_host

pytestmark = hosts.of_packages

UNIT = "acstor-agent.service"
CONF = "/etc/acstor/acstor-agent.conf"
MIRROR = "/var/lib/acstor/mirror"
MIB = 1 << 20
DEADLINE_S = 60.0
SECRETS = ("agent", "checkpoint", "decision", "gateway", "glance")
SERVICES = {
    "acstor-agent --config-file /etc/acstor/acstor-agent.conf": r"auth_url: it is not set",
    "acstor-glance-listener --config-file /etc/acstor/acstor-glance.conf": r"auth_type: is not set",
}
COMMANDS = (
    "acstor-agent",
    "acstor-agent-ctl",
    "acstor-agent-holder",
    "acstor-authority",
    "acstor-boot-image",
    "acstor-checkpointd",
    "acstor-decision",
    "acstor-decision-manage",
    "acstor-glance-listener",
    "acstor-glance-manage",
    "acstor-nova-manage",
    "acstor-prehash",
    "acstor-simulate",
)
AGENTS = COMMANDS[:4]


READ_AS_NOVA = """
import sys
from nova import config
from nova.conf import CONF
config.parse_args(sys.argv)
print(CONF.libvirt.images_type)
"""


class Host:
    """A clean system with systemd, and packages at /srv/packages."""

    def __init__(self, host, images):
        self.host, self.images = host, images

    def run(self, line):
        """Run a shell command, and return its output.

        :raises errors.Unusable: it failed; the error has the output
        """
        return self.host.run(
            "bash", "-ec", f"export DEBIAN_FRONTEND=noninteractive\n{{ {line}\n}} 2>&1"
        )

    def refused(self, line):
        """Return the output of a command that must fail."""
        return self.run(f"if {{ {line}; }}; then echo it did not fail; exit 1; fi")

    def upgrade(self):
        """Install the packages of the next revision, and keep the operator's changes."""
        [line] = documents.section("install/packages.rst", "Upgrading", "apt-get")
        said = self.run(
            line.replace("install", "install -o Dpkg::Options::=--force-confold").replace(
                "/srv/packages/", "/srv/packages/next/"
            )
        )
        installed = self.run("dpkg-query --show --showformat '${Status} ${Version}\\n' '*acstor*'")
        assert set(re.findall(r"^install ok installed .*-(\d)$", installed, re.M)) == {"2"}
        return said

    def configure(self):
        """Configure the agent for this lab: a folder of images, and no other host."""
        self.host.path(CONF).write_text(
            "[acstor_agent]\nhost = h1\nsources = file\ncontrol_group = acstor\n"
            f"peer_listen = {local.LOOPBACK}:{local.unused_port()}\n"
            f"[source_file]\nfolder = {self.images.folder}\n"
        )

    def pid(self):
        return self.run(f"systemctl show --value -p MainPID {UNIT}").strip()

    def is_there(self, path):
        return self.host.path(path).exists()


@contextlib.contextmanager
def booted(release, folder):
    try:
        packages, root = debian_root.built(release), debian_root.root(release, "systemd-sysv")
    except errors.Unusable as e:
        pytest.skip(str(e))
    images = local.ImageFolder(folder / "images")
    host = systemd_host.SystemdHost(
        folder, [images.folder], {"/srv/packages": packages}, root=root, has_network=True
    )
    with host:
        made = Host(host, images)
        made.run("apt-get update")
        yield made


def agent_is_replaced_and_removed(host):
    """Check the guarantees of an agent's package while a process reads a mirror."""
    image_id = host.images.add(local.random_bytes(3 * MIB))
    mirror = f"{MIRROR}/images/{image_id}.raw"
    host.configure()
    host.run("\n".join(documents.section("install/quickstart.rst", "7. Agents", "systemctl")))
    host.run(
        "\n".join(documents.section("install/quickstart.rst", "7. Agents", "acstor-agent-ctl"))
    )
    same = f"cmp {mirror} {host.images.path(image_id)}"
    host.run(same)
    host.run(f"systemd-run --quiet --unit=guest sh -c 'exec sleep 3600 <{mirror}'")

    pid = host.pid()
    said = host.upgrade()
    assert "systemctl restart acstor-agent" in said
    assert "(sleep)" in said
    assert host.pid() == pid
    assert "sources = file" in host.host.path(CONF).read_text()
    assert "New in revision 2" in host.host.path(f"{CONF}.dpkg-dist").read_text()
    host.run("systemctl restart acstor-agent")
    assert host.pid() not in ("0", pid)
    host.run(same)

    said = host.refused("apt-get remove --yes acstor-agent")
    assert "guests of this host read images" in said
    host.run(same)
    host.run("systemctl stop guest")
    host.run("mkdir -p /var/lib/acstor/state/disks && touch /var/lib/acstor/state/disks/d.data")
    host.run("apt-get remove --yes acstor-agent")
    assert not host.is_there("/usr/lib/systemd/system/acstor-agent.service")
    assert not host.is_there("/usr/lib/acstor")
    assert MIRROR not in host.host.path("/proc/1/mounts").read_text()
    assert host.is_there(CONF)
    said = host.run("apt-get purge --yes acstor-agent")
    assert "/var/lib/acstor/state/disks" in said
    assert not host.is_there(CONF)
    assert not host.is_there("/var/lib/acstor/cache")
    assert host.is_there("/var/lib/acstor/state/disks/d.data")
    host.run("getent group acstor")


@pytest.fixture(scope="module")
def trixie(tmp_path_factory):
    with booted("trixie", tmp_path_factory.mktemp("trixie")) as host:
        for lines in (
            documents.section("install/quickstart.rst", "2. Packages on the controller", "apt-get"),
            documents.section("install/quickstart.rst", "7. Agents", "apt-get"),
            documents.section("install/packages.rst", "Packages of Debian 13"),
        ):
            host.run("\n".join(lines))
        yield host


def test_all_packages_are_installed_on_debian_13(trixie):
    for name in COMMANDS:
        assert name in trixie.run(f"{name} --help")
        assert trixie.is_there(f"/usr/share/man/man1/{name}.1.gz")
        assert trixie.is_there(f"/usr/share/bash-completion/completions/{name}")
    assert "acstor-simulate" not in trixie.run("ls /usr/bin")
    assert "--os-acstor-api-version" in trixie.run("openstack --help")
    assert "usage: openstack acstor host list" in trixie.run("openstack help acstor host list")
    modules = (
        "acstor_nova.registration, acstor_glance.prepare.import_plugin, acstor_decision.service"
    )
    trixie.run(f"python3 -c 'import {modules}'")


def test_files_with_passwords_are_readable_only_by_root(trixie):
    for name in SECRETS:
        assert trixie.run(f"stat -c '%a %U' /etc/acstor/acstor-{name}.conf") == "600 root\n"


@pytest.mark.parametrize("command", SERVICES)
def test_service_without_configuration_names_the_missing_option(trixie, command):
    assert re.search(SERVICES[command], trixie.refused(f"timeout 60 {command}"))


def test_units_are_installed_and_disabled(trixie):
    units = re.findall(
        r"^(acstor-\S+\.service) +(\w+)", trixie.run("systemctl list-unit-files"), re.M
    )
    assert dict(units) == {
        f"acstor-{name}.service": "disabled"
        for name in (
            *("agent", "checkpointd", "decision", "decision-api", "glance-gateway"),
            "glance-listener",
        )
    }
    trixie.run("systemd-analyze verify --man=no /usr/lib/systemd/system/acstor-*.service")


def test_decision_service_and_api_run_with_the_default_database(trixie):
    values = r"s/^# transport_url.*/transport_url = fake:/; s/^# \(auth_url\|password\) =/\1 =/"
    trixie.run(f"sed -i '{values}' /etc/acstor/acstor-decision.conf")
    for line in documents.section("install/quickstart.rst", "4. Decision service"):
        trixie.run(line)

    def is_up():
        with contextlib.suppress(errors.Unusable):
            ask = "urllib.request.urlopen('http://127.0.0.1:9710/healthz').status"
            return "200" in trixie.run(f'python3 -c "import urllib.request; print({ask})"')
        return False

    def log():
        return trixie.run("journalctl --no-pager --unit 'acstor-decision*'")

    runs.wait_for(is_up, DEADLINE_S, "the API", log)
    trixie.run("systemctl is-active acstor-decision")
    trixie.run("systemctl disable --now acstor-decision acstor-decision-api")


def test_glance_gets_policies_and_protections(trixie):
    for line in documents.section(
        "install/quickstart.rst", "3. Users, policies, notifications", "install"
    ):
        trixie.run(line)
    for name in ("policy.d/acstor.yaml", "property-protections-roles.conf"):
        trixie.run(f"cmp /etc/glance/{name} /usr/share/acstor-glance/{name}")


def test_backend_cannot_be_removed_while_nova_is_configured_for_it(trixie):
    trixie.run("mkdir -p /etc/apparmor.d/local")  # AppArmor's packages are not installed
    for line in documents.section("install/packages.rst", "Turning it on in Nova"):
        trixie.run(line)
    trixie.host.path("/root/nova-compute").write_text(READ_AS_NOVA)
    assert trixie.run("python3 /root/nova-compute").split()[-1] == "acstor"
    own = trixie.host.path("/etc/nova/nova-compute.conf.d/own.conf")
    own.write_text("[libvirt]\nimages_type = acstor\n")
    assert "Nova would not start" in trixie.refused("apt-get remove --yes acstor-nova")
    own.unlink()
    trixie.run("apt-get remove --yes acstor-nova")
    file = trixie.host.path("/etc/nova/nova-compute.conf.d/acstor.conf")
    assert not file.exists()
    assert trixie.run("python3 /root/nova-compute").split()[-1] == "default"


def test_documented_commands_enable_and_disable_the_nova_backend(trixie):
    trixie.run("apt-get install --yes --no-install-recommends /srv/packages/acstor-nova_*.deb")
    turned_on = documents.section("install/packages.rst", "Turning it on in Nova")
    turned_off = documents.section("install/packages.rst", "Turning it off in Nova")
    for line in (*turned_on, *turned_off):
        trixie.run(line)
    assert trixie.run("python3 /root/nova-compute").split()[-1] == "default"


def test_agent_of_debian_13_is_replaced_and_removed(trixie):
    agent_is_replaced_and_removed(trixie)


def test_controller_purge_keeps_the_database(trixie):
    said = trixie.run("apt-get purge --yes acstor-decision acstor-glance acstor-checkpoint")
    assert "/var/lib/acstor-decision stay" in said
    assert not trixie.is_there("/etc/acstor")
    assert trixie.is_there("/var/lib/acstor-decision/decision.sqlite")


def test_agent_of_debian_12_is_replaced_and_removed(tmp_path):
    with booted("bookworm", tmp_path) as host:
        for line in documents.section("install/packages.rst", "An agent on Debian 12"):
            host.run(line)
        for name in AGENTS:
            assert name in host.run(f"{name} --help")
        agent_is_replaced_and_removed(host)


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_lintian_finds_no_error(release):
    try:
        debian_root.built(release)
        folder = debian_root.root(release, "dpkg-dev")
    except errors.Unusable as e:
        pytest.skip(str(e))
    install = "apt-get install --yes --no-install-recommends lintian >&2"
    script = f"{install} && lintian --allow-root /root/packages/*.deb"
    done = subprocess.run(
        ["bash", debian_root.FRESH, "--in", folder, "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=debian_root.BUILD_S,
        check=False,
    )
    assert re.findall(r"^E: .*", done.stdout, re.M) == [], done.stderr[-1000:]
    assert "W: " in done.stdout or done.returncode == 0, done.stderr[-1000:]
