# SPDX-License-Identifier: Apache-2.0
"""The agent as a unit of a real systemd, installed with the commands of the installation guide."""

import concurrent.futures
import contextlib
import pathlib
import re
import shutil
import textwrap
import time

import pytest

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.fakes import boot_sectors
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.fakes import hung_folder
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import systemd_host
from tests.lab.openstack import installed

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = ROOT / "doc/source/install/index.rst"
UNIT = "acstor-agent.service"
CONF = "/etc/acstor/acstor-agent.conf"
NOVA_COMPUTE = "[Service]\nExecStart=/bin/sleep infinity\n"
GATEWAY = "acstor-glance-gateway.service"
HIDING_HOMES = ("acstor-decision.service", "acstor-glance-listener.service", GATEWAY)
"""Units with ProtectHome, which hides a checkout under /home."""
MOUNT_POINT = "/var/lib/acstor/mirror"
MIB = 1 << 20
DEADLINE_S = 30.0
RIGHTS = sum(1 << number for number in (0, 1, 3, 19, 21))
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_SYS_PTRACE and CAP_SYS_ADMIN."""


def commands_of_the_guide():
    """Return step 2 for a compute host (group, folders, unit) and the memberships of step 3."""
    guide = GUIDE.read_text()
    step = re.search(r"^ +# 2\. .*?(?=^ +# 3\. )", guide, re.MULTILINE | re.DOTALL)
    nova = re.search(r"^ +install .* etc/sysusers.d/acstor-nova.conf .*\n", guide, re.MULTILINE)
    return textwrap.dedent(step.group() + nova.group())


class Unit:
    """The agent's unit on a host."""

    def __init__(self, host, images, file_server):
        self.host, self.images, self.file_server = host, images, file_server
        self._port = local.unused_port()
        self.image_id = images.add(local.random_bytes(8 * MIB))
        self.truth = images.path(self.image_id)

    def configure(self, cache_limit_bytes="268435456", folder=None):
        self.host.path(CONF).write_text(
            "[acstor_agent]\n"
            "host = h1\n"
            "sources = file\n"
            "control_group = acstor\n"
            f"peer_listen = {local.LOOPBACK}:{self._port}\n"
            f"cache_limit_bytes = {cache_limit_bytes}\n"
            f"[source_file]\nfolder = {folder or self.images.folder}\n"
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
        """Wait until systemd has started another agent and it serves."""

        def is_up():
            with contextlib.suppress(OSError, errors.Unusable):
                is_new = self.shown("MainPID") not in ("0", after_pid)
                return is_new and self.shown("ActiveState") == "active" and bool(self.status())
            return False

        runs.wait_for(is_up, DEADLINE_S, UNIT, self.log)

    @contextlib.contextmanager
    def read_by_guests(self, seed):
        """Read the image at random in guests; the block begins once they read."""
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
    if installed.is_ready():
        shown_at["/opt/glance"] = installed.VENV.resolve()
    with contextlib.ExitStack() as stack:
        file_server = stack.enter_context(hung_folder.serving(images.folder, folder / "nfs"))
        shown = [images.folder, file_server.mount_point]
        host = systemd_host.SystemdHost(folder, shown, shown_at)
        try:
            stack.enter_context(host)
        except errors.Unusable as e:
            pytest.skip(str(e))
        for folder in ROOT.parents:  # the guest's own root; ours may lie where only root may enter
            host.run("chmod", "o+x", str(folder))
        made = Unit(host, images, file_server)
        host.path("/etc/acstor").mkdir(mode=0o750)
        made.configure()
        everywhere = host.path("/etc/systemd/system/service.d/tree.conf")
        everywhere.parent.mkdir()
        everywhere.write_text(f"[Service]\nEnvironment=PYTHONPATH={ROOT}\n")
        for name in HIDING_HOMES if ROOT.parts[1] in ("root", "home") else ():
            own = host.path(f"/etc/systemd/system/{name}.d/tree.conf")
            own.parent.mkdir()
            own.write_text("[Service]\nProtectHome=no\n")
        host.path("/etc/systemd/system/nova-compute.service").write_text(NOVA_COMPUTE)
        try:
            host.run("bash", "-euc", f"cd {ROOT}\n{commands_of_the_guide()}")
        except errors.Unusable as e:
            pytest.fail(f"{e}\n{made.log()}")
        yield made


def test_documented_commands_start_the_agent(unit):
    assert unit.shown("ActiveState") == "active"
    assert unit.is_mounted()
    assert unit.mirror.read_bytes() == unit.truth.read_bytes()
    socket = unit.host.path("/run/acstor/control.sock")
    group = re.search(r"^acstor:\w*:(\d+):nova$", unit.host.path("/etc/group").read_text(), re.M)
    assert (socket.stat().st_gid, socket.stat().st_mode & 0o777) == (int(group[1]), 0o660)
    assert unit.host.run("systemctl", "is-enabled", UNIT).strip() == "enabled"


@pytest.mark.parametrize(
    ("path", "mode", "group"),
    [
        ("/etc/acstor", 0o750, "acstor"),
        ("/var/lib/acstor", 0o711, "root"),
        ("/var/lib/acstor/cache", 0o700, "root"),
        ("/var/lib/acstor/state", 0o700, "root"),
    ],
)
def test_folders_have_the_documented_owner_and_mode(unit, path, mode, group):
    found = unit.host.path(path).stat()
    wanted = re.search(rf"^{group}:\w*:(\d+):", unit.host.path("/etc/group").read_text(), re.M)
    assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (mode, 0, int(wanted[1]))


def test_agent_processes_keep_only_the_needed_capabilities(unit):
    """Of supervisor and worker, from /proc."""
    pid = int(unit.shown("MainPID"))
    children = unit.host.run("cat", f"/proc/{pid}/task/{pid}/children").split()
    for one in (str(pid), *children):
        status = unit.host.run("cat", f"/proc/{one}/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == RIGHTS
        ours, first = (unit.host.run("readlink", f"/proc/{n}/ns/mnt") for n in (one, "1"))
        assert ours == first  # else no process outside would see the mirror


@pytest.mark.parametrize(
    "service", ["libvirtd.service", "libvirt-guests.service", "nova-compute.service"]
)
def test_services_that_start_guests_start_after_the_agent(unit, service):
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
def test_guests_see_no_error_when_the_unit_is_restarted_or_killed(unit, command):
    with unit.read_by_guests(seed=1) as readers:
        for _ in range(2):
            pid = unit.shown("MainPID")
            unit.host.run("systemctl", *command, UNIT)
            unit.wait_up(pid)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0


def test_guests_wait_while_an_option_is_invalid(unit):
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


def test_stop_waits_for_reading_guests_and_names_them(unit):
    """Longer than TimeoutStopSec: the agent repeatedly requests more time."""
    unit.host.run("test", "-S", "/run/dbus/system_bus_socket")  # it requests it over the bus
    drop_in = unit.host.path(f"/etc/systemd/system/{UNIT}.d/soon.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nTimeoutStopSec=3\n")
    unit.host.run("systemctl", "daemon-reload")
    held = f"exec sleep 600 < {MOUNT_POINT}/images/{unit.image_id}.raw"
    with unit.read_by_guests(seed=4) as readers:
        unit.host.run("systemd-run", "--quiet", "--unit=guest", "sh", "-c", held)
        pid = unit.shown("MainPID")
        for _ in range(2):
            unit.host.run("systemctl", "stop", "--no-block", UNIT)
            time.sleep(4.0)
        assert (unit.shown("ActiveState"), unit.shown("MainPID")) == ("deactivating", pid)
        assert re.fullmatch(
            rf"stops once no process uses {MOUNT_POINT}: "
            rf"process \d+ \(sleep\) has {unit.image_id}.raw open",
            unit.shown("StatusText"),
        )
        tally = readers.stop()
    assert unit.shown("ActiveState") == "deactivating"
    unit.host.run("systemctl", "stop", "guest")
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.longest_s < 3.0
    hosts.wait_until(lambda: unit.shown("ActiveState") == "inactive", "its end", DEADLINE_S)
    assert unit.shown("Result") == "success"
    assert not unit.is_mounted()
    assert unit.log().count("is in use; the agent stops when it is released") == 1
    unit.host.run("systemctl", "start", UNIT)


def test_killed_supervisor_is_restarted_without_read_errors(unit):
    """systemd restarts the unit and hands the mount over."""
    with unit.read_by_guests(seed=5) as readers:
        pid = unit.shown("MainPID")
        unit.host.run("kill", "-TERM", pid)
        unit.wait_up(pid)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])


