# SPDX-License-Identifier: Apache-2.0
"""Snapshots flattened from deltas: real Nova, Glance, gateway, agents and QEMU.

The tests compare a snapshot's bytes, as Glance serves them, with the server's disk. The gateway's
log shows that it was flattened from a delta.
"""

import contextlib
import hashlib
import pathlib
import re
import subprocess
from collections.abc import Iterator

import pytest

from acstor_common.image import image_record
from acstor_common.image import lineage
from acstor_common.model import geometry
from acstor_nova import agent_client
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.fakes import tripwire
from tests.lab import local
from tests.lab import tiers
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import cloud
from tests.lab.openstack import ini

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

KIB, MIB = geometry.KIB, geometry.MIB
IMAGE_BYTES = nova_hosts.IMAGE_BYTES
WRITES = (
    f"write -P 7 {MIB + 512} 100k",
    f"write -P 8 {IMAGE_BYTES - 32 * KIB} 64k",
    f"write -z {4 * MIB} 256k",
    "write -P 9 500M 192k",
    "write -P 0 600M 64k",
)
"""Into the image's bytes, across its end, and past it; and zeros."""
MUCH = f"write -P 5 {2 * MIB} 9M"


@pytest.fixture(scope="module")
def gateway(compute_lab: cloud.Cloud) -> Iterator[acstor_gateway.Gateway]:
    """Return a gateway beside Glance."""
    with acstor_gateway.running(compute_lab, auth_cache_s=0) as beside:
        yield beside


@pytest.fixture(scope="module")
def cluster(
    openstack_lab: cloud.Cloud, gateway: acstor_gateway.Gateway
) -> Iterator[nova_hosts.NovaHosts]:
    """Return the two compute hosts, whose Nova uses the gateway."""
    with nova_hosts.running(openstack_lab, more=nova_to(gateway.port)) as running:
        yield running


def nova_to(port: int, **libvirt: object) -> ini.Sections:
    """Return additional options of nova.conf."""
    return {"acstor": {"gateway_url": f"http://127.0.0.1:{port}"}, "libvirt": libvirt}


def options_of(host: nova_hosts.Host, port: int, **libvirt: object) -> ini.Sections:
    return ini.merged(nova_hosts.nova_options(host.agent), nova_to(port, **libvirt))


def new_base(cluster: nova_hosts.NovaHosts, folder: pathlib.Path, kind: str) -> str:
    """Upload an image, a part of which is zeros; return its id."""
    data = bytes(512) + local.random_bytes(IMAGE_BYTES - 512, seed=11, zero_share=0.4)
    if kind == "raw":
        return cluster.images.map(cluster.images.add(data))
    raw, made = folder / "base.raw", folder / "base.qcow2"
    raw.write_bytes(data)
    subprocess.run(["qemu-img", "convert", "-c", "-O", "qcow2", raw, made], check=True, timeout=60)
    return cluster.images.map(cluster.images.add(made.read_bytes(), "qcow2"))


