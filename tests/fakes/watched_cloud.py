# SPDX-License-Identifier: Apache-2.0
"""A small cloud with all that operators monitor; each part can be broken.

Two hosts with agents and Nova's files, the decision service with its REST API behind Keystone, a
listener beside Glance, and a Prometheus with acstor's alerts.  Constants shorten minutes to
seconds.  Tests look at the cloud only through operators' commands.
"""

import configparser
import contextlib
import importlib.metadata
import json
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_decision import conf as decision_conf
from acstor_decision.db import database
from acstor_decision.identity import certificate_authority
from tests.fakes import compute_host
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import decision
from tests.lab import local
from tests.lab import prometheus
from tests.lab import runs
from tests.lab import tuned
from tests.lab import tuned_wsgi
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import client
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.lab.openstack import installed

MIB = geometry.MIB
HOSTS = ("compute1", "compute2")
BROKEN = "compute2"
"""The host on which tests break things."""
USER = "broken"
"""That host's user and password at the broker."""
CONTROLLER = socket.gethostname()
"""The listener's host name."""
IMAGE_BYTES = 12 * MIB
WAIT_S = 40.0
LIFE_S = 600.0
EVERY = "500ms"
HEALTH = "acstor_decision.core.health_checks"
API_CONSTANTS: tuned.Constants = {
    tuned.COLLECTION_S: decision.COLLECTION_S,
    f"{HEALTH}.LATE_S": 2.0,
    f"{HEALTH}.LISTENER_S": 4.0,
    f"{HEALTH}.TROUBLE_S": 2.0,
    f"{HEALTH}.NO_SAMPLE_S": 4.0,
}
AGENT_CONSTANTS: tuned.Constants = {
    tuned.COLLECTION_S: decision.COLLECTION_S,
    tuned.BOOT_IDLE_S: 1.0,
    tuned.METRICS_KEPT_S: 0.0,
    "acstor_agent.mount.dead_mounts.SCAN_INTERVAL_S": 1.0,
}
LISTENER_CONSTANTS: tuned.Constants = {
    tuned.RECONCILE_INTERVAL_S: 5.0,
    "acstor_glance.controller.protection_reconciler.PASS_S": 1.0,
    "acstor_glance.controller.protection_reconciler.REPORT_S": 1.0,
}
DECISION_CONSTANTS: tuned.Constants = {
    tuned.METRICS_KEPT_S: 0.0,
    f"{HEALTH}.NO_SAMPLE_S": 4.0,
}
MANAGE_CONSTANTS: tuned.Constants = {"acstor_glance.deletion_protection.SAMPLE_AGE_S": 4.0}
LAST_ROUND = "acstor_decision_last_round_timestamp_seconds"
THRESHOLDS = {
    "acstor_fault_start_timestamp_seconds > 300": "acstor_fault_start_timestamp_seconds > 2",
    f"{LAST_ROUND} > 120": f"{LAST_ROUND} > 6",
}


class Api(acstor_decision.DecisionApi):
    """The REST API with the cloud's constants."""

    module = tuned_wsgi.__name__

    def environment(self) -> Mapping[str, str]:
        """Return its configuration's path, and its constants."""
        return {**super().environment(), tuned.VARIABLE: json.dumps(dict(API_CONSTANTS))}


