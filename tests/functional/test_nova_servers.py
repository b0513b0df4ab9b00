# SPDX-License-Identifier: Apache-2.0
"""Servers on acstor: real, unmodified Nova on two hosts, real agents, QEMU, through the API.

A status that the API shows proves little, so disks are compared with the image
byte for byte, and Glance's own log says whether anything was downloaded.
"""

import contextlib
import json
import os
from collections.abc import Iterator

import pytest

from acstor_common import geometry
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import guest_files
from tests.lab import runs
from tests.lab.openstack import cloud
from tests.lab.openstack import installed

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = geometry.MIB
IMAGE_BYTES = 24 * MIB
BOOT_DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def cluster(openstack_lab: cloud.Cloud) -> Iterator[nova_hosts.NovaHosts]:
    if not installed.is_ready():
        pytest.skip(f"the services of OpenStack are not installed: {installed.REMEDY}")
    openstack_lab.start_compute_services()
    with nova_hosts.running(openstack_lab) as running:
        yield running


def new_image(cluster: nova_hosts.NovaHosts, **facts: str) -> str:
    """Upload an image that no host has ever seen, and make it known to the agents."""
    data = bytes(512) + os.urandom(IMAGE_BYTES - 512)
    return cluster.images.map(cluster.images.add(data, **facts))


@pytest.fixture(scope="module")
def image_id(cluster: nova_hosts.NovaHosts) -> str:
    return new_image(cluster)


@contextlib.contextmanager
def agent_away(host: nova_hosts.Host) -> Iterator[None]:
    """Let a host's agent be killed, and start it again after the block."""
    hosts.kill_agent(host.agent)
    try:
        yield
    finally:
        host.agent.stop()
        host.agent.start()
        host.agent.wait_ready()


def test_server_is_active_before_its_image_is_there(cluster):
    image_id = new_image(cluster)
    host = cluster.hosts[0]
    with cluster.server(image_id) as server:
        assert host.agent.status()["images"][image_id]["cached_bytes"] < IMAGE_BYTES / 4
        assert server.lies_on_mirror()
        assert "cache='writeback'" in host.compute.machine.virsh("dumpxml", server.id)
        command = [installed.BIN / "acstor-nova-manage", "check", "--json"]
        found = json.loads(host.run(*command, "--config-file", host.compute.conf_file))
    assert {finding["level"] for finding in found} == {"ok"}
    assert host.base(image_id).is_symlink(), "the image cache keeps it for the next server"


def test_server_lives_on_its_host_as_with_qcow2(cluster, image_id):
    other = new_image(cluster)
    with cluster.server(image_id) as server:
        server.hard_reboot()
        assert server.lies_on_mirror()
        server.client.rebuild_server(server.id, other)
        server.wait("ACTIVE")
        assert server.lies_on_mirror(other)
        server.client.rescue_server(server.id, image_ref=image_id)
        server.wait("RESCUE")
        assert server.lies_on_mirror(image_id, "disk.rescue")
        server.client.unrescue_server(server.id)
        server.wait("ACTIVE")
        server.client.stop_server(server.id)
        server.wait("SHUTOFF")
        server.client.start_server(server.id)
        server.wait("ACTIVE")
        assert server.lies_on_mirror(other)


def test_server_moves_between_hosts(cluster, image_id):
    first, second = cluster.hosts
    with cluster.server(image_id, first) as server:
        server.live_migrate(second)
        assert server.lies_on_mirror()
        server.hard_reboot()
        server.client.migrate_server(server.id)
        server.confirm()
        assert (server.host, server.lies_on_mirror()) == (first, True)
        server.client.resize_server(server.id, cluster.flavor("bigger"))
        server.wait("VERIFY_RESIZE")
        server.client.revert_server_resize(server.id)
        server.wait("ACTIVE")
        assert (server.host, server.lies_on_mirror()) == (first, True)
        server.client.resize_server(server.id, cluster.flavor("bigger"))
        server.confirm()
        assert server.lies_on_mirror()
        info = json.loads(server.host.run("qemu-img", "info", "-U", "--output=json", server.disk()))
        assert info["virtual-size"] == 2 << 30
        for name in ("disk.local", "disk.swap"):
            assert server.host.run("qemu-img", "info", "-U", server.disk(name))


