# SPDX-License-Identifier: Apache-2.0
"""Faults under real servers on acstor: they survive all that they survive with stock Nova.

A server counts as alive when it runs and its whole disk reads with the right bytes.

"""

import contextlib
import shutil
import signal
import time

import pytest

from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.lab import guest_files
from tests.lab import runs

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

MIB = nova_hosts.MIB
BOOT_DEADLINE_S = 240.0
END_S = 30.0
"""Limit to reboot or delete a server with waiting reads; 10 s without load."""


def test_removed_links_and_folders_are_restored(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    with cluster.server(image_id, host) as server:
        host.base(image_id).unlink()
        host.base(image_id).symlink_to(f"/nowhere/images/{image_id}.raw")
        server.hard_reboot()
        assert server.lies_on_mirror()
        shutil.rmtree(host.base(image_id).parent)
        server.hard_reboot()
        assert server.lies_on_mirror()


def test_server_is_deleted_while_its_agent_hangs_or_is_stopped(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    with cluster.server(image_id, host) as server, cluster.server(image_id, host) as other:
        with hosts.frozen(host.agent.worker_pid()):
            server.delete()
        with nova_hosts.agent_away(host):
            other.delete()
    assert host.compute.machine.virsh("list", "--all", "--uuid").split() == []


def test_aborted_build_leaves_no_files_and_the_next_one_succeeds(cluster):
    """As with stock Nova, the server is in error and deletable, and the next build succeeds."""
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    server = cluster.begin(image_id, host)
    try:
        with hosts.frozen(host.agent.worker_pid()):
            server.reaches("spawning")
            host.compute.kill()
        host.compute.start()
        nova_hosts.wait_started(host.compute)
        assert server.wait("ERROR")
    finally:
        server.delete()
    assert not list(host.base(image_id).parent.glob(".acstor-*"))
    with cluster.server(image_id, host) as another:
        assert another.lies_on_mirror()


def test_killed_nova_compute_finds_its_servers_again(cluster):
    host = cluster.hosts[0]
    with cluster.server(cluster.images.new(), host) as server:
        host.compute.kill()
        host.compute.start()
        nova_hosts.wait_started(host.compute)
        assert server.lies_on_mirror()
        server.hard_reboot()
        assert server.lies_on_mirror()


@pytest.mark.nightly
def test_full_disk_fails_one_build_and_is_logged(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    folder = cluster.lab.folder / "nova/instances/_base"
    host.run("mount", "-t", "tmpfs", "-o", "nr_inodes=1", "full", folder)
    server = cluster.begin(image_id, host)
    try:
        assert server.wait("ERROR")
        assert "No space left on device" in host.compute.log()
    finally:
        host.run("umount", folder)
        server.delete()
    with cluster.server(image_id, host) as another:
        assert another.lies_on_mirror()


@pytest.mark.nightly
def test_server_survives_an_unmounted_mirror(cluster):
    image_id, unseen = cluster.images.new(), cluster.images.new()
    host = cluster.hosts[0]
    with cluster.server(image_id, host) as server:
        host.run("umount", "--lazy", host.agent.mount_point)
        with cluster.server(unseen, host) as other:
            assert other.has_bytes_of(unseen)
        assert cluster.images.downloads(unseen) == 1
        nova_hosts.restart_agent(host)
        server.hard_reboot()
        assert server.lies_on_mirror()


def test_server_survives_an_outage_of_glance_and_the_broker(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    with cluster.server(image_id, host) as server:
        host.agent.ctl("pre-seed", image_id)
        cluster.lab.glance.kill()
        cluster.lab.rabbitmq.kill()
        try:
            assert server.has_bytes_of(image_id)
            nova_hosts.restart_agent(host)
            assert server.has_bytes_of(image_id), "an agent that is new knows the image"
        finally:
            cluster.lab.start_image_services()
            nova_hosts.wait_subscribed(cluster.lab)
        server.hard_reboot()
        assert server.lies_on_mirror()


@pytest.mark.nightly
def test_agent_with_wrong_credentials_fails_no_server(cluster):
    image_id, unseen = cluster.images.new(), cluster.images.new()
    host = cluster.hosts[0]
    right = host.agent.config_file.read_text()
    with cluster.server(image_id, host) as server:
        host.agent.ctl("pre-seed", image_id)
        host.agent.config_file.write_text(right.replace("acstor-lab", "wrong"))
        try:
            nova_hosts.restart_agent(host)
            server.hard_reboot()
            assert server.lies_on_mirror()
            with cluster.server(unseen, host) as other:
                assert other.has_bytes_of(unseen)
            assert cluster.images.downloads(unseen) == 1
            assert sum(host.fallbacks().values()) == 1
        finally:
            host.agent.config_file.write_text(right)
            nova_hosts.restart_agent(host)


@pytest.mark.nightly
def test_server_survives_the_deactivation_of_its_image(cluster):
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    with cluster.server(image_id, host) as server:
        cluster.images.client.post(f"/images/{image_id}/actions/deactivate").raise_for_status()
        server.hard_reboot()
        assert server.lies_on_mirror()
        hosts.kill(host.agent.worker_pid())
        server.hard_reboot()
        assert server.lies_on_mirror()


def test_server_with_a_cached_image_survives_its_deletion_in_glance(cluster):
    image_id = cluster.images.new()
    first, second = cluster.hosts
    with cluster.server(image_id, first) as server:
        first.agent.ctl("pre-seed", image_id)
        kept = cluster.lab.folder / "kept.raw"
        kept.write_bytes(cluster.images.stored(image_id).read_bytes())
        cluster.images.client.delete_image(image_id)
        server.hard_reboot()
        server.live_migrate(second)
        assert "Images are identical" in second.run(
            "qemu-img", "compare", "-U", server.disk(), kept
        )


@pytest.fixture(scope="module")
def system_id(cluster, lab_image):
    """The image of an operating system, uploaded once."""
    with lab_image.raw.open("rb") as data:
        return cluster.images.map(cluster.images.add(data))


@contextlib.contextmanager
def booting(cluster, system_id):
    """Boot a guest with an operating system on the first host, and yield its server."""
    with cluster.server(system_id, cluster.hosts[0], "guest") as server:
        yield server
        assert cluster.images.downloads(system_id) == 0


def waited_for(words, server):
    runs.wait_for(lambda: words in server.console(), BOOT_DEADLINE_S, words, server.console)


@pytest.mark.nightly
def test_guest_boots_without_errors_while_workers_are_killed(cluster, system_id):
    host = cluster.hosts[0]
    with booting(cluster, system_id) as server:
        for words in ("Linux version", "systemd"):
            waited_for(words, server)
            hosts.kill(host.agent.worker_pid())
        waited_for(guest_files.MARKER, server)
        assert "I/O error" not in server.console()
        assert host.agent.log().count("starting another") >= 2


@pytest.mark.nightly
def test_guest_boots_without_errors_while_supervisors_restart(cluster, system_id, tmp_path):
    host = cluster.hosts[0]
    with (
        nova_hosts.agent_options(host, cache_dir=tmp_path / "cache"),  # with an empty cache
        nova_hosts.kept(host, tmp_path) as restart,
        booting(cluster, system_id) as server,
    ):
        for words, number in (("Linux version", signal.SIGKILL), ("systemd", signal.SIGTERM)):
            waited_for(words, server)
            restart(number)
        waited_for(guest_files.MARKER, server)
        assert "I/O error" not in server.console()
        assert host.agent.log().count("taking over the mount") == 2


@pytest.mark.nightly
def test_guest_with_a_failing_disk_is_paused_and_resumes_after_repair(cluster, system_id, tmp_path):
    """The host caches only chunks that the guest has read: reads of other chunks fail."""
    host = cluster.hosts[0]
    domain = host.compute.machine.virsh
    options = {"read_deadline_s": 1, "keep_images": "none", "cache_dir": tmp_path / "cache"}
    with nova_hosts.agent_options(host, **options), booting(cluster, system_id) as server:
        waited_for("Linux version", server)
        cluster.lab.glance.kill()
        try:
            state = lambda: domain("domstate", "--reason", server.id)  # noqa: E731
            why = lambda: f"{server.console()[-1500:]}\n{state()}"  # noqa: E731
            runs.wait_for(lambda: "paused (I/O error)" in state(), BOOT_DEADLINE_S, "pause", why)
        finally:
            cluster.lab.start_image_services()
        domain("resume", server.id)
        waited_for(guest_files.MARKER, server)
        assert "I/O error" not in server.console()


def test_server_with_waiting_reads_can_be_rebooted_and_deleted(cluster):
    """QEMU obeys SIGTERM only when its reads have ended; libvirt kills it 10 s later."""
    image_id = cluster.images.new()
    host = cluster.hosts[0]
    ended = lambda: host.agent.log().count("of its requests were aborted")  # noqa: E731
    with cluster.server(image_id, host) as server:
        cluster.lab.glance.kill()
        try:
            for number, end in enumerate((server.hard_reboot, server.delete), start=1):
                nova_moves.qemu_io(server, f"aio_read {8 * MIB} 64k")
                late = lambda: host.agent.status()["images"][image_id]["waiting"]  # noqa: E731
                runs.wait_for(late, nova_hosts.DEADLINE_S, "the read", host.agent.log)
                began_s = time.monotonic()
                end()
                assert time.monotonic() - began_s < END_S
                assert ended() >= number, "let go before it was killed"
        finally:
            cluster.lab.start_image_services()
