# SPDX-License-Identifier: Apache-2.0
"""A server that outlives its host with what it wrote: all of it real, from its disk to the CLI.

Two compute hosts, each with its agent and its checkpoint daemon, and a third host that keeps
checkpoints; the decision service, its REST API and the broker between them.
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common.identity import identity_files
from acstor_common.model import checkpoint_intervals
from acstor_common.model import geometry
from acstor_common.wire import checkpoint_messages as messages
from acstor_decision import interval_lookup
from acstor_decision import nova_client
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.lab import decision
from tests.lab import identities
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import acstor_checkpoint
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import daemon
from tests.lab.openstack import ini

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = geometry.MIB
KEEPER, KEEPER_ADDRESS = "keeper1", "127.18.0.3"
CHANGED_BYTES = 8 * MIB
COPIES, KEPT = 2, 10
DEADLINE_S = 120.0
ACTIVE_WITHIN_S = 10.0
"""After Nova was asked: that is what is promised, and what a slow machine is given is more."""
SLOW = 6
STARTS_AGAIN = "2.94"
"""The last version of Nova's API in which a server that ran runs again when it is evacuated."""


class Checkpoints:
    """Daemons, decision service and REST API."""

    def __init__(self, cluster: nova_hosts.NovaHosts, folder: pathlib.Path) -> None:
        self.cluster, self._folder = cluster, folder
        connection = f"sqlite:///{folder}/decision.sqlite"
        nova_user = {"nova": nova_hosts.service_user(cluster.lab)}
        broker = cluster.lab.rabbitmq.url
        self.instance = decision.Instance(
            folder,
            "one",
            broker,
            connection,
            nova_user,
            checkpoints_per_server=KEPT,  # the other host registers one when it has the server
        )
        self.api = acstor_decision.DecisionApi(cluster.lab, folder / "api", connection)
        self.api.changes = nova_user
        places = [self._place(host) for host in cluster.hosts]
        keeper = acstor_checkpoint.Place(KEEPER, KEEPER_ADDRESS, folder / KEEPER)
        addresses = {place.host: place.address for place in (*places, keeper)}
        self._ring_file = acstor_checkpoint.write_ring(folder / "ring.json", addresses)
        port = local.unused_port()
        options = [*map(self._options, cluster.hosts), self._shared(keeper.folder / "identity")]
        self.daemons = {
            place.host: acstor_checkpoint.Checkpointd(folder, place, port, more)
            for place, more in zip((*places, keeper), options, strict=True)
        }

    def _place(self, host: nova_hosts.Host) -> acstor_checkpoint.Place:
        machine = host.compute.machine
        folder = machine.home / "checkpoints"
        return acstor_checkpoint.Place(host.name, machine.address, folder, machine)

    def _shared(self, identity: pathlib.Path) -> dict[str, dict[str, object]]:
        own = {"identity_dir": identity, "ring_file": self._ring_file}
        return {"acstor_agent": own}

    def _options(self, host: nova_hosts.Host) -> dict[str, dict[str, object]]:
        agent, shared = host.agent, self._shared(host.agent.identity)
        return {
            "DEFAULT": {"transport_url": self.cluster.lab.rabbitmq.url, "debug": True},
            "acstor": {"mount_point": agent.mount_point},
            "acstor_agent": {**shared["acstor_agent"], "state_dir": agent.state_dir},
            "acstor_checkpoint": {"checkpoint_interval_s": 86_400},
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run all of it, with agents that the decision service knows, until the block ends."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.instance)
            self._enrol(KEEPER, self._folder / KEEPER / "identity")
            for host in self.cluster.hosts:
                stack.callback(self._leave, host)
                self._enrol(host.name, host.agent.identity)
            for host in self.cluster.hosts:
                nova_hosts.restart_agent(host)
            services = (self.api, *self.daemons.values())
            for act in (daemon.Daemon.stop, daemon.Daemon.request_stop):  # the last one comes first
                for service in services:
                    stack.callback(act, service)
            for act in (daemon.Daemon.start, daemon.Daemon.wait_ready):
                for service in services:
                    act(service)
            self.api.register()
            yield

    def _enrol(self, name: str, folder: pathlib.Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        decision.manage(self.instance.config_file, "authority", "issue", name, "--out", folder)

    def _leave(self, host: nova_hosts.Host) -> None:
        """Let the next tests find the agent as those before did."""
        identity_files.write(host.agent.identity, identities.issue(host.name))

    def acstor(self, *words: str) -> Any:
        """Run ``openstack acstor checkpoint …`` and return what it says in JSON."""
        done = acstor_decision.openstack(
            self.cluster.lab, "admin", "checkpoint", *words, "-f", "json"
        )
        assert done.returncode == 0, done.stderr + self.logs()
        return json.loads(done.stdout)

    def listed(self, server: nova_hosts.Server) -> list[dict[str, Any]]:
        """Return the checkpoints of a server as the list has them, the newest first."""
        rows: list[dict[str, Any]] = self.acstor("list", "--server", server.id)
        return rows

    def delete(self, *ids: str) -> None:
        """Delete checkpoints by the command."""
        done = acstor_decision.openstack(self.cluster.lab, "admin", "checkpoint", "delete", *ids)
        assert done.returncode == 0, done.stderr

    def kept_bytes(self, owner: str) -> int:
        """Return how many bytes all vaults have for a host."""
        files = [path for one in self.daemons.values() for path in one.kept_for(owner)]
        return sum(path.stat().st_size for path in files)

    def keeps_nothing_for(self, owner: str) -> bool:
        """Say whether no vault has anything for a host."""
        return not any(one.kept_for(owner) for one in self.daemons.values())

    def logs(self) -> str:
        """Return what everybody has said last."""
        services = (self.api, *self.daemons.values(), self.instance)
        return "\n".join(f"--- {service.name}\n{service.log()[-3000:]}" for service in services)

    def until(self, is_true: Any, what: str) -> None:
        """Wait until something is true."""
        runs.wait_for(is_true, DEADLINE_S, what, self.logs)


@pytest.fixture(scope="module")
def checkpoints(
    cluster: nova_hosts.NovaHosts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Checkpoints]:
    made = Checkpoints(cluster, tmp_path_factory.mktemp("checkpoints"))
    with made.running():
        yield made


def is_ordinary(server: nova_hosts.Server) -> bool:
    """Say whether a server's disk lies on its image in Nova's image cache."""
    disk = server.disk()
    info = json.loads(server.host.run("qemu-img", "info", "-U", "--output=json", disk))
    name = server.host.base(server.image_id).name
    return bool(info["backing-filename"] == str(disk.parents[1] / "_base" / name))


def evacuate(server: nova_hosts.Server, host: nova_hosts.Host) -> float:
    """Have a server built anew on a host, where it runs again; return how long that took, in s."""
    began_s = time.monotonic()
    body = {"evacuate": {"host": host.name}}
    path = f"/servers/{server.id}/action"
    server.client.post(path, json=body, microversion=STARTS_AGAIN).raise_for_status()
    server.arrives(host)
    server.wait("ACTIVE")
    return time.monotonic() - began_s


@pytest.mark.timeout(1200)  # two starts of a server, and a host that boots
def test_evacuated_server_has_the_data_of_its_last_checkpoint(cluster, checkpoints):
    first, second = cluster.hosts
    options = nova_hosts.nova_options(second.agent)
    options["acstor"] |= {"decision_url": checkpoints.api.url}
    with (
        cluster.changed(second, options),
        cluster.server(cluster.images.new(), first) as server,
    ):
        checkpoints.until(lambda: len(checkpoints.listed(server)) == 1, "the first checkpoint")
        before_bytes = checkpoints.kept_bytes(first.name)
        kept = nova_moves.ExpectedDisk(cluster, server)
        for at in range(0, CHANGED_BYTES, MIB):
            kept.write_random(2 * MIB + 3 * at, MIB)
        taken = checkpoints.acstor("create", server.id, "--wait")
        got_bytes = checkpoints.kept_bytes(first.name) - before_bytes
        checkpoint_id = taken["checkpoint_id"]
        rows = checkpoints.listed(server)
        assert rows[0]["ID"] == checkpoint_id and len(rows) == 2
        shown = checkpoints.acstor("show", checkpoint_id)
        assert sorted(shown["holders"]) == sorted({*checkpoints.daemons} - {first.name})
        assert shown["changed_bytes"] == CHANGED_BYTES
        reported = (
            f"{shown['sent_bytes']} bytes sent and {got_bytes} kept for {CHANGED_BYTES} changed"
        )
        nova_moves.qemu_io(server, f"write -P 17 {MIB} {MIB}")  # is not to come back
        with nova_moves.crashed(cluster, first):
            took_s = evacuate(server, second)
            print(
                f"evacuate to ACTIVE: {took_s:.1f} s; {reported}, in {len(shown['holders'])} copies"
            )
            assert took_s < SLOW * ACTIVE_WITHIN_S
            assert kept.is_read_by_guest()
            checkpoints.until(lambda: kept.is_flushed_to(second), "the checkpoint's data")
            metadata = server.client.get_server(server.id).metadata
            assert metadata["acstor_recovered_from"] == shown["taken_at"]
            checkpoints.until(lambda: is_ordinary(server), "a disk on the image's mirror")
            kept.write(40 * MIB, 0x5A)
            nova_moves.qemu_io(server, "flush")
            checkpoints.until(
                lambda: checkpoints.listed(server)[0]["Host"] == second.name, "one of the new host"
            )
            assert kept.is_on(second)
            again = checkpoints.acstor("create", server.id, "--wait")
            assert again["host"] == second.name
        assert got_bytes < 1.1 * COPIES * CHANGED_BYTES
        checkpoints.delete(*[row["ID"] for row in rows])
        checkpoints.daemons[first.name].start()  # it asks then, and not again for ten minutes
        checkpoints.until(lambda: checkpoints.keeps_nothing_for(first.name), "empty vaults")
        assert kept.is_on(second)
        nova_moves.migrate(server)
        assert kept.is_on(first)


@contextlib.contextmanager
def aggregate(host: nova_hosts.Host, client: Any, **metadata: str) -> Iterator[None]:
    """Have a host aggregate with one host for a block."""
    made = client.create_aggregate(name=f"aggregate-{time.monotonic_ns()}")
    try:
        client.add_host_to_aggregate(made, host.name)
        client.set_aggregate_metadata(made, **metadata)
        yield
    finally:
        client.remove_host_from_aggregate(made, host.name)
        client.delete_aggregate(made)


def test_checkpoint_interval_comes_from_aggregate_and_server_metadata(cluster, tmp_path):
    ini.write(tmp_path / "nova.conf", {"nova": nova_hosts.service_user(cluster.lab)})
    conf = cfg.ConfigOpts()
    nova_client.register_opts(conf)
    conf(["--config-file", str(tmp_path / "nova.conf")])
    first, second = cluster.hosts
    asked = interval_lookup.IntervalLookup(nova_client.NovaClient(conf), 300)
    said = {checkpoint_intervals.NAME: "60"}
    with (
        aggregate(first, cluster.client, **said),
        cluster.server(cluster.images.new(), first) as server,
    ):
        cluster.client.set_server_metadata(server.id, **said)
        found = asked.intervals_of_host(first.name)
        assert found.of_host == 60
        assert [*found.of_servers] == [messages.ServerInterval(server.id, 300)]
        assert asked.intervals_of_host(second.name) == messages.IntervalResponse()