def test_stop_unmounts_and_start_mounts_again(unit):
    unit.host.run("systemctl", "stop", UNIT)
    assert (unit.shown("ActiveState"), unit.is_mounted()) == ("inactive", False)
    assert unit.shown("NFileDescriptorStore") == "0"
    unit.host.run("systemctl", "start", UNIT)
    assert unit.is_mounted()
    assert unit.mirror.read_bytes() == unit.truth.read_bytes()


def test_worker_hung_on_a_file_server_is_replaced(unit):
    """The privileges of the unit suffice to take sockets and memory from it."""
    unit.configure(folder=unit.file_server.mount_point)
    unit.host.run("systemctl", "restart", UNIT)
    other_id = unit.images.add(local.random_bytes(MIB, seed=3))
    mirror = unit.mirror.with_name(f"{other_id}.raw")
    mirror.stat()
    killed = unit.status()["worker_pid"]
    with concurrent.futures.ThreadPoolExecutor() as readers:
        unit.file_server.take_and_keep()
        try:
            reading = readers.submit(mirror.read_bytes)
            hosts.wait_until(lambda: unit.status()["exchange"]["chunks_in_flight"], "a read")
            time.sleep(1)  # it reaches the file server
            unit.host.run("kill", "-KILL", str(killed))

            taken = re.compile(r"[1-9][0-9]* sockets shut, memory freed")
            runs.wait_for(
                lambda: bool(taken.search(unit.log())), DEADLINE_S, "the end of it", unit.log
            )

            def is_replaced():  # only now: a request to the dead worker would hang
                with contextlib.suppress(OSError, errors.Unusable):
                    return unit.status()["worker_pid"] != killed
                return False

            runs.wait_for(is_replaced, DEADLINE_S, "the next worker", unit.log)
            assert unit.status()["faults"] == {}
            assert not reading.done()
        finally:
            unit.file_server.answer()
            unit.configure()
        assert reading.result(DEADLINE_S) == unit.images.path(other_id).read_bytes()
    unit.host.run("systemctl", "restart", UNIT)


