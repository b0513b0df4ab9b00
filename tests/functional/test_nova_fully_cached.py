# SPDX-License-Identifier: Apache-2.0
"""Guarantees for a server's image: once fully cached, it depends on no other host or service.

The tests compare each disk with the image byte for byte, past the page cache: the bytes were on the
host, or were fetched at that moment.

"""

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from acstor_common import errors
from acstor_nova import cache_first
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import runs
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

SOON_S = 180.0
SLOW_MBIT = 2.0
"""Rate at which the fill of an image of 12 MiB takes most of a minute."""
KEEPING = {"keep_images": "host", "constants": {tuned.BOOT_IDLE_S: 1}}


@pytest.fixture
def host(cluster) -> Iterator[nova_hosts.Host]:
    """Return a host whose agent keeps images."""
    with nova_hosts.agent_options(cluster.hosts[0], **KEEPING):
        yield cluster.hosts[0]


@pytest.fixture
def slow_host(cluster) -> Iterator[nova_hosts.Host]:
    """Return a host with a low fill rate, so that events happen during the fill."""
    options = {**KEEPING, "fill_rate_limit_mbit": SLOW_MBIT}
    with nova_hosts.agent_options(cluster.hosts[0], **options):
        yield cluster.hosts[0]


def state(host: nova_hosts.Host, image_id: str) -> str:
    whole = host.agent.status()["images"].get(image_id, {}).get("fill")
    return whole["state"] if whole else "not used"


def wait_for(host: nova_hosts.Host, image_id: str, wanted: str) -> None:
    is_so = lambda: state(host, image_id) == wanted  # noqa: E731
    runs.wait_for(is_so, SOON_S, f"{image_id} {wanted}", host.agent.log)


def waits_on(host: nova_hosts.Host, image_id: str, killed: int | None = None) -> None:
    """Wait until reads have waited for long, in a worker that was not killed."""

    def is_so() -> bool:
        with contextlib.suppress(errors.Unusable, OSError):  # between two workers
            is_next = host.agent.worker_pid() not in (None, killed)
            image = host.agent.status()["images"].get(image_id, {})
            return is_next and image.get("waiting") is not None
        return False

    runs.wait_for(is_so, SOON_S, f"reads of {image_id} that wait", host.agent.log)


def keep(cluster: nova_hosts.NovaHosts, image_id: str) -> pathlib.Path:
    """Keep an image's bytes outside of Glance and the agents; return the file."""
    kept = cluster.lab.folder / f"kept-{image_id}"
    kept.write_bytes(cluster.images.stored(image_id).read_bytes())
    return kept


def compare(server: nova_hosts.Server, kept: pathlib.Path) -> str:
    """Compare a whole disk with bytes, past the page cache; return qemu-img's output."""
    return server.host.run("qemu-img", "compare", "-U", "-T", "none", server.disk(), kept)


def comparing(server: nova_hosts.Server, kept: pathlib.Path) -> subprocess.Popen[bytes]:
    """Start to compare; its reads wait for absent bytes."""
    argv = ["qemu-img", "compare", "-U", "-T", "none", server.disk(), kept]
    return server.host.compute.machine.inside.popen(argv, stdout=subprocess.PIPE)


@contextlib.contextmanager
def without_glance(cluster: nova_hosts.NovaHosts) -> Iterator[None]:
    cluster.lab.glance.kill()
    try:
        yield
    finally:
        cluster.lab.start_image_services()


def test_server_with_a_fully_cached_image_needs_no_glance_and_no_peer(cluster, host):
    image_id = cluster.images.new()
    with cluster.server(image_id, host) as server:
        wait_for(host, image_id, "fully_cached")
        kept = keep(cluster, image_id)
        cluster.images.client.delete_image(image_id)
        with without_glance(cluster), nova_hosts.agent_away(cluster.hosts[1]):
            assert "Images are identical" in compare(server, kept)
            hosts.kill(host.agent.worker_pid())
            server.hard_reboot()
            assert "Images are identical" in compare(server, kept)
            assert state(host, image_id) == "fully_cached"