@pytest.fixture(scope="module")
def base_id(cluster: nova_hosts.NovaHosts, tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_base(cluster, tmp_path_factory.mktemp("base"), "raw")


def write(server: nova_hosts.Server, *commands: str) -> None:
    """Write to a server's disk, through its QEMU if it runs."""
    for command in commands:
        if server.client.get_server(server.id).status == "ACTIVE":
            nova_moves.qemu_io(server, command)
        else:
            server.host.run("qemu-io", "-f", "qcow2", "-c", command, server.disk())


def switch_off(server: nova_hosts.Server) -> None:
    server.client.stop_server(server.id)
    server.wait("SHUTOFF")


def is_made_of_changes(gateway: acstor_gateway.Gateway, image_id: str) -> bool:
    return bool(re.search(rf"PUT /v1/images/{image_id}/delta\S* => .*/1.1 200", gateway.log()))


def check(cluster: nova_hosts.NovaHosts, server: nova_hosts.Server, image_id: str) -> None:
    """Check that the downloaded image equals the server's disk and has no errors."""
    image = cluster.images.client.get_image(image_id)
    assert image.status == "active"
    answer = cluster.images.client.download_image(image, stream=True)
    hashed = hashlib.new(image.hash_algo)
    size = 0
    for piece in answer.iter_content(MIB):
        hashed.update(piece)
        size += len(piece)
    assert (hashed.hexdigest(), size) == (image.hash_value, image.size)
    stored = cluster.images.stored(image_id)
    compare = ["qemu-img", "compare", "-U", "-f", "qcow2", "-F", image.disk_format]
    assert "Images are identical" in server.host.run(*compare, server.disk(), stored)
    if image.disk_format == "qcow2":
        said = server.host.run("qemu-img", "check", "-f", "qcow2", stored)
        assert "No errors were found" in said
    check_left(server.host)


def check_left(host: nova_hosts.Host) -> None:
    """Check that the host has no leftover files."""
    folder = host.compute.machine.home / "nova" / "instances" / "snapshots"
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("kind", tiers.first_now(["raw", "qcow2"]))
@pytest.mark.parametrize("status", tiers.first_now(["ACTIVE", "SHUTOFF"]))
def test_flattened_snapshot_equals_the_disk_and_boots(cluster, gateway, tmp_path, kind, status):
    base_id = new_base(cluster, tmp_path, kind)
    host = cluster.hosts[0]
    before = host.fallbacks()
    with cluster.server(base_id) as server:
        write(server, *WRITES[:2])
        if status == "SHUTOFF":
            switch_off(server)
        write(server, *WRITES[2:])
        read = cluster.images.range_bytes(base_id)
        snapshot_id = server.snapshot()
        assert is_made_of_changes(gateway, snapshot_id)
        assert cluster.images.range_bytes(base_id) == read, "nothing of the base came to the host"
        assert server.client.get_server(server.id).status == status
        check(cluster, server, snapshot_id)
        size = cluster.images.client.get_image(snapshot_id).size
        assert size < IMAGE_BYTES, "zeros are not stored"
        cluster.images.map(snapshot_id)
        with cluster.server(snapshot_id) as copy:
            assert host.is_mirrored(snapshot_id) and copy.has_bytes_of(snapshot_id)
    assert host.fallbacks() == before


@pytest.mark.nightly
def test_flattened_snapshot_in_raw_is_complete(cluster, gateway, base_id):
    host = cluster.hosts[0]
    options = options_of(host, gateway.port, snapshot_image_format="raw")
    with cluster.changed(host, options), cluster.server(base_id, host) as server:
        write(server, *WRITES)
        for status in ("ACTIVE", "SHUTOFF"):
            if status == "SHUTOFF":
                switch_off(server)
                write(server, "write -P 3 0 64k")
            snapshot_id = server.snapshot()
            assert is_made_of_changes(gateway, snapshot_id)
            check(cluster, server, snapshot_id)
            assert cluster.images.client.get_image(snapshot_id).disk_format == "raw"


@pytest.mark.nightly
def test_tree_of_three_snapshots_records_its_bases(cluster, gateway, tmp_path):
    image_id = first = new_base(cluster, tmp_path, "qcow2")
    with contextlib.ExitStack() as stack:
        for depth in range(3):
            server = stack.enter_context(cluster.server(image_id, cluster.hosts[depth % 2]))
            write(server, f"write -P {depth + 1} {(depth + 1) * MIB} 256k", WRITES[depth])
            base, image_id = image_id, server.snapshot()
            record = cluster.images.client.get(f"/images/{image_id}").json()
            assert record["base_image_ref"] == first, "Nova names the first of a line"
            assert lineage.bases_of(image_record.Image.from_record(record)) == list(
                dict.fromkeys((base, first))
            )
            assert is_made_of_changes(gateway, image_id)
            check(cluster, server, image_id)
            cluster.images.map(image_id)
        last = stack.enter_context(cluster.server(image_id))
        assert last.host.is_mirrored(image_id) and last.has_bytes_of(image_id)


@pytest.mark.nightly
def test_two_servers_are_snapshotted_concurrently(cluster, gateway, base_id):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(cluster.server(base_id)) for _ in range(2)]
        for number, server in enumerate(servers):
            write(server, f"write -P {number + 1} {MIB} 8M")
        made = [
            server.client.create_server_image(server.id, f"at-once-{server.id}").id
            for server in servers
        ]
        for server, image_id in zip(servers, made, strict=True):
            wait_settled(cluster, server, image_id)
            assert is_made_of_changes(gateway, image_id)
            check(cluster, server, image_id)


@pytest.mark.nightly
def test_unshelved_server_has_its_written_data(cluster, gateway):
    first, second = cluster.hosts
    before = len(re.findall(r"PUT /v1/images/\S+/delta", gateway.log()))
    with cluster.server(cluster.images.new(), first) as server:
        kept = nova_moves.ExpectedDisk(cluster, server)
        kept.write(2 * MIB, 3)
        server.client.shelve_server(server.id)
        server.wait("SHELVED_OFFLOADED")
        assert len(re.findall(r"PUT /v1/images/\S+/delta", gateway.log())) == before + 1
        body = {"unshelve": {"host": second.name}}
        server.client.post(f"/servers/{server.id}/action", json=body).raise_for_status()
        server.wait("ACTIVE")
        assert kept.is_on(second)


def wait_settled(
    cluster: nova_hosts.NovaHosts, server: nova_hosts.Server, image_id: str
) -> str | None:
    """Wait until Nova has finished a snapshot; return the image's status, None if it is deleted."""
    server.wait("ACTIVE", "SHUTOFF", deadline_s=2 * nova_hosts.DEADLINE_S)
    image = cluster.images.client.find_image(image_id, ignore_missing=True)
    return image.status if image else None


# Faults


def fell_back(host: nova_hosts.Host, before: dict[str, int]) -> dict[str, int]:
    """Return Nova's fallbacks since then, counted by reason."""
    new = {reason: times - before.get(reason, 0) for reason, times in host.fallbacks().items()}
    return {reason: times for reason, times in new.items() if times}


