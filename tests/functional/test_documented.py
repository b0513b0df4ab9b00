# SPDX-License-Identifier: Apache-2.0
"""The documents' commands, run verbatim on a host of their own and against a real Keystone.

Changed are only names that clash with the lab's own cloud, words in capitals, and commands that
need a terminal or another machine.  tests/unit/test_documents.py checks which these are.

"""

import contextlib
import json
import pathlib
import re
import subprocess
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import pytest

from acstor_common import errors
from acstor_decision import conf as decision_conf
from acstor_decision.db import database
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import documents
from tests.lab import local
from tests.lab import runs
from tests.lab import systemd_host
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import client
from tests.lab.openstack import cloud
from tests.lab.openstack import uploads
from tests.unit.decision.api import conftest as samples

MIB = 1 << 20
SOON_S = 60.0
PATIENCE_S = "120"
IMAGE_ID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
IMAGE = f"/srv/images/{IMAGE_ID}.raw"
MIRROR = f"/var/lib/acstor/mirror/images/{IMAGE_ID}.raw"
RING = documents.SOURCE / "user/index.rst"
AGENT = """[acstor_agent]
host = compute1
ring_file = /etc/acstor/ring.json
sources = file
mirror_group = root

[source_file]
folder = /srv/images
"""
DECISION = """[DEFAULT]
transport_url = fake:

[database]
connection = sqlite:////root/decision.sqlite
"""

HEARD = """
import time
from acstor_decision import conf
from acstor_decision.db import database
from tests.unit.decision.api import conftest
store = database.Database(conf.load(["--config-file", "/etc/acstor/acstor-decision.conf"]))
conftest.note(store, conftest.sample(7, host="compute7", sent_s=time.time()))
"""
"""The service's handling of a host's first message."""