# Units of controllers


@pytest.fixture
def controller(unit):
    """Return a function that starts a controller's unit with a configuration and a drop-in."""
    host = unit.host
    for folder, name in (("sysusers.d", "acstor-controller.conf"), ("systemd/system", "")):
        for file in sorted((ROOT / "etc" / folder).glob(name or "acstor-*.service")):
            host.path(f"/etc/{folder}/{file.name}").write_bytes(file.read_bytes())
    host.run("systemd-sysusers")

    def start(name, config, *lines):
        secret = host.path(f"/etc/acstor/{name}")
        secret.write_text(config)
        secret.chmod(0o600)
        service = {"acstor-glance.conf": "acstor-glance-listener"}.get(name, "acstor-decision")
        drop_in = host.path(f"/etc/systemd/system/{service}.service.d/test.conf")
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text("\n".join(["[Service]", *lines, ""]))
        host.run("systemctl", "daemon-reload")
        try:
            host.run("systemctl", "start", service)
        except errors.Unusable as e:
            pytest.fail(f"{e}\n{host.run('journalctl', '--no-pager', '--unit', service)}")
        return lambda: host.run("journalctl", "--no-pager", "--unit", service)

    yield start
    host.run("systemctl", "stop", "acstor-decision", "acstor-glance-listener")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="there is no QEMU")
