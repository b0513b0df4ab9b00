# SPDX-License-Identifier: Apache-2.0
"""The decision service with a real broker, a real database and real agents in namespaces.

One cloud serves all tests of this file; each leaves it as it found it: three living hosts,
an instance that leads, nobody drained.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import msgspec
import oslo_messaging
import pytest
from oslo_config import cfg

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_decision.core import threshold
from tests.fakes import decision_databases
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import decision
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab import traffic
from tests.lab import tuned
from tests.lab.openstack import cloud as openstack
from tests.lab.openstack import mariadb as mariadb_lab
from tests.lab.openstack import rabbitmq as rabbitmq_lab

pytestmark = hosts.needs_fuse

LINK_MBIT = 20
SOURCE_MBIT = 10
"""Of the source's link: each rack would ask one that is markedly faster than other racks."""
DEADLINE_S = 60.0
BURST_S = 0.6
CHUNK_BYTES = 65536
H1 = ids.HostId("h1")
IMAGE = local.random_bytes(8 << 20, seed=6)
PLACES = {"h1": "pod1/rack1", "h2": "pod1/rack1", "h3": "pod2/rack1"}
NEAR = (1, threshold.EVERYWHERE)
"""Thresholds where hosts have locations and no switches are known to be busy."""


class Cloud:
    """Three hosts, two instances, their broker and their database."""

    def __init__(
        self,
        net: network.Network,
        rabbit: rabbitmq_lab.RabbitMQ,
        maria: mariadb_lab.MariaDB,
        images: local.ImageFolder,
        switches: pathlib.Path,
    ) -> None:
        self.net, self.rabbit, self.maria = net, rabbit, maria
        self.images, self.switches = images, switches
        self.agents: dict[str, agents.Agent] = {}
        self.instances: list[decision.Instance] = []
        self.image: ids.ImageId

    def report_switch_loads(self, *busy_levels: int) -> None:
        """Say which levels of switches are busy, of the three that there are."""
        levels = [[{"traffic": float(level in busy_levels), "capacity": 1}] for level in range(3)]
        self.switches.write_text(json.dumps({"levels": levels}))

    def epochs(self) -> dict[str, int]:
        """Return the epoch in force on each host."""
        return {name: agent.status()["ring"]["epoch"] for name, agent in self.agents.items()}

    def table(self) -> dict[str, int]:
        """Return how many v-nodes each host has, says the first host."""
        table = agents.request(self.agents["h1"].control_socket, "ring")
        counts = {}
        for host in table["hosts"]:
            owned = host["vnodes"]
            counts[host["host"]] = owned if isinstance(owned, int) else _count(owned)
        return counts

    def thresholds(self) -> set[tuple[int | None, int | None]]:
        """Return the inner and the outer threshold of the tables in force on the hosts."""
        tables = [agents.request(agent.control_socket, "ring") for agent in self.agents.values()]
        return {(table.get("threshold"), table.get("outer_threshold")) for table in tables}

    def places(self) -> list[dict[str, Any]]:
        """Return what tables in force say of single places: who asks elsewhere, who gives less."""
        tables = [agents.request(agent.control_socket, "ring") for agent in self.agents.values()]
        return [table["places"] for table in tables if table.get("places")]

    def exchanged(self) -> tuple[int, int]:
        """Return the bytes that hosts read from the source, and took as homes from other homes."""
        reported = [agent.status()["exchange"] for agent in self.agents.values()]
        return sum(e["source_bytes"] for e in reported), sum(e["relayed_bytes"] for e in reported)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        return self.maria.execute(text, database="decision")

    def newest(self) -> tuple[int, str, str]:
        """Return the epoch of the last published table, why it was, and who was overloaded."""
        [found] = self.query(
            "SELECT epoch, reason, overloaded FROM rings ORDER BY epoch DESC LIMIT 1"
        )
        return found[0], found[1], found[2]

    def overloads(self) -> list[str]:
        """Return who was overloaded, for each table that was published because of that."""
        asked = "SELECT overloaded FROM rings WHERE reason = 'overload' ORDER BY epoch"
        return [overloaded for (overloaded,) in self.query(asked)]

    def wait_collections(self, count: int) -> None:
        """Wait until every host has been heard so many times more."""
        seen = dict(self.query("SELECT host, COUNT(*) FROM traffic GROUP BY host"))

        def has_collected() -> bool:
            now = dict(self.query("SELECT host, COUNT(*) FROM traffic GROUP BY host"))
            return all(now.get(host, 0) >= seen.get(host, 0) + count for host in self.agents)

        wait(has_collected, f"{count} collections", self.logs)

    def wait_followed(self, above: int) -> int:
        """Wait until all hosts have one table with an epoch above this one; return it."""

        def followed() -> bool:
            found = set(self.epochs().values())
            return len(found) == 1 and found.pop() > above

        wait(followed, f"all hosts at an epoch above {above}", self.logs)
        return self.epochs()["h1"]

    def change(self, command: str, host: str) -> int:
        """Drain or enable a host, wait until all hosts follow, and return the epoch."""
        before = max(self.epochs().values())
        decision.manage(self.instances[0].config_file, command, host)
        is_drained = command == "drain"

        def is_followed() -> bool:  # a table may come meanwhile for another reason
            share = self.table().get(host)  # None: the host was silent while the broker was away
            return share is not None and (share == 0) is is_drained

        wait(is_followed, f"{command} {host}", self.logs)
        return self.wait_followed(before)

    def logs(self) -> str:
        parts = [instance.log()[-1500:] for instance in self.instances]
        return "\n".join([*parts, *(agent.log()[-700:] for agent in self.agents.values())])