@pytest.fixture
def patient_flavor(cluster) -> Iterator[str]:
    """Return a flavor whose servers start once their image is fully cached."""
    name = "cache-first"
    made = cluster.client.create_flavor(name=name, ram=64, vcpus=1, disk=1)
    cluster.client.create_flavor_extra_specs(made, {cache_first.EXTRA_SPEC: str(int(SOON_S))})
    yield name
    cluster.client.delete_flavor(made)


def test_server_of_a_waiting_flavor_is_active_once_its_image_is_cached(
    cluster, slow_host, patient_flavor
):
    image_id = cluster.images.new()
    with cluster.server(image_id, slow_host, patient_flavor, 2 * SOON_S) as server:
        assert state(slow_host, image_id) == "fully_cached"
        assert "not-cached" not in slow_host.fallbacks()
        with without_glance(cluster), nova_hosts.agent_away(cluster.hosts[1]):
            assert "Images are identical" in compare(server, keep(cluster, image_id))


def test_image_that_must_be_cached_is_downloaded_on_a_host_that_keeps_none(cluster):
    host = cluster.hosts[1]
    image_id = cluster.images.new(img_fully_cached_within=str(int(SOON_S)))
    with cluster.server(image_id, host) as server:
        assert not host.is_mirrored(image_id)
        assert host.fallbacks()["not-cached"] == 1
        assert server.has_bytes_of(image_id)


def test_reads_wait_for_glance_until_the_image_is_fully_cached(cluster, slow_host):
    image_id = cluster.images.new()
    with cluster.server(image_id, slow_host) as server:
        wait_for(slow_host, image_id, "filling")
        kept = keep(cluster, image_id)
        with without_glance(cluster):
            reader = comparing(server, kept)
            waits_on(slow_host, image_id)
            killed = slow_host.agent.worker_pid()
            hosts.kill(killed)
            waits_on(slow_host, image_id, killed)
            assert reader.poll() is None
        said, _ = reader.communicate(timeout=SOON_S)
        assert (reader.returncode, b"Images are identical" in said) == (0, True)
        slow_host.agent.ctl("hydrate", image_id)
        wait_for(slow_host, image_id, "fully_cached")


def test_image_lost_in_glance_is_fully_cached_from_another_host(cluster, host):
    image_id = cluster.images.new()
    second = cluster.hosts[1]
    second.agent.ctl("pre-seed", image_id)
    kept = keep(cluster, image_id)
    with cluster.server(image_id, host) as server:
        cluster.images.client.delete_image(image_id)
        wait_for(host, image_id, "fully_cached")
        with without_glance(cluster), nova_hosts.agent_away(second):
            assert "Images are identical" in compare(server, kept)


@pytest.mark.nightly
def test_image_of_two_servers_is_fully_cached_though_one_is_deleted(cluster, slow_host):
    image_id = cluster.images.new()
    with cluster.server(image_id, slow_host) as server:
        with cluster.server(image_id, slow_host):
            wait_for(slow_host, image_id, "filling")
        slow_host.agent.ctl("hydrate", image_id)
        wait_for(slow_host, image_id, "fully_cached")
        with without_glance(cluster):
            assert "Images are identical" in compare(server, keep(cluster, image_id))


@pytest.mark.nightly
def test_image_is_fully_cached_though_its_host_crashes_meanwhile(cluster, slow_host):
    image_id = cluster.images.new()
    with cluster.server(image_id, slow_host) as server:
        wait_for(slow_host, image_id, "filling")
        slow_host.compute.crash()
        cluster.lab.start_compute_services()
        slow_host.agent.stop()  # its processes outside of the host
        slow_host.agent.start()
        slow_host.agent.wait_ready()
        nova_hosts.wait_started(slow_host.compute)
        server.client.start_server(server.id)
        server.wait("ACTIVE")
        slow_host.agent.ctl("hydrate", image_id)
        wait_for(slow_host, image_id, "fully_cached")
        with without_glance(cluster):
            assert "Images are identical" in compare(server, keep(cluster, image_id))