def test_builder_works_with_the_privileges_of_the_listener_unit(unit, controller):
    image = unit.host.path("/srv/image.raw")
    image.write_bytes(boot_sectors.image(boot_sectors.HANG, 4 * MIB))
    image_id = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    prehash.prehash(image, unit.host.path("/srv/image.acmap"), image_id)
    build = (
        "/opt/acstor/bin/python -m acstor_glance.cmd.boot_image build /srv/image.raw "
        "-o /var/lib/acstor-glance/image.acboot --idle 3 --longest 60 --memory 64 --json"
    )
    lines = ("Type=oneshot", "Restart=no", "ExecStart=", f"ExecStart={build}")
    readable = "ExecStartPre=/usr/bin/test -r ${CREDENTIALS_DIRECTORY}/acstor-glance.conf"
    others = "ExecStartPre=/usr/bin/test ! -r /etc/acstor/acstor-agent.conf"
    log = controller("acstor-glance.conf", "[acstor_glance]\n", readable, others, *lines)
    made = unit.host.path("/var/lib/acstor-glance/image.acboot")
    assert 0 in boot_frames.check_boot_image([made.read_bytes()], str(made)).trace, log()
    assert made.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_listener_unit_lets_its_sandbox_forbid_user_namespaces(unit, controller):
    # As on a host: systemd-nspawn shows it read-only, and a unit of systemd 257 keeps it so.
    unit.host.run("mount", "-o", "remount,bind,rw", "/proc/sys")
    inside = "/usr/bin/bwrap --unshare-user --disable-userns --ro-bind / /"
    refused = f"ExecStart=/bin/sh -c '! {inside} /usr/bin/unshare --user true'"
    of_the_host = "ExecStart=/bin/sh -c '! echo 5 > /proc/sys/user/max_user_namespaces'"
    lines = ("Type=oneshot", "Restart=no", "ExecStart=", f"ExecStart={inside} /usr/bin/true")
    controller("acstor-glance.conf", "[acstor_glance]\n", *lines, refused, of_the_host)


def test_decision_service_runs_with_the_privileges_of_its_unit(unit, controller):
    config = (
        "[DEFAULT]\ntransport_url = fake://\n"
        "[database]\nconnection = sqlite:////var/lib/acstor-decision/decision.sqlite\n"
    )
    make = "-manage --config-file ${CREDENTIALS_DIRECTORY}/acstor-decision.conf db-sync"
    log = controller(
        "acstor-decision.conf", config, f"ExecStartPre=/opt/acstor/bin/acstor-decision{make}"
    )
    hosts.wait_until(lambda: " is ready\n" in log() + "\n", "the service", DEADLINE_S)
    time.sleep(1.0)
    assert unit.host.run("systemctl", "is-active", "acstor-decision").strip() == "active"
    assert "Traceback" not in log()


OFF_PULL = """
import pathlib, threading
from acstor_checkpoint.restore import offline_pull
from acstor_common.model import ids
from acstor_common.disks import recovery_marker
disk, base, shown = (f"/var/lib/nova/instances/{name}" for name in ("one/disk", "base", "shown"))
recovery_marker.write(disk, ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"))
puller = offline_pull.OfflinePull(threading.Event())
puller(offline_pull.OfflineDisk(disk, base, shown, pathlib.Path(shown)), lambda: True)
recovery_marker.remove(disk)
"""


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="there is no qemu-img")
def test_stopped_server_disk_is_pulled_with_the_privileges_of_the_unit(
    unit,
):
    host, service = unit.host, "acstor-checkpointd.service"
    folder = "/var/lib/nova/instances"
    host.run("install", "-d", "-o", "nobody", folder, f"{folder}/one")
    create = ("qemu-img", "create", "-q", "-f", "qcow2")
    host.run("truncate", "--size=1M", f"{folder}/base")
    host.run(*create, "-F", "raw", "-b", f"{folder}/base", f"{folder}/shown")
    host.run("qemu-io", "-f", "qcow2", "-c", "write -P 7 64k 64k", f"{folder}/shown")
    disk = f"{folder}/one/disk"
    host.run(*create, "-F", "qcow2", "-b", f"{folder}/shown", disk)
    host.run("chown", "nobody:nogroup", disk)
    host.run("chmod", "0640", disk)
    before = host.run("stat", "--format=%U %G %a", disk)
    host.path("/srv/off_pull.py").write_text(OFF_PULL)
    host.path(f"/etc/systemd/system/{service}").write_bytes(
        (ROOT / "etc/systemd/system" / service).read_bytes()
    )
    drop_in = host.path(f"/etc/systemd/system/{service}.d/test.conf")
    drop_in.parent.mkdir()
    run = "ExecStart=/opt/acstor/bin/python /srv/off_pull.py"
    home = "ProtectHome=no" if ROOT.parts[1] in ("root", "home") else ""
    drop_in.write_text(f"[Service]\nType=oneshot\nRestart=no\nExecStart=\n{run}\n{home}\n")
    host.run("systemctl", "daemon-reload")
    try:
        host.run("systemctl", "start", service)
    except errors.Unusable as e:
        pytest.fail(f"{e}\n{host.run('journalctl', '--no-pager', '--unit', service)}")
    info = host.run("qemu-img", "info", disk)
    assert f"backing file: {folder}/base\n" in info
    assert host.run("stat", "--format=%U %G %a", disk) == before
    host.run("qemu-io", "-r", "-f", "qcow2", "-c", "read -P 7 64k 64k", disk)
    assert host.run("ls", f"{folder}/one").split() == ["disk"]


