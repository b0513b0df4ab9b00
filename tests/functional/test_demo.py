# SPDX-License-Identifier: Apache-2.0
"""The demo's second act on a small network, without the guests of the first one."""

import pathlib

import pytest

from tests.fakes import hosts
from tests.lab import decision
from tests.lab import demo_remap
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import watch

LINK_MBIT = 40

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(
        not pathlib.Path("/usr/sbin/rabbitmq-server").exists(), reason="needs rabbitmq-server"
    ),
]


def test_remap_moves_requests_away_from_the_busy_host(tmp_path) -> None:
    images = local.ImageFolder(tmp_path / "images")
    image_id = images.add(local.random_bytes(64 << 20))
    said: list[str] = []
    with (
        network.Network(4, LINK_MBIT) as net,
        image_server.ImageServer(net.source, images.folder) as server,
        decision.Service(net, dead_after_samples=60) as service,
    ):
        running = service.join(net.hosts[:3], LINK_MBIT, server.url)
        with watch.Watch(service) as seen:
            outside = net.hosts[3]
            result = demo_remap.play(running, outside, LINK_MBIT, image_id, seen, said.append)
            given = seen.given()
    assert result.busy == "h1" and 0 < result.traffic_s < result.remap_s
    assert result.vnodes_after["h1"] < 50 < result.vnodes_before["h1"] == 100
    assert sum(result.vnodes_after.values()) == 300
    before, _, after = result.phases
    assert after.given_share < before.given_share
    assert all(phase.reads for phase in (before, after))
    assert {sender for sender, _ in given} == {"h1", "h2", "h3"}
    assert any("h1 sends 38 Mbit/s" in words for words in said)