class WatchedCloud:
    """A healthy cloud.

    :param lab: Keystone and Glance, with broker and database
    :ivar agents: by host
    :ivar nova: Nova's files, by host
    """

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.lab, self.folder, self._stack = lab, folder, stack
        self.images = local.ImageFolder(folder / "images")
        self.image_ids = [self._image(seed) for seed in (1, 2)]
        self._url = lab.mariadb.new_database("watched")
        self._ports = {name: local.unused_port() for name in (*HOSTS, CONTROLLER)}
        self.service = stack.enter_context(self._decision_service())
        self.keeper = self._authority()
        self.api = Api(lab, folder / "api", self._url)
        self.listener = acstor_glance.Listener(
            "listener", lab, folder, constants=LISTENER_CONSTANTS, boot_images="recorded"
        )
        for part in (self.api, self.listener):
            part.start()
            stack.callback(part.stop)
        self.lab.rabbitmq.control("add_user", USER, USER)
        stack.callback(self.lab.rabbitmq.control, "delete_user", USER)
        self.lab.rabbitmq.control("set_permissions", "-p", "/", USER, ".*", ".*", ".*")
        self.agents = {name: self._agent(name) for name in HOSTS}
        self.nova = {name: self._compute(name) for name in HOSTS}
        self.prometheus = stack.enter_context(self._prometheus())
        self.api.wait_ready()
        self.api.register()
        self.listener.wait_ready()

    def _image(self, seed: int) -> ids.ImageId:
        """Make an image in Glance and in the agents' folder."""
        data = local.random_bytes(IMAGE_BYTES, seed)
        image_id = self.images.add(data)
        client = self.lab.connect().image
        client.create_image(
            id=image_id,
            name=f"watched-{seed}",
            disk_format="raw",
            container_format="bare",
            data=data,
        )
        self._stack.callback(self._delete, image_id)
        return image_id

    def _delete(self, image_id: ids.ImageId) -> None:
        """Delete an image, protected or not."""
        client = self.lab.connect().image
        client.update_image(image_id, is_protected=False)
        client.delete_image(image_id)

    def _decision_service(self) -> decision.Instance:
        listen = f"{local.LOOPBACK}:{self._ports[CONTROLLER]}"
        return decision.Instance(
            self.folder,
            CONTROLLER,
            self.lab.rabbitmq.url,
            self._url,
            constants=DECISION_CONSTANTS,
            metrics_listen=listen,
        )

    def _authority(self) -> certificate_authority.CertificateAuthority:
        conf = cfg.ConfigOpts()
        decision_conf.register_opts(conf)
        conf([], project="acstor", default_config_files=[], default_config_dirs=[])
        conf.set_override("connection", self._url, "database")
        store = database.Database(conf)
        self._stack.callback(store.close)
        return certificate_authority.CertificateAuthority(conf.acstor_decision, store)

    def _agent(self, name: str) -> agents.Agent:
        """Start and enrol the agent of a host."""
        folder = self.folder / name
        folder.mkdir()
        made = agents.Agent(
            local.LocalHost(name, "", local.LOOPBACK, folder),
            "",
            sections={
                "DEFAULT": {"transport_url": self.transport_url(name)},
                "source_file": {"folder": self.images.folder},
                "oslo_messaging_rabbit": {"rabbit_retry_interval": 1, "rabbit_retry_backoff": 0},
            },
            constants=AGENT_CONSTANTS,
            sources="file",
            peer_listen=f"{local.LOOPBACK}:{local.unused_port()}",
            metrics_listen=f"{local.LOOPBACK}:{self._ports[name]}",
            traffic_interfaces="lo",
            link_mbit=1000,
            keep_images="host",
        )
        self.enrol(made)
        self._stack.enter_context(made)
        self._stack.enter_context(hosts.bounded(made, LIFE_S))
        made.wait_ready()
        return made

    def transport_url(self, name: str, virtual_host: str = "") -> str:
        """Return a host's ``transport_url``."""
        url = f"{self.lab.rabbitmq.url}{virtual_host}"
        return url.replace("guest:guest", f"{USER}:{USER}") if name == BROKEN else url

    def enrol(self, agent: agents.Agent, life_s: int = 86400) -> None:
        """Enrol a host: write a new certificate and key."""
        host, key = ids.parse_host_id(agent.host.name), certificates.new_key()
        request = certificates.request(host, key)
        keeper = self.keeper
        keeper.certificate_lifetime_s = life_s
        keeper.allow_host(host, certificates.fingerprint(certificates.request_key(request)))
        issued = keeper.enrol_host(host, "by hand", local.LOOPBACK, request, "")
        agent.state_dir.mkdir(parents=True, exist_ok=True)
        new = identity_files.IdentitySet(issued.ca, issued.certificate, key, issued.signers)
        identity_files.write(agent.identity, new)

    def _compute(self, name: str) -> compute_host.Compute:
        agent = self.agents[name]
        made = compute_host.Compute(
            self.folder / name / "nova", agent, installed.BIN / "acstor-nova-manage"
        )
        image_id = self.image_ids[HOSTS.index(name)]
        agent.ctl("attach", image_id)
        made.make_instance(image_id)
        return made

    def _prometheus(self) -> Any:
        address = {name: f"{local.LOOPBACK}:{port}" for name, port in self._ports.items()}
        targets = {
            "acstor-agent": {name: address[name] for name in HOSTS},
            "acstor-decision": {CONTROLLER: address[CONTROLLER]},
            "acstor-glance-listener": {CONTROLLER: f"{local.LOOPBACK}:{self.listener.port}"},
        }
        rules = prometheus.hurried(self.folder, THRESHOLDS)
        return prometheus.running(self.folder / "prometheus", targets, rules, EVERY)

    # Operators' views

    def status(self) -> dict[str, Any]:
        """Return the output of ``openstack acstor status --json``."""
        said = acstor_decision.openstack(self.lab, "admin", "status", "--json")
        assert said.stdout, said.stderr
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def gate(self, commands: Sequence[str], place: str) -> list[subprocess.CompletedProcess[str]]:
        """Run the commands of a gate; return their output and statuses.

        :param place: host of the commands; those for another kind of host are skipped
        """
        done = []
        for line in commands:
            program, *words = line.split()
            if program == "acstor-nova-manage" and place in HOSTS:
                done.append(self.nova[place].run(*words))
            elif program == "acstor-glance-manage" and place == CONTROLLER:
                done.append(self._manage(*words[words.index("--config-file") + 2 :]))
            elif program == "openstack":
                done.append(client.openstack(self.lab, "admin", *words))
        return done

    def _manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``acstor-glance-manage`` on the controller."""
        argv = tuned.argv("acstor_glance.cmd.manage", MANAGE_CONSTANTS)
        whole = [*argv, "--config-file", self.listener.conf_file, *words]
        return subprocess.run(whole, check=False, capture_output=True, text=True, timeout=60)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the firing alerts."""
        return self.prometheus.alerts()

    def complaints(self) -> list[str]:
        """Return all findings of the status and all alerts."""
        found = [json.dumps(one) for one in self.status()["findings"]]
        return [*found, *(json.dumps(alert) for alert in self.alerts())]

    def wait_quiet(self) -> None:
        """Wait until there is neither a finding nor an alert."""
        said: list[str] = []
        looks = 0

        def is_quiet() -> bool:  # twice in a row: a finding may be late
            nonlocal looks
            said[:] = self.complaints()
            looks = 0 if said else looks + 1
            return looks == 2

        runs.wait_for(is_quiet, WAIT_S, "a quiet cloud", lambda: "\n".join(said))

    # Faults

    @contextlib.contextmanager
    def reconfigured(
        self,
        name: str,
        sections: ini.Sections,
    ) -> Iterator[None]:
        """Run a host's agent with other options for the block."""
        agent = self.agents[name]
        file = agent.config_file
        before, parser = file.read_text(), configparser.ConfigParser(interpolation=None)
        parser.read_string(before)
        parser.read_dict(sections)
        agent.stop()
        with file.open("w") as changed:
            parser.write(changed)
        agent.start()
        try:
            agent.wait_ready()
            yield
        finally:
            agent.stop()
            file.write_text(before)
            agent.start()
            agent.wait_ready()

    @contextlib.contextmanager
    def transport_url_of(self, url: str) -> Iterator[None]:
        """Run the agent of BROKEN with another ``transport_url`` for the block."""
        with self.reconfigured(BROKEN, {"DEFAULT": {"transport_url": url}}):
            yield

    @contextlib.contextmanager
    def password_refused(self) -> Iterator[None]:
        """Change a host's password at the broker for the block."""
        control = self.lab.rabbitmq.control
        control("change_password", USER, "another")
        control("close_all_connections", "the password was changed")
        try:
            yield
        finally:
            control("change_password", USER, USER)

    @contextlib.contextmanager
    def agent_dead(self) -> Iterator[None]:
        """Kill the agent of a host for the block."""
        agent = self.agents[BROKEN]
        hosts.kill_agent(agent)
        try:
            yield
        finally:
            restart(agent)

    @contextlib.contextmanager
    def mount_dead(self) -> Iterator[None]:
        """Restart a killed agent while a guest uses a disk on the dead mount."""
        agent, image_id = self.agents[BROKEN], self.image_ids[HOSTS.index(BROKEN)]
        disk = self.nova[BROKEN].instances / image_id / "disk"
        with compute_host.guest(disk, agent.image_path(image_id)):
            hosts.kill_agent(agent)
            restart(agent)
            yield

    @contextlib.contextmanager
    def cache_full(self) -> Iterator[None]:
        """Make a host's cache too small for the images of its instances."""
        small = {"acstor_agent": {"cache_limit_bytes": str(IMAGE_BYTES * 3 // 2)}}
        with self.reconfigured(BROKEN, small):
            self.agents[BROKEN].ctl("attach", self.image_ids[0])
            self.nova[BROKEN].make_instance(self.image_ids[0])
            yield

    @contextlib.contextmanager
    def certificate_ended(self) -> Iterator[None]:
        """Give a host a certificate that expires after a second, for the block."""
        agent = self.agents[BROKEN]
        self.enrol(agent, life_s=1)
        try:
            yield
        finally:
            self.enrol(agent)

    @contextlib.contextmanager
    def hung(self, part: str) -> Iterator[None]:
        """Freeze the listener, or the leading instance, for the block."""
        pid = self.listener.pid if part == "listener" else self.service._process.pid
        with hosts.frozen(pid):
            yield

    @contextlib.contextmanager
    def versions_apart(self) -> Iterator[None]:
        """Run another version of a host's agent for the block."""
        info = self.folder / "newer" / "acstor-99.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acstor\nVersion: 99\n")
        plugins = importlib.metadata.distribution("acstor").read_text("entry_points.txt")
        (info / "entry_points.txt").write_text(plugins or "")
        agent = self.agents[BROKEN]
        paths = f"{info.parent}:{runs.CHECKOUT}"
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTHONPATH", paths)
            agent.stop()
            agent.start()
        try:
            agent.wait_ready()
            yield
        finally:
            restart(agent)
            shutil.rmtree(info.parent)


def restart(agent: agents.Agent) -> None:
    """Restart an agent, and wait until it serves."""
    agent.stop()
    agent.start()
    agent.wait_ready()


@contextlib.contextmanager
def running(lab: cloud.Cloud, folder: pathlib.Path) -> Iterator[WatchedCloud]:
    """Run such a cloud for the block."""
    with contextlib.ExitStack() as stack:
        made = WatchedCloud(lab, folder, stack)
        stack.callback(agents.ask_to_end, made.agents.values())
        yield made