GLANCE_CONF = """
[DEFAULT]
enabled_backends = fs:file
[glance_store]
default_backend = fs
[fs]
filesystem_store_datadir = /var/lib/glance/images
[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:1/v3
username = glance
password = secret
"""
GATEWAY_CONF = """
[acstor_glance]
auth_type = password
auth_url = http://127.0.0.1:1/v3
username = acstor
password = secret
"""


@pytest.mark.skipif(not installed.is_ready(), reason=f"no Glance here: {installed.REMEDY}")
def test_gateway_runs_with_the_privileges_of_its_unit(unit, controller):
    """Its two processes respond, and report common metrics, also after one was killed."""
    host = unit.host
    host.run("useradd", "--system", "glance")
    host.run("install", "-d", "-o", "glance", "/etc/glance", "/var/lib/glance/images")
    host.path("/etc/glance/glance-api.conf").write_text(GLANCE_CONF)
    host.path("/etc/acstor/acstor-gateway.conf").write_text(GATEWAY_CONF)
    host.run("chgrp", "glance", "/etc/acstor", "/etc/acstor/acstor-gateway.conf")

    def log():
        return host.run("journalctl", "--no-pager", "--unit", GATEWAY)

    def ask(path, port=9711):
        url = f"http://127.0.0.1:{port}{path}"
        return host.run("curl", "--silent", "--show-error", "--max-time", "10", url)

    def limit():
        with contextlib.suppress(errors.Unusable):  # no process listens yet
            shown = ask("/metrics", 9467)
            reported = re.search(r"^acstor_gateway_reads_limit\{.*\} (.*)$", shown, re.M)
            return float(reported[1]) if reported else 0.0
        return 0.0

    try:
        host.run("systemctl", "start", GATEWAY)
        runs.wait_for(lambda: limit() == 32.0, DEADLINE_S, "both processes", log)
        assert ask("/healthz") == '{"status":"ok"}'
        assert '"code": 401' in ask("/v1/images/x/file")
        pids = host.run("pgrep", "-u", "glance").split()
        main = host.run("systemctl", "show", "--value", "-p", "MainPID", GATEWAY).strip()
        worker = next(pid for pid in pids if pid != main)
        status = host.run("cat", f"/proc/{worker}/status")
        assert re.search(r"^CapBnd:\t0+$", status, re.M)
        assert re.search(r"^Seccomp:\t2$", status, re.M)
        host.run("kill", "-KILL", worker)
        hosts.wait_until(lambda: worker not in host.run("pgrep", "-u", "glance").split(), "its end")
        runs.wait_for(lambda: limit() == 32.0, DEADLINE_S, "another process", log)
        assert host.path("/run/acstor-gateway").stat().st_mode & 0o777 == 0o700
        assert "Traceback" not in log()
    except errors.Unusable as e:
        pytest.fail(f"{e}\n{log()}")
    finally:
        host.run("systemctl", "stop", GATEWAY)
    assert not host.path("/run/acstor-gateway").exists()
