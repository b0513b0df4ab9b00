# SPDX-License-Identifier: Apache-2.0
"""The container images, built and run by the example of the guide.

``tools/test.sh packages`` or ``pytest -m packages`` runs these tests; all other runs skip them.

"""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import uuid

import pytest

from acstor_common import errors
from acstor_common.service import console_script
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.lab import container_host
from tests.lab import documents
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import ini
from tests.lab.openstack import uploads

pytestmark = hosts.of_packages

KOLLA = "kolla==23.0.0"
KOLLA_FILES = pathlib.Path(__file__).resolve().parents[2] / "packaging/containers/kolla"
FOLDER = "cd packaging/containers"
COMPOSE = f"{FOLDER} && podman-compose"
MIRROR = "/var/lib/acstor/mirror"
SOURCE = "/var/lib/acstor/images-of-tests"
GID = 42436
BUILD = (
    "podman build --quiet --network host --ulimit nofile=4096:4096 --ulimit nproc=4096:4096"
    " --volume /srv/pip.conf:/etc/pip.conf:ro"
)
CONTROLLER_CONF = "/etc/acstor/acstor-decision.conf"
BROKER = "# transport_url = rabbit://acstor:SECRET@controller:5672/"
MIB = 1 << 20
DEADLINE_S = 180.0
WITHOUT_AGENT_S = 3.0
PIP_CONF = "[global]\ntimeout = 180\ncert = /etc/ssl/certs/ca-certificates.crt\n"


@pytest.fixture(scope="module")
def host():
    try:
        with container_host.ContainerHost() as made:
            made.path("/srv/pip.conf").write_text(PIP_CONF)
            lines = documents.section("install/containers.rst", "Building them")
            made.run("\n".join(lines).replace("podman build", BUILD))
            yield made
    except errors.Unusable as e:
        if "needs root and debootstrap" in str(e):
            pytest.skip(str(e))
        raise


@pytest.fixture
def image(host):
    """Return the path of an image whose chunk map the listener's container made."""
    folder = host.path("/srv/images")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    path = folder / f"{uuid.uuid4()}.raw"
    path.write_bytes(local.random_bytes(8 * MIB))
    host.run(
        "podman run --rm --network host --volume /srv/images:/srv/images localhost/acstor-glance"
        f" acstor-prehash /srv/images/{path.name} -o /srv/images/{path.stem}.acmap"
    )
    return path


def configure(host):
    """Configure the agent for this lab: a folder of images, and a group without a name."""
    host.run(f"mkdir -p /etc/acstor {SOURCE}")
    host.run(f"cp /srv/images/* {SOURCE}")
    host.path("/etc/acstor/acstor-agent.conf").write_text(
        f"[acstor_agent]\nhost = h1\nsources = file\ncontrol_group = {GID}\n"
        f"peer_listen = {local.LOOPBACK}:{local.unused_port()}\nmetrics_listen =\n"
        f"[source_file]\nfolder = {SOURCE}\n"
    )


def wait_healthy(host, name):
    def is_healthy():
        with contextlib.suppress(errors.Unusable):
            host.run(f"podman healthcheck run {name}")
            return True
        return False

    runs.wait_for(is_healthy, DEADLINE_S, name, lambda: host.run(f"podman logs --tail 20 {name}"))


def test_reads_wait_while_the_agents_container_is_replaced(host, image):
    configure(host)
    folders, start, status, remove, again = documents.section(
        "install/containers.rst", "On a compute host"
    )
    host.run(f"{folders}; {FOLDER}; {start}")
    wait_healthy(host, "acstor-holder")
    wait_healthy(host, "acstor-agent")
    assert re.search(r"^\| Field ", host.run(status), re.MULTILINE)
    assert host.path("/run/acstor/control.sock").stat().st_gid == GID
    mirror = host.path(f"{MIRROR}/images/{image.name}")
    first = host.run("podman inspect --format '{{.Id}}' acstor-agent")
    with guest_readers.Readers(image, [mirror], seed=1) as readers:
        host.run(remove)
        with pytest.raises(errors.Unusable, match="acstor-agent"):
            host.run("podman healthcheck run acstor-agent")
        time.sleep(WITHOUT_AGENT_S)
        host.run(f"{FOLDER}; {again}")
        wait_healthy(host, "acstor-agent")
        tally = readers.stop()
    assert host.run("podman inspect --format '{{.Id}}' acstor-agent") != first
    assert "taking over the mount" in host.run("podman logs acstor-agent")
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.longest_s > WITHOUT_AGENT_S
    host.run(f"{COMPOSE} stop agent && podman-compose stop holder && podman rm --all --force")


def test_decision_service_and_api_run_with_the_default_database(host):
    host.run("mkdir -p /etc/acstor")
    text = (
        host.path(f"/root/acstor{CONTROLLER_CONF}")
        .read_text()
        .replace(BROKER, "transport_url = fake:")
    )
    for option in ("auth_url", "password"):
        text = text.replace(f"# {option} =", f"{option} =")
    host.path(CONTROLLER_CONF).write_text(text)
    lines = documents.section("install/containers.rst", "On a controller")
    host.run("; ".join([FOLDER, *lines]))
    for name in ("acstor-decision", "acstor-decision-api"):
        wait_healthy(host, name)
    host.run(f"{COMPOSE} stop decision && podman-compose stop api && podman rm --all --force")


