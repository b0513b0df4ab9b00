# SPDX-License-Identifier: Apache-2.0
"""Migrations between a host with acstor and one without: real Nova on both.

They mostly test stock Nova on the other side, so they run nightly; one of them is in
``test_nova_servers.py``, in every run.

"""

import os

import pytest

from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves

pytestmark = [
    hosts.needs_fuse,
    hosts.needs_take_over,
    pytest.mark.nightly,
]

MIB = nova_hosts.MIB
to_qcow2 = pytest.mark.parametrize("other", ["qcow2"], indirect=True)


def is_flat(server):
    info = server.host.run("qemu-img", "info", "-U", server.disk())
    return "backing file" not in info


def flatten(server):
    """Flatten the disk as the document on Nova says."""
    server.host.compute.machine.virsh("blockpull", server.id, "vda", "--wait")
    assert is_flat(server)


def written(cluster, server):
    """Write to the disk of a server, and return its expected content."""
    kept = nova_moves.ExpectedDisk(cluster, server)
    kept.write(4 * MIB, 0x5A)
    return kept


@pytest.fixture(scope="module", params=["qcow2", "raw"])
def other(cluster, request):
    """The second host, without acstor."""
    with nova_moves.stock(cluster.hosts[1], cluster, request.param):
        yield request.param


def test_stopped_server_is_migrated(cluster, other):
    first, second = cluster.hosts
    image_id = cluster.images.new()
    with cluster.server(image_id, first) as server:
        kept = written(cluster, server)
        nova_moves.migrate(server)
        assert kept.is_on(second)
        server.hard_reboot()
        kept.write(8 * MIB, 0x5B)
        nova_moves.migrate(server)
        assert kept.is_on(first)
        assert first.is_mirrored(image_id)
        nova_moves.migrate(server, cluster.flavor("bigger"))
        assert kept.is_on(second)
        server.hard_reboot()


@to_qcow2
def test_server_is_unshelved_on_another_host(cluster, other):
    first, second = cluster.hosts
    with cluster.server(cluster.images.new(), first) as server:
        kept = written(cluster, server)
        nova_moves.unshelve(server, second)
        assert kept.is_on(second)
        nova_moves.unshelve(server, first)
        assert kept.is_on(first)


@to_qcow2
def test_server_with_a_deleted_image_is_migrated(cluster, other):
    """Nova copies the target of the link in the image cache."""
    first, second = cluster.hosts
    image_id = cluster.images.new()
    with cluster.server(image_id, first) as server:
        kept = written(cluster, server)
        first.agent.ctl("pre-seed", image_id)
        cluster.images.client.delete_image(image_id)
        nova_moves.migrate(server)
        assert kept.is_on(second)
        assert not second.base(image_id).is_symlink()


def test_flattened_server_is_migrated_without_its_image(cluster, other):
    first, second = cluster.hosts
    image_id = cluster.images.new()
    with cluster.server(image_id, first) as server:
        kept = written(cluster, server)
        flatten(server)
        cluster.images.client.delete_image(image_id)
        cluster.lab.glance.kill()
        try:
            server.live_migrate(second)
            assert kept.is_on(second)
            assert not os.path.lexists(second.base(image_id))
            server.hard_reboot()
            assert kept.is_on(second)
        finally:
            cluster.lab.start_image_services()


@to_qcow2
def test_server_is_evacuated_to_a_host_without_acstor(cluster, other):
    first, second = cluster.hosts
    image_id = cluster.images.new()
    with cluster.server(image_id, first) as server, nova_moves.crashed(cluster, first):
        kept = nova_moves.ExpectedDisk(cluster, server)
        nova_moves.evacuate(cluster, server, second)
        assert kept.is_on(second)
        server.client.start_server(server.id)
        server.wait("ACTIVE")