def test_snapshot_falls_back_to_nova_without_the_gateway(cluster, gateway, base_id):
    host = cluster.hosts[0]
    before = host.fallbacks()
    gateway.stop()
    try:
        with cluster.server(base_id, host) as server:
            write(server, *WRITES)
            check(cluster, server, server.snapshot())
    finally:
        gateway.start()
        gateway.wait_ready()
    assert fell_back(host, before) == {"gateway-unreachable": 1}


def test_snapshot_falls_back_to_nova_when_its_base_is_deleted(cluster, gateway):
    base_id = cluster.images.new()
    host = cluster.hosts[0]
    before = host.fallbacks()
    with cluster.server(base_id, host) as server:
        write(server, *WRITES)
        client = agent_client.AgentClient(str(host.agent.control_socket), 60.0)
        client.pre_seed(base_id, 60.0)
        cluster.images.client.delete_image(base_id)
        snapshot_id = server.snapshot()
        check(cluster, server, snapshot_id)
        assert not is_made_of_changes(gateway, snapshot_id)
    assert fell_back(host, before) == {"gateway-refused": 1}


@pytest.fixture(scope="module")
def wire(
    cluster: nova_hosts.NovaHosts, gateway: acstor_gateway.Gateway
) -> Iterator[tripwire.Tripwire]:
    """Return a tripwire within the traffic from Nova on the second host to the gateway."""
    host = cluster.hosts[1]
    with (
        tripwire.tripwire(gateway.port, 6 * MIB) as through,
        cluster.changed(host, options_of(host, through.port)),
    ):
        yield through


@pytest.mark.parametrize("status", tiers.first_now(["ACTIVE", "SHUTOFF"]))
def test_snapshot_falls_back_to_nova_when_the_gateway_is_killed(
    cluster, gateway, wire, base_id, status
):
    host, wire.action = cluster.hosts[1], gateway.kill
    before = host.fallbacks()
    try:
        with cluster.server(base_id, host) as server:
            write(server, MUCH, *WRITES)
            if status == "SHUTOFF":
                switch_off(server)
            check(cluster, server, server.snapshot())
            assert server.client.get_server(server.id).status == status
    finally:
        gateway.start()
        gateway.wait_ready()
    assert fell_back(host, before) == {"gateway-unreachable": 1}


@pytest.mark.nightly
def test_deletion_of_the_snapshot_image_midway_leaves_no_files(cluster, wire, base_id):
    made: list[str] = []
    host = cluster.hosts[1]
    wire.action = lambda: cluster.images.client.delete_image(made[0])
    with cluster.server(base_id, host) as server:
        write(server, MUCH)
        made.append(server.client.create_server_image(server.id, "deleted").id)
        assert wait_settled(cluster, server, made[0]) is None
        write(server, *WRITES)  # the server still runs
        check_left(host)


def test_deletion_of_the_base_midway_keeps_the_snapshot_complete(cluster, wire):
    base_id = cluster.images.new()
    host = cluster.hosts[1]
    wire.action = lambda: cluster.images.client.delete_image(base_id)
    with cluster.server(base_id, host) as server:
        write(server, MUCH)
        client = agent_client.AgentClient(str(host.agent.control_socket), 60.0)
        client.pre_seed(base_id, 60.0)
        check(cluster, server, server.snapshot())


def test_snapshot_without_an_agent_is_complete_or_deleted(cluster, gateway, base_id):
    host = cluster.hosts[0]
    with cluster.server(base_id, host) as server:
        write(server, *WRITES)
        with nova_hosts.agent_away(host):
            image_id = server.client.create_server_image(server.id, "no agent").id
            status = wait_settled(cluster, server, image_id)
        assert status in (None, "active")
        if status:
            check(cluster, server, image_id)
        check_left(host)


@pytest.mark.nightly
def test_snapshot_of_a_tenant_falls_back_when_its_base_is_deactivated(cluster, gateway):
    """The gateway reads for a tenant only what that tenant may download."""
    base_id = cluster.images.new()
    cluster.images.client.update_image(base_id, visibility="public")
    tenant = cluster.lab.connect("tenant").compute
    flavor = cluster.flavor("tiny")
    named = {"name": "tenant's", "image_id": base_id, "flavor_id": flavor, "networks": "none"}
    server = nova_hosts.Server(cluster, tenant.create_server(**named).id, base_id)
    try:
        server.wait("ACTIVE")
        host, before = server.host, server.host.fallbacks()
        write(server, *WRITES)
        for reason, count in ((None, 0), ("gateway-refused", 1)):
            if reason:
                client = agent_client.AgentClient(str(host.agent.control_socket), 60.0)
                client.pre_seed(base_id, 60.0)
                cluster.images.client.deactivate_image(base_id)
            image_id = tenant.create_server_image(server.id, f"snapshot {count}").id
            assert wait_settled(cluster, server, image_id) == "active"
            check(cluster, server, image_id)
            assert is_made_of_changes(gateway, image_id) is not bool(reason)
            assert fell_back(host, before) == ({reason: count} if reason else {})
    finally:
        server.delete()
