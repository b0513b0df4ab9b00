# SPDX-License-Identifier: Apache-2.0
"""The decision service publishes an address after the agent there has proven who it is.

The service runs as it does by default, inside the network of its hosts; agents are real.  An
impostor has a certificate and names an address that is not its own: an internal web server's,
and another agent's.
"""

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.fakes import hosts
from tests.fakes import sample_senders
from tests.fakes import server_threads
from tests.lab import agents
from tests.lab import decision
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab.openstack import rabbitmq as rabbitmq_lab

pytestmark = hosts.needs_fuse

LINK_MBIT = 100
WAIT_S = 60.0
NEW_PORT = 7300
AT_HOME = {"h1": f"10.0.0.1:{agents.PEER_PORT}", "h2": f"10.0.0.2:{agents.PEER_PORT}"}


class Cloud(NamedTuple):
    """What the test holds of it."""

    net: network.Network
    database: pathlib.Path
    instance: decision.Instance
    server: image_server.ImageServer
    bus: sample_senders.Bus
    agents: dict[str, agents.Agent]

    def wait_table(self, wanted: dict[str, str]) -> None:
        """Wait until these hosts are on the table, at these addresses."""
        runs.wait_for(
            lambda: sample_senders.list_tables(self.database)[-1:] == [wanted],
            WAIT_S,
            f"a table of {wanted}",
            self.instance.log,
        )

    def published(self) -> set[tuple[str, str]]:
        """Return the hosts and addresses of all tables that were ever published."""
        tables = sample_senders.list_tables(self.database)
        return {place for table in tables for place in table.items()}

    def wait_unproven(self, address: str) -> None:
        """Wait until nobody has proven to be at an address."""
        said = f"no agent authenticates at {address.replace(':', ' port ')}"
        runs.wait_for(
            lambda: said in self.instance.log(), WAIT_S, f"{address} refused", self.instance.log
        )


@pytest.fixture
def cloud(tmp_path: pathlib.Path, rabbitmq: rabbitmq_lab.RabbitMQ) -> Iterator[Cloud]:
    images = local.ImageFolder(tmp_path / "images")
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network.Network(2, LINK_MBIT))
        server = stack.enter_context(image_server.ImageServer(net.source, images.folder))
        door = stack.enter_context(relay.Relay(net.source, rabbitmq.port))
        broker = f"rabbit://guest:guest@{door.address}/"
        database = tmp_path / "decision.sqlite"
        instance = decision.Instance(
            tmp_path, "one", broker, f"sqlite:///{database}", host=net.source
        )
        stack.enter_context(instance)
        bus = sample_senders.Bus(tmp_path, rabbitmq.url)
        stack.callback(bus.close)
        running = {
            host.name: decision.agent(host, instance, None, broker, LINK_MBIT, server.url)
            for host in net.hosts
        }
        for agent in running.values():
            stack.enter_context(agent)
        stack.callback(agents.ask_to_end, running.values())
        yield Cloud(net, database, instance, server, bus, running)


def impostor(
    cloud: Cloud, folder: pathlib.Path, name: str, address: str
) -> contextlib.AbstractContextManager[None]:
    """Have a host with a certificate say in each collection that it is at an address."""
    sender = sample_senders.Sender(cloud.instance, folder / name, name)

    def send(is_over: threading.Event) -> None:
        while not is_over.wait(decision.COLLECTION_S):
            cloud.bus.send(sender.next(address=address))

    return server_threads.beside(send)


def test_only_verified_addresses_are_published_and_changes_are_verified(
    cloud: Cloud, tmp_path: pathlib.Path
) -> None:
    internal = f"{cloud.net.source.address}:{image_server.PORT}"
    with (
        impostor(cloud, tmp_path, "h8", internal),
        impostor(cloud, tmp_path, "h9", AT_HOME["h1"]),
    ):
        cloud.wait_table(AT_HOME)
        cloud.wait_unproven(internal)

        moved, h2 = f"10.0.0.2:{NEW_PORT}", cloud.net.hosts[1]
        silence = ["ipproto", "tcp", "sport", str(NEW_PORT), "blackhole"]
        h2.run(["ip", "rule", "add", *silence])  # it sends samples, and is not reached
        agent = cloud.agents["h2"]
        agent.stop()
        written = agent.config_file.read_text()
        agent.config_file.write_text(written.replace(AT_HOME["h2"], moved))
        agent.start()
        cloud.wait_unproven(moved)
        cloud.wait_table({"h1": AT_HOME["h1"]})
        h2.run(["ip", "rule", "del", *silence])
        cloud.wait_table({"h1": AT_HOME["h1"], "h2": moved})
    assert cloud.published() == {*AT_HOME.items(), ("h2", moved)}
    assert {one.host for one in cloud.server.requests()} <= {cloud.net.source.address}
