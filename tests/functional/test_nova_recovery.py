# SPDX-License-Identifier: Apache-2.0
"""Servers survive their host: Nova evacuates them with the disk of a checkpoint.

Nova, the agents, the REST API and the vaults are real; the library makes the checkpoint.

"""

import contextlib
import time
import uuid

import pytest
from oslo_config import cfg

from acstor_common.model import geometry
from acstor_decision import conf as decision_conf
from acstor_decision.db import database
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.fakes import taken_checkpoints
from tests.lab import vaults
from tests.lab.openstack import acstor_decision

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB, CHUNK = geometry.MIB, geometry.DEFAULT_CHUNK_BYTES
DISK_BYTES = 1 << 30
ACTIVE_WITHIN_S = 10.0
"""Guaranteed time from the request to Nova; slow machines get more."""
SLOW = 6


class Recovery:
    """The REST API with its database, and vaults that keep checkpoints.

    The first host's Nova uses the API.

    """

    def __init__(self, cluster, api, store, folder, holders) -> None:
        self.cluster, self.api, self._store = cluster, api, store
        self._folder, self.holders = folder, holders

    def take(self, server, kept) -> str:
        """Take a checkpoint of a server with its expected disk, and return its id."""
        image = self.cluster.images.stored(server.image_id)
        changed = taken_checkpoints.changed_chunks(kept._path, image, CHUNK)
        owner = vaults.Vault(self._folder / server.host.name, server.host.name)
        made = taken_checkpoints.TakenCheckpoint(
            owner, server.id, server.image_id, geometry.Geometry(DISK_BYTES, CHUNK), changed
        )
        made.put(self.holders)
        checkpoint_id = str(uuid.uuid4())
        assert self._store.record_checkpoint(
            made.reported(checkpoint_id, self.holders), time.time(), 2
        )
        return checkpoint_id

    @contextlib.contextmanager
    def used_by(self, host, **own):
        """Let Nova on a host use the API."""
        options = nova_hosts.nova_options(host.agent)
        options["acstor"] |= {"decision_url": self.api.url, **own}
        with self.cluster.changed(host, options):
            yield


@pytest.fixture(scope="module")
def recovery(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recovery")
    connection = f"sqlite:///{folder}/decision.sqlite"
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    conf.set_override("connection", connection, "database")
    store = database.Database(conf)
    store.upgrade()
    api = acstor_decision.DecisionApi(cluster.lab, folder / "api", connection)
    with contextlib.ExitStack() as stack:
        stack.callback(store.close)
        stack.callback(api.stop)
        api.start()
        api.wait_ready()
        holders = []
        for name in ("keeper1", "keeper2"):
            vault = vaults.Vault(folder / name, name)
            vault.others = tuple(host.name for host in cluster.hosts)
            stack.callback(vault.close)
            vault.start()
            holders.append(vault)
        made = Recovery(cluster, api, store, folder, holders)
        stack.enter_context(made.used_by(cluster.hosts[0]))
        yield made


def disks_of(host):
    return [disk_id for disk_id in host.agent.status()["disks"]]


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # seven starts of a server, and a host that boots
def test_evacuated_server_has_the_data_of_its_last_checkpoint(cluster, recovery):
    first, second = cluster.hosts
    with cluster.server(cluster.images.new(), second) as server:
        kept = nova_moves.ExpectedDisk(cluster, server)
        for at, pattern in ((4 * MIB, 0x5A), (0, 0x11), (10 * MIB + 12345, 0x77)):
            kept.write(at - at % 512, pattern)
        checkpoint_id = recovery.take(server, kept)
        with nova_moves.crashed(cluster, second):
            began_s = time.monotonic()
            nova_moves.evacuate(cluster, server, first)
            took_s = time.monotonic() - began_s
            assert took_s < SLOW * ACTIVE_WITHIN_S
            assert kept.is_on(first)
            assert disks_of(first) == [checkpoint_id]
            reported = server.client.get_server(server.id)
            assert reported.metadata["acstor_recovered_from"].startswith("2027-01-15T08:00:00")
            server.client.start_server(server.id)  # as Nova leaves it since 2.95
            server.wait("ACTIVE")
            kept.write(8 * MIB, 0x33)
            nova_hosts.restart_agent(first)
            server.hard_reboot()
            assert kept.is_on(first)
            server.client.rebuild_server(server.id, server.image_id)
            server.wait("ACTIVE")
            assert server.lies_on_mirror(), "who asks for a rebuild wants an empty disk"


@pytest.mark.nightly
def test_server_without_a_checkpoint_starts_empty_only_if_preferred(cluster, recovery):
    first, second = cluster.hosts
    with (
        cluster.server(cluster.images.new(), second) as server,
        cluster.server(cluster.images.new(), second) as other,
        nova_moves.crashed(cluster, second),
    ):
        cluster.client.evacuate_server(server.id, host=first.name)
        server.wait("ERROR")
        fault = cluster.client.get_server(server.id).fault
        assert "checkpoints: the server has none" in str(fault)
        with recovery.used_by(first, recover="preferred"):
            nova_moves.evacuate(cluster, other, first)
            assert other.lies_on_mirror()