class Host:
    """A system with the checkout and a shell."""

    def __init__(self, host: systemd_host.SystemdHost) -> None:
        self.host = host

    def type(self, lines: Sequence[str]) -> str:
        """Run lines in one shell in the checkout, and return their output.

        :raises errors.Unusable: one of them failed, or they take more than PATIENCE_S
        """
        typed = "\n".join(lines)
        before = (
            f"cd {documents.ROOT}\nexport PATH=/opt/acstor/bin:$PATH PYTHONPATH={documents.ROOT}"
        )
        return self.host.run(
            "timeout", PATIENCE_S, "bash", "-euc", f"{before}\n{{ {typed}\n}} 2>&1"
        )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Return a host with only the virtualenv installed."""
    shown_at = {"/opt/acstor": agents.BIN.parent, str(documents.ROOT): documents.ROOT}
    made = systemd_host.SystemdHost(tmp_path_factory.mktemp("host"), [], shown_at)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(made)
        except errors.Unusable as e:
            pytest.skip(str(e))
        yield Host(made)


@pytest.fixture(scope="module")
def installed(host: Host) -> Host:
    """Run the commands of the guide for an installation by hand."""
    host.type(documents.section("user/index.rst", "An agent without OpenStack", "install"))
    host.type(documents.section("install/index.rst", "A compute host", "install"))
    host.type(documents.section("install/index.rst", "A controller", "install"))
    host.type(documents.section("install/index.rst", "What the agent may do", "install"))
    return host


@hosts.needs_take_over
def test_installed_files_have_the_documented_paths_and_modes(installed: Host) -> None:
    installed.type(documents.section("admin/upgrades.rst", "An agent under systemd", "install"))
    installed.type(["getent group glance || groupadd glance"])
    installed.type(documents.section("admin/gateway.rst", "Set it up", "install"))
    for name in ("agent", "glance", "decision"):
        assert installed.type([f"stat -c %a /etc/acstor/acstor-{name}.conf"]) == "600\n"
    assert installed.type(["stat -c '%a %G' /etc/acstor/acstor-gateway.conf"]) == "640 glance\n"
    units = documents.ROOT / "etc/systemd/system"
    for unit in ("agent", "decision", "glance-gateway", "glance-listener"):
        name = f"acstor-{unit}.service"
        installed.type([f"cmp {units}/{name} /etc/systemd/system/{name}"])
    installed.type(["mkdir -p /var/lib/acstor-glance/maps"])
    installed.type(documents.section("admin/glance.rst", "Commands", "chown"))
    assert installed.type(["stat -c %U /var/lib/acstor-glance/maps"]) == "acstor-glance\n"


NOVA_COMPUTE = "[Service]\nExecStart=/bin/sleep infinity\n"


@hosts.needs_take_over
def test_documented_commands_start_restart_and_upgrade_the_unit(installed: Host) -> None:
    at = installed.host.path
    everywhere = at("/etc/systemd/system/service.d/tree.conf")
    everywhere.parent.mkdir()
    everywhere.write_text(f"[Service]\nEnvironment=PYTHONPATH={documents.ROOT}\n")
    at("/etc/systemd/system/nova-compute.service").write_text(NOVA_COMPUTE)
    alone = AGENT.replace("ring_file = /etc/acstor/ring.json", "peer_security = insecure")
    at("/etc/acstor/acstor-agent.conf").write_text(alone)
    at("/srv/images").mkdir(parents=True, exist_ok=True)
    installed.type(documents.section("install/index.rst", "A compute host", "systemctl"))
    status = documents.section("install/index.rst", "A compute host", "acstor-agent-ctl")

    def is_up() -> bool:
        with contextlib.suppress(errors.Unusable):
            return bool(installed.type(status))
        return False

    def log() -> str:
        return installed.type(["journalctl --no-pager -u acstor-agent"])

    def pid() -> str:
        return installed.type(["systemctl show --value -p MainPID acstor-agent"])

    runs.wait_for(is_up, SOON_S, "agent", log)
    first = pid()
    installed.type(documents.section("install/index.rst", "What the agent may do", "systemctl"))
    runs.wait_for(is_up, SOON_S, "agent", log)
    second = pid()
    installed.type(documents.section("admin/upgrades.rst", "An agent under systemd", "systemctl"))
    runs.wait_for(is_up, SOON_S, "agent", log)
    assert len({first, second, pid()}) == 3
    installed.type(documents.section("admin/remove.rst", "From Nova", "systemctl"))
    installed.type(documents.section("install/roll_out.rst", "Roll back", "systemctl"))
    installed.type(["systemctl disable --now acstor-agent nova-compute"])


@pytest.fixture(scope="module")
def by_hand(installed: Host) -> Iterator[Host]:
    """Run an agent as the guide without OpenStack says, with a folder for a web server."""
    image = installed.host.path(IMAGE)
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(local.random_bytes(4 * MIB))
    installed.type(
        documents.section("user/index.rst", "An agent without OpenStack", "acstor-prehash")
    )
    made = documents.section("user/index.rst", "An agent without OpenStack", "acstor-authority")
    installed.type(["cd /root", *made, "mkdir -p -m 700 /var/lib/acstor/state"])
    installed.type(["cp -r /root/compute1 /var/lib/acstor/state/identity"])
    [ring] = re.findall(r"^ +(\{\"version\".*?\]\})$", RING.read_text(), re.MULTILINE | re.DOTALL)
    installed.host.path("/etc/acstor/ring.json").write_text(json.dumps(json.loads(ring)))
    installed.host.path("/etc/acstor/acstor-agent.conf").write_text(AGENT)
    [start] = documents.section("user/index.rst", "An agent without OpenStack", "acstor-agent")
    own = f"systemd-run --quiet --unit=by-hand --setenv=PYTHONPATH={documents.ROOT}"
    installed.type([f"{own} /opt/acstor/bin/{start.removesuffix('&')}"])

    def is_up() -> bool:
        with contextlib.suppress(errors.Unusable):
            return bool(installed.type(["acstor-agent-ctl status"]))
        return False

    runs.wait_for(is_up, SOON_S, "agent", lambda: installed.type(["journalctl -u by-hand"]))
    yield installed
    installed.type(["systemctl stop by-hand"])


@hosts.needs_fuse
def test_agent_without_openstack_works_as_documented(by_hand: Host) -> None:
    export = documents.section("user/index.rst", "An agent without OpenStack", "export")
    made = documents.section("user/index.rst", "An agent without OpenStack", "qemu-img")
    by_hand.type(["mkdir -p /root/disks", "cd /root/disks", *export, *made])
    assert MIRROR in by_hand.type(["qemu-img info -U /root/disks/instance.qcow2"])
    by_hand.type([f"cmp {IMAGE} {MIRROR}"])
    words = {"DISK": "0d5c0000-0000-4000-8000-000000000001", "BYTES": str(8 * MIB)}
    [make] = documents.section("user/index.rst", "Writable disks of the agent")
    for word, value in {**words, "IMAGE": IMAGE_ID}.items():
        make = make.replace(word, value)
    by_hand.type([make])
    assert by_hand.type([f"stat -c %s /var/lib/acstor/mirror/disks/{words['DISK']}.raw"]) == (
        f"{8 * MIB}\n"
    )
    by_hand.type(documents.section("admin/disk_scheduling.rst", "Monitor it"))
    by_hand.type(documents.section("admin/operate.rst", "Every day", "acstor-agent-ctl"))


@hosts.needs_fuse
def test_documented_commands_replace_a_link_by_its_image(by_hand: Host) -> None:
    base = "/var/lib/nova/instances/_base"
    name = f"$(printf %s {IMAGE_ID} | sha1sum | cut -d' ' -f1)"
    by_hand.type(
        [
            "getent passwd nova || useradd --user-group nova",
            f"mkdir -p {base}",
            f"ln -s {MIRROR} {base}/{name}",
        ]
    )
    lines = [
        *documents.section("admin/remove.rst", "Servers whose disks use mirrors", "cd"),
        *documents.section("admin/remove.rst", "Servers whose disks use mirrors", "LINK=$(printf"),
        *documents.section("admin/remove.rst", "Servers whose disks use mirrors", "cp"),
        *documents.section("admin/remove.rst", "Servers whose disks use mirrors", "chown"),
    ]
    by_hand.type([line.replace("IMAGE_ID", IMAGE_ID) for line in lines])
    by_hand.type([f"test ! -L {base}/{name}", f"cmp {IMAGE} {base}/{name}"])


def test_documented_decision_commands_work(installed: Host) -> None:
    installed.host.path("/etc/acstor/acstor-decision.conf").write_text(DECISION)
    installed.type(documents.section("install/index.rst", "A controller", "acstor-decision-manage"))
    installed.type(documents.section("install/index.rst", "A controller", "chown"))
    owner = installed.type(["stat -c '%U %G' /var/lib/acstor-decision"])
    assert owner == "acstor-decision acstor-decision\n"
    set_up = documents.section("admin/decision.rst", "Setting it up", "acstor-decision-manage")
    installed.type(["cd /root", "rm -rf compute7", *set_up])
    certificate = "openssl x509 -noout -ext subjectAltName -in /root/compute7/cert.pem"
    assert "DNS:compute7" in installed.type([certificate])
    installed.type(documents.section("admin/decision.rst", "When a key is lost or stolen"))
    installed.host.path("/root/heard.py").write_text(HEARD)
    installed.type(["/opt/acstor/bin/python /root/heard.py"])
    drain, enable, history = documents.section("admin/decision.rst", "Drain a host")
    asked = "print(sqlite3.connect('/root/decision.sqlite').execute(q).fetchall())"
    drained = f"import sqlite3; q = 'SELECT is_drained FROM hosts'; {asked}"
    assert installed.type([drain, f'python3 -c "{drained}"']) == "[(1,)]\n"
    assert installed.type([enable, f'python3 -c "{drained}"']) == "[(0,)]\n"
    installed.type([history])


def test_documented_commands_enable_and_disable_nova(installed: Host) -> None:
    file = "/etc/nova/nova-compute.conf.d/acstor.conf"
    installed.type(["/opt/acstor/bin/acstor-nova-manage enable", f"test -e {file}"])
    installed.type(documents.section("admin/remove.rst", "From Nova", "acstor-nova-manage"))
    assert installed.type([f"test -e {file} || echo gone"]) == "gone\n"
    installed.type(documents.section("install/roll_out.rst", "Roll back", "acstor-nova-manage"))


# Of Keystone


def ask(lab: cloud.Cloud, lines: Sequence[str]) -> str:
    """Run lines with ``openstack`` as the administrator, with names of their own."""
    said = ""
    for line in lines:
        words = line.replace("--password-prompt", "--password secret").split()[1:]
        own = [word.replace("acstor", "documented") for word in words]
        done = client.openstack(lab, "admin", *own)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said += done.stdout
    return said


@pytest.mark.openstack
@pytest.mark.timeout(900)
def test_documented_commands_create_and_remove_users_and_endpoints(
    keystone_glance: cloud.Cloud,
) -> None:
    lab = keystone_glance
    ask(lab, documents.section("admin/glance.rst", "Install", "openstack"))
    ask(lab, documents.section("admin/rest_api.rst", "Serving it", "openstack"))
    ask(lab, documents.section("admin/gateway.rst", "Set it up", "openstack"))
    shown = ask(lab, ["openstack role assignment list --names --user acstor-agent -f json"])
    roles = {(one["Role"], one["Project"].partition("@")[0]) for one in json.loads(shown)}
    assert roles == {("documented-reader", "documented")}
    shown = ask(lab, ["openstack endpoint list --service acstor -f json"])
    assert [one["URL"] for one in json.loads(shown)] == ["https://controller.example:9710"]
    ask(lab, documents.section("admin/remove.rst", "From the controllers", "openstack"))
    ask(lab, ["openstack service delete acstor-gateway"])
    left = client.openstack(lab, "admin", "user", "show", "documented-agent")
    assert left.returncode != 0


@pytest.mark.nova
@pytest.mark.timeout(900)
def test_documented_commands_create_and_remove_the_canary_aggregate(nova: cloud.Cloud) -> None:
    made = documents.section("install/roll_out.rst", "2. Two canary hosts")
    ask(nova, [line for line in made if "openstack acstor" not in line])
    shown = json.loads(ask(nova, ["openstack aggregate show acstor-canary -f json"]))
    assert shown["hosts"] == ["compute1", "compute2"]
    ask(nova, documents.section("install/roll_out.rst", "4. Add racks"))
    assert client.openstack(nova, "admin", "aggregate", "show", "documented-canary").returncode


@pytest.mark.openstack
@pytest.mark.timeout(900)
def test_documented_decision_queries_work(
    keystone_glance: cloud.Cloud, tmp_path: pathlib.Path
) -> None:
    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    conf = tmp_path / "decision.conf"
    conf.write_text(f"[database]\nconnection = {connection}\n")
    store = database.Database(decision_conf.load(["--config-file", str(conf)]))
    store.upgrade()
    now_s = time.time()
    samples.note(store, *(samples.sample(n, sent_s=now_s - 3600 * n) for n in range(2)))
    samples.publish(store, 7, hosts=1)
    made = acstor_decision.DecisionApi(keystone_glance, tmp_path / "api", connection)
    made.start()
    try:
        made.wait_ready()
        made.register()

        def operate(lines: Sequence[str], host: str) -> str:
            said = ""
            for line in lines:
                words = line.replace("HOST", host).split()[1:]
                done = client.openstack(keystone_glance, "admin", *words)
                assert done.returncode == 0 or words[-1] == "status", f"{line}: {done.stderr}"
                said += done.stdout
            return said

        assert "health" in operate(
            documents.section("admin/operate.rst", "Every day", "openstack"), "h0000"
        )
        operate(documents.section("admin/checkpoints.rst", "A host that is gone for good"), "h0001")
        operate(documents.section("admin/remove.rst", "The agent", "openstack"), "h0001")
        left = operate(["openstack acstor host list -f value -c Host"], "")
        assert left.split() == ["h0000"]
    finally:
        made.stop()


@pytest.mark.openstack
@pytest.mark.timeout(900)
def test_documented_glance_commands_list_count_and_purge_images(
    glance: uploads.Images, listen: Callable[..., acstor_glance.Listener]
) -> None:
    listener = listen()
    image_id = glance.upload(uploads.some_bytes())
    glance.wait_state(image_id)

    def manage(lines: Sequence[str]) -> list[str]:
        said = []
        for line in lines:
            words = line.replace("/etc/acstor/acstor-glance.conf", str(listener.conf_file)).split()
            argv = [agents.BIN / "acstor-glance-manage", *words[1:]]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode in (0, 3 if "check" in words else 0), f"{line}: {done.stderr}"
            said.append(done.stdout)
        return said

    listed = manage(documents.section("admin/glance.rst", "Install", "acstor-glance-manage"))
    assert re.search(rf"{image_id}.*ready", listed[0])
    assert "served" in manage(documents.section("install/roll_out.rst", "1. Prepare the images"))[0]
    listener.stop()
    would, done = manage(documents.section("admin/remove.rst", "From Glance"))
    assert "would be removed" in would and "removed" in done
    assert "acstor_state" not in glance.record(image_id)