def test_listener_prepares_an_image_and_gateway_is_up(host, image_services):
    """Glance's stores are folders here, which the gateway's container cannot access."""
    host.run("mkdir -p /etc/acstor /etc/glance")
    options = acstor_glance.options(image_services, "/var/lib/acstor-glance")
    options = {**options, "metrics_listen": "127.0.0.1:9466", "boot_images": "recorded"}
    of_listener = {
        "DEFAULT": {"transport_url": image_services.rabbitmq.url},
        "acstor_glance": options,
    }
    of_gateway = {"acstor_glance": {**options, "metrics_listen": ""}}
    of_glance = "/etc/glance/glance-api.conf"
    ini.write(host.path("/etc/acstor/acstor-glance.conf"), of_listener)
    ini.write(host.path("/etc/acstor/acstor-gateway.conf"), of_gateway)
    shutil.copy(image_services.glance.conf_file, host.path(of_glance))
    host.run(f"chown 971 /etc/acstor/acstor-{{glance,gateway}}.conf {of_glance}")
    host.run(f"{COMPOSE} up -d listener gateway")
    for name in ("acstor-glance-listener", "acstor-glance-gateway"):
        wait_healthy(host, name)
    uploaded = uploads.Images(image_services)
    try:
        uploaded.wait_state(uploaded.upload(local.random_bytes(MIB, seed=20)))
    finally:
        uploaded.clean_up()
    host.run(f"{COMPOSE} stop listener && podman-compose stop gateway && podman rm --all --force")


@pytest.mark.parametrize(
    ("target", "command", "said", "status"),
    [
        ("agent", "acstor-agent --config-file /etc/acstor/acstor-agent.conf", "acstor-agent: ", 1),
        ("glance", "acstor-glance-listener --config-file /dev/null", "acstor-glance-listener: ", 1),
        (
            "glance",
            "acstor-glance-gateway",
            "acstor-glance-gateway: ",
            console_script.NO_APPLICATION,
        ),
        ("decision", "acstor-decision --config-file /nowhere", "/nowhere", 1),
        (
            "decision",
            "acstor-decision-api",
            "the REST API of acstor: ",
            console_script.NO_APPLICATION,
        ),
        ("decision", "acstor-agent", r"acstor-agent: needs acstor\[agent\]", console_script.MISUSE),
    ],
)
def test_bad_configuration_is_named_and_stops_the_container(host, target, command, said, status):
    run = f"timeout {DEADLINE_S} podman run --rm --network host --read-only --tmpfs /tmp"
    wrote = host.run(f"{run} localhost/acstor-{target} {command} || echo status $?")
    assert re.search(said, wrote)
    assert wrote.endswith(f"status {status}\n")
    assert "Traceback" not in wrote


KOLLA_BASE = f"""
FROM {container_host.BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends python3-yaml sudo
COPY set_configs.py /usr/local/bin/kolla_set_configs
COPY start.sh /usr/local/bin/kolla_start
RUN chmod 755 /usr/local/bin/kolla_*; for name in copy_cacerts install_projects; do \
    ln -s /bin/true /usr/local/bin/kolla_$name; done; touch /usr/local/bin/kolla_extend_start
"""


@pytest.fixture
def kolla(host, tmp_path):
    """Build the agent's image on a base with Kolla's start script, which is not acstor's."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        tmp_path,
        KOLLA,
    ]
    if subprocess.run(pip, check=False, timeout=300).returncode:
        pytest.skip("pip brings no kolla here")
    [wheel] = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path, "zip")
    place = host.path("/srv/kolla")
    shutil.copytree(tmp_path / "kolla/docker/base", place)
    (place / "Containerfile").write_text(KOLLA_BASE)
    host.run(f"{BUILD} --tag localhost/kolla-base /srv/kolla")
    host.run(
        f"{BUILD} --build-arg BASE=localhost/kolla-base --target agent --tag localhost/kolla-agent"
        " -f packaging/containers/Containerfile ."
    )


def test_kolla_starts_holder_and_agent(host, kolla, image):
    configure(host)
    host.run("mkdir -p /run/acstor /var/lib/acstor/state")
    for name in ("acstor-agent", "acstor-agent-holder"):
        folder = host.path(f"/etc/kolla/{name}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(KOLLA_FILES / f"{name}.json", folder / "config.json")
    host.run("cp /etc/acstor/acstor-agent.conf /etc/kolla/acstor-agent/")
    run = (
        "podman run --detach --network host --env KOLLA_CONFIG_STRATEGY=COPY_ALWAYS"
        " --volume /etc/kolla/{0}:/var/lib/kolla/config_files:ro --name {0}"
    )
    host.run(
        f"{run.format('acstor-agent-holder')} --volume /var/lib/acstor/state:/var/lib/acstor/state"
        " localhost/kolla-agent kolla_start"
    )
    host.run(
        f"{run.format('acstor-agent')} --privileged --pid host --volume /run/acstor:/run/acstor"
        " --volume /var/lib/acstor:/var/lib/acstor:rshared localhost/kolla-agent kolla_start"
    )

    def is_up():
        with contextlib.suppress(errors.Unusable):
            return bool(
                json.loads(host.run("podman exec acstor-agent acstor-agent-ctl --json status"))
            )
        return False

    runs.wait_for(is_up, DEADLINE_S, "the agent", lambda: host.run("podman logs acstor-agent"))
    host.run(f"cmp {MIRROR}/images/{image.name} /srv/images/{image.name}")
    said = host.run("podman exec acstor-agent stat -c '%a %U' /etc/acstor/acstor-agent.conf")
    assert said == "600 root\n"
    host.run("podman stop --time 30 acstor-agent && podman rm --all --force")