def test_snapshot_is_the_server_s_disk_and_boots(cluster, image_id):
    host = cluster.hosts[0]
    with cluster.server(image_id) as server:
        snapshot_id = server.snapshot()
        assert server.lies_on_mirror()
    before = host.fallbacks().get("not-raw", 0)
    with cluster.server(snapshot_id) as copy:
        assert copy.has_bytes_of(image_id)
    assert host.fallbacks()["not-raw"] == before + 1
    assert cluster.images.downloads(snapshot_id) == 1


def test_server_is_shelved_and_comes_back(cluster, image_id):
    with cluster.server(image_id) as server:
        server.client.shelve_server(server.id)
        server.wait("SHELVED_OFFLOADED")
        server.client.unshelve_server(server.id)
        server.wait("ACTIVE")
        assert server.lies_on_mirror()


def test_image_is_brought_to_the_hosts_of_an_aggregate_on_request(cluster):
    image_id = new_image(cluster)
    host = cluster.hosts[1]
    aggregate = cluster.client.create_aggregate(name="pre-seeded")
    try:
        cluster.client.add_host_to_aggregate(aggregate, host.name)
        cluster.client.aggregate_precache_images(aggregate, [image_id])

        def is_here() -> bool:
            image = host.agent.status()["images"].get(image_id)
            return bool(image and image["cached_bytes"] == IMAGE_BYTES)

        runs.wait_for(is_here, nova_hosts.DEADLINE_S, "the image", host.agent.log)
        assert host.is_mirrored(image_id)
        assert cluster.images.downloads(image_id) == 0
    finally:
        cluster.client.remove_host_from_aggregate(aggregate, host.name)
        cluster.client.delete_aggregate(aggregate)


def test_without_an_agent_a_server_is_built_by_downloading(cluster):
    image_id = new_image(cluster)
    host = cluster.hosts[1]
    with agent_away(host), cluster.server(image_id, host) as server:
        assert server.has_bytes_of(image_id)
        assert not host.base(image_id).is_symlink()
    assert cluster.images.downloads(image_id) == 1
    assert "agent-unreachable, " in host.compute.log()
    with cluster.server(new_image(cluster), host) as server:
        assert server.lies_on_mirror()
    assert host.fallbacks()["agent-unreachable"] >= 1


def test_image_without_a_map_is_downloaded(cluster):
    image_id = cluster.images.add(os.urandom(MIB))
    with cluster.server(image_id) as server:
        assert server.has_bytes_of(image_id)
    assert cluster.hosts[0].fallbacks()["not-mapped"] >= 1


def test_image_that_is_not_what_glance_says_is_refused(cluster):
    """As Nova refuses it after a download: an ISO 9660 image that claims to be raw."""
    iso = bytes(32 * geometry.KIB) + b"\x01CD001\x01" + bytes(MIB)
    image_id = cluster.images.map(cluster.images.add(iso))
    made = cluster.client.create_server(
        name="forged",
        image_id=image_id,
        flavor_id=cluster.flavor("tiny"),
        networks="none",
        host=cluster.hosts[0].name,
    )
    server = nova_hosts.Server(cluster, made.id, image_id)
    try:
        assert server.wait("ERROR").fault["message"]
        assert not os.path.lexists(cluster.hosts[0].base(image_id))
    finally:
        server.delete()


def test_links_that_were_removed_are_mended(cluster):
    image_id = new_image(cluster)
    host = cluster.hosts[0]
    with cluster.server(image_id, host) as server:
        host.base(image_id).unlink()
        server.hard_reboot()
        assert server.lies_on_mirror()
        host.base(image_id).unlink()
        host.base(image_id).symlink_to(f"/nowhere/images/{image_id}.raw")
        server.hard_reboot()
        assert server.lies_on_mirror()


