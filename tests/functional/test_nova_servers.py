# SPDX-License-Identifier: Apache-2.0
"""Servers on acstor: real, unmodified Nova on two hosts, real agents, QEMU, through the API.

An API status proves little, so the tests compare disks with the image byte for byte, and check
Glance's own log for downloads.

"""

import contextlib
import json
import os
import subprocess

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.lab import local
from tests.lab import runs
from tests.lab import tiers
from tests.lab.openstack import installed

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = geometry.MIB
IMAGE_BYTES = nova_hosts.IMAGE_BYTES
BASE_BY_HAND = 'cp --sparse=always "$(readlink "$1")" "$1.new" && mv "$1.new" "$1"'


@pytest.fixture(scope="module")
def image_id(cluster: nova_hosts.NovaHosts) -> str:
    return cluster.images.new()


def test_server_is_active_before_its_image_is_cached(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    with cluster.server(image_id) as server:
        shown = host.agent.status()["images"][image_id]
        assert shown["cached_bytes"] < IMAGE_BYTES / 4, shown
        assert cluster.images.range_bytes(image_id) < IMAGE_BYTES / 4
        assert server.lies_on_mirror()
        assert cluster.images.range_bytes(image_id) <= 1.05 * IMAGE_BYTES, "all was read once"
        assert "cache='writeback'" in host.compute.machine.virsh("dumpxml", server.id)
        command = [installed.BIN / "acstor-nova-manage", "check", "--json"]
        found = json.loads(host.run(*command, "--config-file", host.compute.conf_file))
    bad = {finding["what"] for finding in found if finding["level"] != "ok"}
    # These agents keep no images, and were not installed when Nova's part was.
    assert bad - {"version"} == {"keep_images"}
    assert host.base(image_id).is_symlink(), "the image cache keeps it for the next server"


def test_server_lifecycle_on_one_host_works_as_with_qcow2(cluster, image_id):
    other = cluster.images.new()
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


def test_server_is_moved_between_hosts(cluster, image_id):
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


def test_snapshot_equals_the_disk_and_boots(cluster, image_id):
    host = cluster.hosts[0]
    with cluster.server(image_id) as server:
        snapshot_id = server.snapshot()
        assert server.lies_on_mirror()
    assert "holes-unknown" not in host.fallbacks()
    assert cluster.images.client.get_image(snapshot_id).disk_format == "qcow2"
    cluster.images.map(snapshot_id)
    before = host.fallbacks()
    with cluster.server(snapshot_id) as copy:
        assert copy.lies_on_mirror()
        assert copy.has_bytes_of(image_id)
    assert host.fallbacks() == before


@pytest.mark.parametrize("status", tiers.first_now(["ACTIVE", "SHUTOFF"]))
def test_snapshot_does_not_read_zeros_of_the_image(cluster, status):
    data = bytes(512) + local.random_bytes(IMAGE_BYTES, seed=5, zero_share=0.5)
    image_id = cluster.images.map(cluster.images.add(data))
    host = cluster.hosts[0]
    with cluster.server(image_id) as server:
        if status == "SHUTOFF":
            server.client.stop_server(server.id)
            server.wait(status)
        before = host.zeros_read(image_id)
        snapshot_id = server.snapshot()
        assert host.zeros_read(image_id) - before <= MIB, "what Nova looks at of any image"
        stored = [cluster.images.stored(one) for one in (image_id, snapshot_id)]
        assert "Images are identical" in host.run("qemu-img", "compare", *stored)
    assert "holes-unknown" not in host.fallbacks()


def test_server_is_shelved_and_unshelved(cluster, image_id):
    with cluster.server(image_id) as server:
        server.client.shelve_server(server.id)
        server.wait("SHELVED_OFFLOADED")
        server.client.unshelve_server(server.id)
        server.wait("ACTIVE")
        assert server.lies_on_mirror()


def test_server_is_built_from_a_download_without_an_agent(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[1]
    with nova_hosts.agent_away(host), cluster.server(image_id, host) as server:
        assert server.has_bytes_of(image_id)
        assert not host.base(image_id).is_symlink()
    assert cluster.images.downloads(image_id) == 1
    assert "agent-unreachable, " in host.compute.log()
    with cluster.server(cluster.images.new(), host) as server:
        assert server.lies_on_mirror()
    assert host.fallbacks()["agent-unreachable"] >= 1


def test_image_without_a_map_is_downloaded(cluster):
    image_id = cluster.images.add(os.urandom(MIB))
    with cluster.server(image_id) as server:
        assert server.has_bytes_of(image_id)
    assert cluster.hosts[0].fallbacks()["not-mapped"] >= 1


def converted(cluster, folder, disk_format, *options):
    """Upload an image of another format with new content; return its id."""
    (folder / "raw").write_bytes(bytes(512) + os.urandom(4 * MIB) + bytes(MIB))
    convert = ["qemu-img", "convert", "-f", "raw", "-O", disk_format, *options, "raw", "converted"]
    subprocess.run(convert, cwd=folder, check=True, timeout=60)
    return cluster.images.add((folder / "converted").read_bytes(), disk_format=disk_format)


@pytest.mark.parametrize("is_made_raw", tiers.first_now([True, False]))
def test_qcow2_image_is_served_without_conversion(cluster, tmp_path, is_made_raw):
    host = cluster.hosts[0]
    image_id = cluster.images.map(converted(cluster, tmp_path, "qcow2", "-c"))
    options = nova_hosts.nova_options(host.agent)
    options["DEFAULT"] |= {"force_raw_images": False}
    before = host.fallbacks()
    with contextlib.ExitStack() as stack:
        if not is_made_raw:  # Nova's default, as configured here
            stack.enter_context(cluster.changed(host, options))
        server = stack.enter_context(cluster.server(image_id))
        assert server.lies_on_mirror()
        server.hard_reboot()
        assert server.lies_on_mirror()
    assert host.fallbacks() == before


def test_image_in_another_format_is_downloaded_and_converted(cluster, tmp_path):
    image_id = converted(cluster, tmp_path, "vdi")
    with cluster.server(image_id) as server:
        assert server.has_bytes_of(image_id)
        assert not cluster.hosts[0].base(image_id).is_symlink()
    assert cluster.images.downloads(image_id) == 1
    assert cluster.hosts[0].fallbacks()["disk-format"] >= 1


def test_image_of_another_format_than_declared_is_refused(cluster):
    """As Nova refuses it after a download: an ISO 9660 image that claims to be raw."""
    iso = bytes(32 * geometry.KIB) + b"\x01CD001\x01" + bytes(MIB)
    image_id = cluster.images.map(cluster.images.add(iso))
    server = cluster.begin(image_id)
    try:
        assert server.wait("ERROR").fault["message"]
        assert not os.path.lexists(cluster.hosts[0].base(image_id))
    finally:
        server.delete()


@pytest.mark.nightly
def test_instance_started_with_its_host_waits_for_the_agent(cluster, image_id):
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


@pytest.mark.nightly
def test_host_switches_back_to_qcow2_under_running_servers(cluster):
    """As the document on Nova says; finally the host runs without the agent."""
    image_id, unseen = cluster.images.new(), cluster.images.new()
    host = cluster.hosts[1]
    with cluster.server(image_id, host) as server:
        with cluster.changed(host, {"DEFAULT": {"debug": True}}):
            server.hard_reboot()
            assert server.lies_on_mirror()
            with cluster.server(unseen, host) as other:
                assert other.has_bytes_of(unseen)
            assert cluster.images.downloads(unseen) == 1
            server.client.stop_server(server.id)
            server.wait("SHUTOFF")
            base = cluster.lab.folder / "nova/instances/_base" / host.base(image_id).name
            host.run("sh", "-c", BASE_BY_HAND, "sh", base)
            with nova_hosts.agent_away(host):
                server.client.start_server(server.id)
                server.wait("ACTIVE")
                assert server.has_bytes_of(image_id)
        server.hard_reboot()
        assert server.has_bytes_of(image_id)


def test_server_is_evacuated_from_a_host_that_lost_power(cluster, image_id):
    first, second = cluster.hosts
    with cluster.server(image_id, second) as server, nova_moves.crashed(cluster, second):
        nova_moves.evacuate(cluster, server, first)
        assert server.lies_on_mirror()


@pytest.mark.nightly
def test_server_is_migrated_to_a_host_without_acstor(cluster):
    """More migrations are in ``test_nova_moves.py``."""
    image_id = cluster.images.new()
    first, second = cluster.hosts
    with nova_moves.stock(second, cluster, "qcow2"), cluster.server(image_id, first) as server:
        kept = nova_moves.ExpectedDisk(cluster, server)
        kept.write(4 * MIB, 0x5A)
        server.live_migrate(second)
        assert kept.is_on(second)
        assert not second.base(image_id).is_symlink()
        assert cluster.images.downloads(image_id) == 1
