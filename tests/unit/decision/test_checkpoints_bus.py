# SPDX-License-Identifier: Apache-2.0
"""A checkpoint daemon's bus client and the decision service on an in-memory message bus."""

import time

import pytest
from oslo_config import cfg

from acstor_checkpoint.schedule import bus_client
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.model import checkpoint_intervals
from acstor_common.model import ids
from acstor_common.wire import checkpoint_messages as messages
from acstor_common.wire import message_bus
from acstor_decision import checkpoint_registry
from acstor_decision import interval_lookup
from acstor_decision import nova_client
from acstor_decision import rpc
from tests.fakes import checkpoint_hosts
from tests.fakes import enrolled_hosts

WAIT_S = 30.0
HOST = ids.HostId("h1")
RECORD = checkpoint_hosts.record()


@pytest.fixture
def nova():
    return checkpoint_hosts.Nova()


@pytest.fixture
def bus(tmp_path):
    """Return the configuration files for the shared bus."""
    path = tmp_path / "bus.conf"
    path.write_text("[DEFAULT]\ntransport_url = kombu+memory:////\n")
    yield [str(path)]
    cfg.CONF.reset()


@pytest.fixture
def daemon(tmp_path, configure, store, nova, bus, listens):
    """Return a host's bus client connected to a running service."""
    hosts = enrolled_hosts.EnrolledHosts(configure(), store, time.time)
    key, certificate = hosts.identity(HOST)
    hosts.identity("h2")  # holds the checkpoint
    trust = hosts.keeper.load_trust_state()
    held = identity_files.IdentitySet(trust.ca, certificate, key, trust.signers)
    identity_files.write(tmp_path / "identity", held)
    files = identity_files.IdentityFiles(HOST, identity_files.files_in(tmp_path / "identity"))
    transport = message_bus.open_global_transport(bus, [])
    made = bus_client.BusClient(HOST, files, transport)
    asked = interval_lookup.IntervalLookup(nova, 300)
    kept = checkpoint_registry.CheckpointRegistry(
        store, nova, hosts.keeper.load_trust_state, asked, kept=2, kept_after_s=60.0
    )
    answers = {
        messages.REGISTER_CHECKPOINT: kept.register_checkpoint,
        messages.KEPT_CHECKPOINTS: kept.list_kept,
        messages.INTERVALS: kept.answer_intervals,
        messages.OWNERS: kept.list_orphaned_owners,
        messages.SERVICE_KEY: kept.service_key,
    }
    service = rpc.AgentBus(cfg.CONF, "one")
    service.start_server(lambda signed: None, answers)
    assert listens.wait(WAIT_S)
    made.keeper = hosts.keeper
    yield made
    made.stop()
    service.stop_server()


def test_checkpoint_is_registered_over_the_bus(daemon, store):
    assert daemon.register_checkpoint(RECORD) == {RECORD.manifest_name}
    [row] = store.list_checkpoints("", 9, "", "")
    assert (row.checkpoint_id, row.disk_key, row.interval_s) == (
        RECORD.checkpoint_id,
        RECORD.key,
        600,
    )


@pytest.mark.expect_log("is refused: according to Nova, there is no server")
def test_checkpoint_of_a_server_elsewhere_is_refused_over_the_bus(daemon, store, nova):
    nova.servers = {}
    with pytest.raises(errors.Unusable, match="according to Nova, there is no server"):
        daemon.register_checkpoint(RECORD)
    assert store.list_checkpoints("", 9, "", "") == []


def test_intervals_of_aggregates_and_servers_are_fetched_over_the_bus(daemon, nova):
    said = {checkpoint_intervals.NAME: "60"}
    nova.groups = [nova_client.Aggregate({HOST}, said)]
    nova.metadata = {HOST: {RECORD.instance_id: said}}
    assert daemon.fetch_intervals() == (60, {RECORD.instance_id: 300})


def test_departed_owners_are_listed_over_the_bus(daemon):
    daemon.keeper.revoke_host("h2")
    assert daemon.departed_owners(["h2", HOST]) == {"h2"}