def test_server_outlives_its_image_in_glance(cluster):
    image_id = new_image(cluster)
    first, second = cluster.hosts
    with cluster.server(image_id, first) as server:
        kept = cluster.lab.folder / "kept.raw"
        kept.write_bytes(cluster.images.stored(image_id).read_bytes())
        cluster.lab.connect().image.delete_image(image_id)
        server.hard_reboot()
        server.live_migrate(second)
        assert "Images are identical" in second.run(
            "qemu-img", "compare", "-U", server.disk(), kept
        )


def test_instance_that_starts_with_its_host_waits_for_the_agent(cluster, image_id):
    host = cluster.hosts[0]
    resume = {"resume_guests_state_on_host_boot": True}
    options = nova_hosts.nova_options(host.agent)
    options["DEFAULT"] |= resume
    with cluster.server(image_id, host) as server:
        host.compute.stop()
        host.compute.machine.virsh("destroy", server.id)
        hosts.kill_agent(host.agent)
        host.agent.stop()
        with cluster.changed(host, options, is_started=False):
            waits = f"waiting for the mirror of image {image_id}"
            runs.wait_for(
                lambda: waits in host.compute.log(), nova_hosts.DEADLINE_S, waits, host.compute.log
            )
            host.agent.start()
            host.agent.wait_ready()
            running = lambda: server.id in host.compute.machine.virsh("list", "--uuid")  # noqa: E731
            runs.wait_for(running, nova_hosts.DEADLINE_S, "the instance", host.compute.log)
            server.wait("ACTIVE")
            assert server.lies_on_mirror()


def test_host_goes_back_to_qcow2_under_running_servers(cluster, image_id):
    host = cluster.hosts[1]
    with cluster.server(image_id, host) as server:
        with cluster.changed(host, {"DEFAULT": {"debug": True}}):
            server.hard_reboot()
            assert server.lies_on_mirror()
            unseen = new_image(cluster)
            with cluster.server(unseen, host) as other:
                assert other.has_bytes_of(unseen)
            assert cluster.images.downloads(unseen) == 1
        server.hard_reboot()
        assert server.lies_on_mirror()


def test_guest_boots_and_meets_no_error_while_workers_die(cluster, lab_image):
    host = cluster.hosts[0]
    with lab_image.raw.open("rb") as data:
        image_id = cluster.images.map(cluster.images.add(data))
    cluster.client.create_flavor(name="guest", ram=384, vcpus=1, disk=2)
    with cluster.server(image_id, host, "guest") as server:
        log = host.compute.instances / server.id / "console.log"
        read = lambda: log.read_text(errors="replace") if log.exists() else ""  # noqa: E731
        for words in ("Linux version", "systemd"):
            runs.wait_for(lambda w=words: w in read(), BOOT_DEADLINE_S, words, read)
            hosts.kill(host.agent.worker_pid())
        runs.wait_for(lambda: guest_files.MARKER in read(), BOOT_DEADLINE_S, "the login", read)
        assert "I/O error" not in read()
        assert cluster.images.downloads(image_id) == 0
        assert host.agent.log().count("starting another") >= 2


def test_server_is_evacuated_from_a_host_that_lost_power(cluster, image_id):
    first, second = cluster.hosts
    with cluster.server(image_id, second) as server:
        service = next(iter(cluster.client.services(binary="nova-compute", host=second.name)))
        second.compute.crash()
        cluster.client.update_service_forced_down(service, forced=True)
        cluster.client.evacuate_server(server.id, host=first.name)
        runs.wait_for(
            lambda: server.host.name == first.name,
            nova_hosts.DEADLINE_S,
            "the evacuation",
            first.compute.log,
        )
        server.wait("ACTIVE", "SHUTOFF")
        assert server.lies_on_mirror()
        second.compute.machine.boot()
        second.agent.stop()
        second.agent.start()
        second.agent.wait_ready()
        cluster.lab.start_compute_services()
        cluster.client.update_service_forced_down(service, forced=False)