def _count(owned: dict[str, str]) -> int:
    runs_ = [run.partition("-") for text in owned.values() for run in text.split(",")]
    return sum(int(high or low) - int(low) + 1 for low, _, high in runs_)


def wait(is_true: Callable[[], bool], what: str, log: Callable[[], str]) -> None:
    runs.wait_for(is_true, DEADLINE_S, what, log)


@pytest.fixture(scope="module")
def cloud(
    openstack_lab: openstack.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    for command in ("/usr/sbin/rabbitmq-server", "/usr/sbin/mariadbd"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    rabbitmq, mariadb = openstack_lab.rabbitmq, openstack_lab.mariadb
    rabbitmq.start()
    openstack_lab.start_database()
    rabbitmq.wait_ready()
    folder = tmp_path_factory.mktemp("decision")
    images = local.ImageFolder(folder / "images")
    database = mariadb.new_database("decision")
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network.Network(3, LINK_MBIT, SOURCE_MBIT))
        server = stack.enter_context(image_server.ImageServer(net.source, images.folder))
        door = stack.enter_context(relay.Relay(net.source, rabbitmq.port))
        made = Cloud(net, rabbitmq, mariadb, images, folder / "switches.json")
        made.image = images.add(IMAGE)
        made.report_switch_loads()
        for name in ("one", "two"):
            instance = decision.Instance(
                folder,
                name,
                rabbitmq.url,
                database,
                constants={tuned.SWITCHES: str(made.switches)},
                switch_loads="static",
                dead_after_samples=30,
            )
            made.instances.append(stack.enter_context(instance))
            if name == "one":
                wait(instance.leads, "an instance that leads", made.logs)
        broker = f"rabbit://guest:guest@{door.address}/"
        for host in net.hosts:
            options = {"location": PLACES[host.name], "variants": hosts.BY_HOMES}
            agent = decision.agent(
                host, made.instances[0], None, broker, LINK_MBIT, server.url, **options
            )
            made.agents[host.name] = stack.enter_context(agent)
        stack.callback(agents.ask_to_end, made.agents.values())
        for agent in made.agents.values():
            agent.wait_ready()
        made.wait_followed(0)
        wait(lambda: len(made.table()) == 3, "three hosts on the ring", made.logs)
        wait(lambda: made.thresholds() == {NEAR}, "a group for each rack", made.logs)
        yield made


@contextlib.contextmanager
def reading(cloud: Cloud) -> Iterator[None]:
    """Read chunks on all hosts until the block ends; none may fail or be wrong."""
    ends = threading.Event()
    failures: list[str] = []
    counts = dict.fromkeys(cloud.agents, 0)

    def read(name: str) -> None:
        rng = random.Random(name)
        path = cloud.agents[name].image_path(cloud.image)
        while not ends.is_set():
            offset = rng.randrange(len(IMAGE) // CHUNK_BYTES) * CHUNK_BYTES
            try:
                with path.open("rb", buffering=0) as image:
                    image.seek(offset)
                    is_right = image.read(CHUNK_BYTES) == IMAGE[offset : offset + CHUNK_BYTES]
            except OSError as e:
                failures.append(f"{name}: {e}")
                return
            if not is_right:
                failures.append(f"{name}: wrong bytes at {offset}")
            counts[name] += 1
            ends.wait(0.02)

    readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in cloud.agents]
    for reader in readers:
        reader.start()
    try:
        yield
        began = dict(counts)
        wait(
            lambda: bool(failures) or all(counts[n] > began[n] + 5 for n in counts),
            "reads on all hosts",
            lambda: str(counts),
        )
    finally:
        ends.set()
        for reader in readers:
            reader.join(DEADLINE_S)
    assert failures == []


def test_hosts_join_with_even_shares(cloud: Cloud) -> None:
    assert cloud.table() == {"h1": 100, "h2": 100, "h3": 100}
    rows = cloud.query("SELECT host, address, location, link_bytes_s FROM hosts ORDER BY host")
    assert rows == [
        (host, f"10.0.0.{host[1]}:{agents.PEER_PORT}", place, LINK_MBIT * 125_000)
        for host, place in PLACES.items()
    ]


@pytest.fixture
def outsider(cloud: Cloud) -> Iterator[oslo_messaging.RPCClient]:
    """Somebody who may talk to the broker and is no agent."""
    cfg.CONF([], project="acstor", default_config_files=[], default_config_dirs=[])
    oslo_messaging.set_transport_defaults(decision_messages.EXCHANGE)
    transport = oslo_messaging.get_rpc_transport(cfg.CONF, url=cloud.rabbit.url)
    target = oslo_messaging.Target(topic=decision_messages.TOPIC, version=decision_messages.VERSION)
    yield oslo_messaging.get_rpc_client(transport, target, timeout=DEADLINE_S)
    transport.cleanup()
    cfg.CONF.reset()


def test_malformed_and_forged_samples_are_refused(cloud: Cloud, outsider: Any) -> None:
    before, leader = cloud.epochs(), cloud.instances[0]
    to_all = outsider.prepare(fanout=True)
    forged = msgspec.structs.replace(
        decision_databases.sample("h9", sent_s=time.time()),
        address=f"10.0.0.1:{agents.PEER_PORT}",  # that of h1
        started_s=time.time(),
    )
    own = certificates.Authority.create("forger", time.time(), 3600)
    key = certificates.new_key()
    certificate = own.issue_certificate(certificates.request(H1, key), H1, time.time(), 600)
    in_the_name_of_h1 = msgspec.structs.replace(forged, host="h1")
    unsigned = decision_messages.encode(in_the_name_of_h1)
    signed = decision_messages.encode(
        signed_messages.sign_payload(in_the_name_of_h1, signing.SAMPLE, key, certificate)
    )
    for payload in (None, [], {"payload": 5}, unsigned, unsigned, signed):
        to_all.cast({}, decision_messages.SAMPLE_COLLECTED, payload=payload)
    refusal = f"message {decision_messages.SAMPLE_COLLECTED} is ignored"
    wait(lambda: leader.log().count(refusal) >= 4, "nonsense refused", cloud.logs)
    wait(
        lambda: "none of the trusted authorities issued it" in leader.log(),
        "forgery refused",
        cloud.logs,
    )
    cloud.wait_collections(2)
    assert cloud.epochs() == before


def test_enrolled_host_can_lie_about_itself_only(
    cloud: Cloud, outsider: Any, tmp_path: pathlib.Path
) -> None:
    """A compromised host: it has a certificate, so its own samples are believed."""
    leader = cloud.instances[0]
    decision.manage(leader.config_file, "authority", "issue", "h9", "--out", str(tmp_path))
    identity = [(tmp_path / name).read_bytes() for name in ("key.pem", "cert.pem")]
    before = cloud.table()
    at_h1 = f"10.0.0.1:{agents.PEER_PORT}"
    honest = decision_databases.sample("h9", sent_s=time.time())
    lies = (
        msgspec.structs.replace(honest, host="h1", address="10.0.0.99:7201"),
        msgspec.structs.replace(honest, address=at_h1, started_s=time.time()),
    )
    to_all = outsider.prepare(fanout=True)
    for lie in lies:
        sent = decision_messages.encode(
            signed_messages.sign_payload(lie, signing.SAMPLE, *identity)
        )
        to_all.cast({}, decision_messages.SAMPLE_COLLECTED, payload=sent)
    for reported in (
        "a sample of h1 is rejected: it is signed by h9",
        f"h9: sample 1 is refused: taken_address ({at_h1})",
    ):
        wait(lambda reported=reported: reported in leader.log(), reported, cloud.logs)  # type: ignore[misc]
    cloud.wait_collections(2)
    assert cloud.table() == before
    [(address,)] = cloud.query("SELECT address FROM hosts WHERE host = 'h1'")
    assert address == at_h1


def test_forged_table_on_the_broker_is_refused(cloud: Cloud, outsider: Any) -> None:
    before = cloud.epochs()
    hosts_ = (hash_ring.RingHost("h3", f"10.0.0.3:{agents.PEER_PORT}", 100),)
    text = hash_ring.encode(hash_ring.Ring(before["h1"] + 5, hosts_)).decode()
    other = signed_messages.signature_of(signing.TABLE, text.encode(), signing.new_key())
    to_agents = outsider.prepare(topic=decision_messages.AGENT_TOPIC, fanout=True)
    for signature in ("", other):
        table = decision_messages.RingTable(before["h1"] + 5, text, signature)
        to_agents.cast(
            {}, decision_messages.RING_PUBLISHED, payload=decision_messages.encode(table)
        )
    cloud.wait_collections(2)
    assert cloud.epochs() == before


def test_revoked_host_leaves_the_table_at_once_and_rejoins_after_enrolment(
    cloud: Cloud,
) -> None:
    leader, agent = cloud.instances[0], cloud.agents["h3"]
    before = cloud.epochs()["h1"]
    decision.manage(leader.config_file, "authority", "revoke", "h3")

    def is_out() -> bool:
        return sorted(cloud.table()) == ["h1", "h2"] and cloud.epochs()["h1"] > before

    wait(is_out, "h3 off the table", cloud.logs)
    assert cloud.newest()[1] == "revoked"
    table = agents.request(cloud.agents["h1"].control_socket, "ring")
    assert set(table["revoked"]) == {"h3"}
    wait(lambda: "h3: sample" in leader.log(), "its samples refused", cloud.logs)
    decision.manage(leader.config_file, "authority", "issue", "h3", "--out", str(agent.identity))
    wait(lambda: sorted(cloud.table()) == ["h1", "h2", "h3"], "h3 on the table again", cloud.logs)
    cloud.wait_followed(before)
    for host in ("h1", "h2", "h3"):  # even again, for the tests that follow
        cloud.change("drain", host)
        cloud.change("enable", host)


def test_burst_of_one_collection_moves_no_v_node(cloud: Cloud) -> None:
    before = cloud.newest()
    h1, h2, _ = cloud.net.hosts
    with traffic.flow(h1, h2, 0.95 * LINK_MBIT, seconds=BURST_S):
        cloud.wait_collections(4)
    assert cloud.newest() == before


def test_load_on_a_link_moves_v_nodes_away_from_its_host(cloud: Cloud) -> None:
    h1, h2, _ = cloud.net.hosts
    before = cloud.newest()[0]
    with reading(cloud), traffic.flow(h1, h2, 0.95 * LINK_MBIT):
        wait(lambda: bool(cloud.overloads()), "a remap", cloud.logs)
        cloud.wait_followed(before)
        # Where one end of the flow was noticed first, the other one's share goes by a second remap.
        wait(lambda: cloud.table()["h3"] > 200, "most v-nodes at the idle host", cloud.logs)
        cloud.wait_collections(4)
    published = cloud.overloads()  # not the newest table: another may say which ways are slow
    assert {"h1", "h2"} >= set(published[-1].split()) != set()
    counts = cloud.table()
    assert sum(counts.values()) == 300 and max(counts["h1"], counts["h2"]) < 60
    assert len(published) <= 3, "one for each end of the link, and one when both are known"


def test_each_rack_fetches_one_copy_and_the_source_is_read_once(cloud: Cloud) -> None:
    image = cloud.images.add(local.random_bytes(4 << 20, seed=7))
    wait(lambda: not cloud.places(), "the usual ways, after those past the load", cloud.logs)
    assert cloud.thresholds() == {NEAR}
    source_before, relayed_before = cloud.exchanged()
    for agent in cloud.agents.values():
        assert agent.image_path(image).read_bytes() == cloud.images.path(image).read_bytes()
    source_now, relayed_now = cloud.exchanged()
    # Neighbours advertise across racks, too: a few chunks come that way, without their home.
    assert relayed_now - relayed_before >= 3 << 20, "what one rack read the other took from it"
    assert source_now - source_before < 8 << 20, "it was not read once for each rack"


def test_busy_switches_keep_requests_of_homes_below_them(cloud: Cloud) -> None:
    cloud.report_switch_loads(2)
    with reading(cloud):
        wait(lambda: cloud.thresholds() == {(1, 2)}, "thresholds", cloud.logs)
        cloud.report_switch_loads()
        wait(lambda: cloud.thresholds() == {NEAR}, "the usual thresholds", cloud.logs)


def test_drained_host_owns_no_chunk_until_it_is_enabled(cloud: Cloud) -> None:
    cloud.change("drain", "h2")
    assert cloud.table()["h2"] == 0
    with reading(cloud):
        cloud.change("enable", "h2")
    assert cloud.table()["h2"] == 100


def test_standby_leads_after_the_leader_is_killed_and_reads_continue(cloud: Cloud) -> None:
    one, two = cloud.instances
    assert one.leads() and not two.leads()
    with reading(cloud):
        one.kill()
        wait(two.leads, "the other instance leading", cloud.logs)
        cloud.change("drain", "h3")
        cloud.change("enable", "h3")
    cloud.instances.reverse()
    one.start()


def test_reads_continue_and_tables_follow_after_the_broker_restarts(cloud: Cloud) -> None:
    before = cloud.epochs()
    with reading(cloud):
        cloud.rabbit.kill()
        assert cloud.epochs() == before
        cloud.rabbit.start()
        cloud.rabbit.wait_ready()
        cloud.change("drain", "h3")
    cloud.change("enable", "h3")


def test_reads_continue_and_tables_follow_after_the_database_restarts(cloud: Cloud) -> None:
    before = cloud.epochs()
    with reading(cloud):
        cloud.maria.kill()
        leader = cloud.instances[0]
        wait(lambda: "the database fails" in leader.log(), "the failure noticed", cloud.logs)
        assert cloud.epochs() == before
        cloud.maria.start()
        cloud.maria.wait_ready()
        cloud.change("drain", "h3")
    cloud.change("enable", "h3")
    [(twice,)] = cloud.query("SELECT COUNT(*) - COUNT(DISTINCT epoch) FROM rings")
    assert twice == 0


@hosts.needs_take_over
def test_worker_started_without_the_broker_uses_the_last_table(cloud: Cloud) -> None:
    before, table = cloud.epochs(), cloud.table()
    agent = cloud.agents["h1"]
    killed = agent.worker_pid()
    with reading(cloud):
        cloud.rabbit.kill()
        hosts.kill(killed)
        wait(lambda: agent.worker_pid() not in (killed, None), "another worker", agent.log)
        agent.wait_ready()
        assert cloud.epochs() == before and cloud.table() == table
        cloud.rabbit.start()
        cloud.rabbit.wait_ready()
        cloud.change("drain", "h1")
    cloud.change("enable", "h1")


def test_stopping_agent_serves_guests_while_it_waits_for_a_hung_broker(
    cloud: Cloud,
) -> None:
    agent, data = cloud.agents["h3"], local.random_bytes(4 << 20, seed=41)
    stops = f"worker {agent.worker_pid()} stops"
    with agent.image_path(cloud.images.add(data)).open("rb", buffering=0) as guest:
        cloud.rabbit.signal(signal.SIGSTOP)
        try:
            agent.ask_to_end()
            wait(lambda: stops in agent.log(), stops, agent.log)
            assert os.pread(guest.fileno(), 4096, 2 << 20) == data[2 << 20 :][:4096]
        finally:
            cloud.rabbit.signal(signal.SIGCONT)
    agent.stop()
    agent.start()
    agent.wait_ready()
