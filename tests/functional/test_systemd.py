# SPDX-License-Identifier: Apache-2.0
"""The agent as a unit of a real systemd, installed with the commands of the installation guide."""

import contextlib
import pathlib
import re
import textwrap

import pytest

from acstor_common import errors
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import systemd_host

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "doc/source/install/index.rst"
UNIT = "acstor-agent.service"
CONF = "/etc/acstor/acstor-agent.conf"
NOVA_COMPUTE = "[Service]\nExecStart=/bin/sleep infinity\n"
MOUNT_POINT = "/var/lib/acstor/mirror"
MIB = 1 << 20
DEADLINE_S = 30.0


def commands_of_the_guide():
    """Return step 2 for a compute host: group, folders, unit."""
    step = re.search(r"^ +# 2\. .*?(?=^ +# 3\. )", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return textwrap.dedent(step.group())


class Unit:
    """The agent's unit on a host."""

    def __init__(self, host, images):
        self.host, self.images = host, images
        self._port = local.unused_port()
        self.image_id = images.add(local.random_bytes(8 * MIB))
        self.truth = images.path(self.image_id)

    def configure(self, cache_limit_bytes="268435456"):
        self.host.path(CONF).write_text(
            "[acstor_agent]\n"
            "host = h1\n"
            "sources = file\n"
            "control_group = acstor\n"
            f"peer_listen = {local.LOOPBACK}:{self._port}\n"
            f"cache_limit_bytes = {cache_limit_bytes}\n"
            f"[source_file]\nfolder = {self.images.folder}\n"
        )

    @property
    def mirror(self):
        return self.host.path(f"{MOUNT_POINT}/images/{self.image_id}.raw")

    def shown(self, name):
        return self.host.run("systemctl", "show", "--value", "-p", name, UNIT).strip()

    def status(self):
        return agents.request(self.host.path("/run/acstor/control.sock"), "status")

    def is_mounted(self):
        return f" {MOUNT_POINT} " in self.host.path("/proc/1/mounts").read_text()

    def wait_up(self, after_pid):
        """Wait until systemd has started another one and it serves."""

        def is_up():
            with contextlib.suppress(OSError, errors.Unusable):
                is_new = self.shown("MainPID") not in ("0", after_pid)
                return is_new and self.shown("ActiveState") == "active" and bool(self.status())
            return False

        runs.wait_for(is_up, DEADLINE_S, UNIT, self.log)

    @contextlib.contextmanager
    def read_by_guests(self, seed):
        """Have the image read at random; the block begins when it is."""
        with guest_readers.Readers(self.truth, [self.mirror], seed=seed) as readers:
            before = self.status()["read"]
            hosts.wait_until(lambda: self.status()["read"] != before, "the readers", DEADLINE_S)
            yield readers

    def log(self):
        return self.host.run("journalctl", "--no-pager", "--unit", UNIT)


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("systemd")
    images = local.ImageFolder(folder / "source")
    shown_at = {"/opt/acstor": agents.BIN.parent, str(ROOT): ROOT}
    with contextlib.ExitStack() as stack:
        host = systemd_host.SystemdHost(folder, [images.folder], shown_at)
        try:
            stack.enter_context(host)
        except errors.Unusable as e:
            pytest.skip(str(e))
        made = Unit(host, images)
        host.path("/etc/acstor").mkdir()
        made.configure()
        host.path("/etc/systemd/system/nova-compute.service").write_text(NOVA_COMPUTE)
        try:
            host.run("bash", "-euc", f"cd {ROOT}\n{commands_of_the_guide()}")
        except errors.Unusable as e:
            pytest.fail(f"{e}\n{made.log()}")
        yield made


def test_commands_of_the_guide_start_it(unit):
    assert unit.shown("ActiveState") == "active"
    assert unit.is_mounted()
    assert unit.mirror.read_bytes() == unit.truth.read_bytes()
    socket = unit.host.path("/run/acstor/control.sock")
    group = re.search(r"^acstor:\w*:(\d+):nova$", unit.host.path("/etc/group").read_text(), re.M)
    assert (socket.stat().st_gid, socket.stat().st_mode & 0o777) == (int(group[1]), 0o660)
    assert unit.host.run("systemctl", "is-enabled", UNIT).strip() == "enabled"


@pytest.mark.parametrize(
    "service", ["libvirtd.service", "libvirt-guests.service", "nova-compute.service"]
)
def test_what_starts_guests_starts_behind_it(unit, service):
    after = unit.host.run("systemctl", "show", "--value", "-p", "After", service)
    assert UNIT in after.split()


@pytest.mark.parametrize(
    "command",
    [
        ("kill", "--signal=KILL", "--kill-whom=main"),
        ("kill", "--signal=KILL", "--kill-whom=all"),
        ("restart",),
    ],
)
def test_guests_see_no_error_when_it_is(unit, command):
    with unit.read_by_guests(seed=1) as readers:
        for _ in range(2):
            pid = unit.shown("MainPID")
            unit.host.run("systemctl", *command, UNIT)
            unit.wait_up(pid)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0


def test_guests_wait_while_an_option_makes_no_sense(unit):
    with unit.read_by_guests(seed=2) as readers:
        pid = unit.shown("MainPID")
        unit.configure(cache_limit_bytes="enough")
        with pytest.raises(errors.Unusable, match="failed because"):
            unit.host.run("systemctl", "restart", UNIT)
        failed = int(unit.shown("NRestarts"))
        hosts.wait_until(lambda: int(unit.shown("NRestarts")) > failed, "new tries", DEADLINE_S)
        assert "cache_limit_bytes" in unit.log()
        unit.configure()
        unit.wait_up(pid)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.longest_s > 1.0


def test_stop_unmounts_and_start_mounts_again(unit):
    unit.host.run("systemctl", "stop", UNIT)
    assert (unit.shown("ActiveState"), unit.is_mounted()) == ("inactive", False)
    assert unit.shown("NFileDescriptorStore") == "0"
    unit.host.run("systemctl", "start", UNIT)
    assert unit.is_mounted()
    assert unit.mirror.read_bytes() == unit.truth.read_bytes()
