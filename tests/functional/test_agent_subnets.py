# SPDX-License-Identifier: Apache-2.0
"""Agents with only IPv6, each in its own subnet, exchange chunks."""

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.fakes import subnets
from tests.lab import agents
from tests.lab import image_server
from tests.lab import local
from tests.lab import network

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

DATA = local.random_bytes(6 * geometry.MIB)
METRICS_PORT = 9464


@pytest.fixture
def image_id(images: local.ImageFolder) -> ids.ImageId:
    return images.add(DATA)


def from_home(agent: agents.Agent, image_id: ids.ImageId) -> int:
    """Return how many bytes of an image came from the other host for reads that waited."""
    counted: int = agent.status()["images"][image_id]["read"]["home"]["bytes"]
    return counted


def test_hosts_in_two_ipv6_subnets_read_the_source_once(
    images: local.ImageFolder, image_id: ids.ImageId
) -> None:
    with (
        subnets.ipv6_hosts("h1", "h2", "images") as (first, second, server),
        image_server.ImageServer(server, images.folder) as source,
    ):
        ring_file = agents.write_ring((first, second), server.folder / "ring.json")

        def agent(host: network.Host) -> agents.Agent:
            assert not host.run(["ip", "-4", "route"]), "there is no IPv4"
            listen = f"{host.address}:{METRICS_PORT}"
            return agents.Agent(host, source.url, ring_file, metrics_listen=listen)

        with agent(first) as one, agent(second) as other:
            one.wait_ready()
            other.wait_ready()
            with hosts.bounded(one), hosts.bounded(other):
                assert one.image_path(image_id).read_bytes() == DATA
                assert other.image_path(image_id).read_bytes() == DATA
                assert from_home(one, image_id) > 0
                assert from_home(other, image_id) > 0
            url = f"http://{second.address}:{METRICS_PORT}/metrics"
            assert "acstor_" in first.run(["curl", "--globoff", "--silent", "--show-error", url])
        sent = source.bytes_sent(f"/{image_id}.raw")
        assert len(DATA) <= sent <= 1.1 * len(DATA), "once for both"
