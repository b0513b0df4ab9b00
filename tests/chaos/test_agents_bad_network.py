# SPDX-License-Identifier: Apache-2.0
"""Real agents with lost and late messages and one liar of four: every byte is right.

30 % of the messages of the peer protocol, in both directions, are lost or late; a fourth host of
the ring responds with every kind of lie.
"""

import contextlib
import pathlib
import threading

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import bad_network
from tests.fakes import hosts
from tests.fakes import lying_peer
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
DATA = local.random_bytes(6 * MIB + 4321, seed=21, zero_share=0.1)
NAMES = ("h1", "h2", "h3")
LOST, LATE = 0.15, 0.15
IMPATIENT = {
    "read_deadline_s": 12.0,  # a peer has a third of it
    "constants": {tuned.COPIES_LIMIT: 1},
}


def read_at_once(paths: list[pathlib.Path]) -> list[bool]:
    got = [False] * len(paths)

    def read(number: int) -> None:
        with contextlib.suppress(OSError):
            got[number] = paths[number].read_bytes() == DATA

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(paths))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    return got


def relayed_cloud(
    stack: contextlib.ExitStack,
    folder: pathlib.Path,
    images: local.ImageFolder,
    seed: int,
) -> tuple[hosts.Cloud, list[bad_network.Relay], lying_peer.LyingPeer]:
    """Start agents that reach each other only through relays, and a liar among them."""
    liar = stack.enter_context(lying_peer.hostile_peer("h4", seed))
    ghosts = {"h4": liar.port}
    cloud = stack.enter_context(
        hosts.cloud(folder, images, NAMES, in_ring_only=ghosts, life_s=90, **IMPATIENT)
    )
    relays = [
        stack.enter_context(bad_network.relaying(port, seed, LOST, LATE))
        for port in (*cloud.ports.values(), liar.port)
    ]
    through = dict(zip((*NAMES, "h4"), (relay.port for relay in relays), strict=True))
    hosts.write_ring(cloud.ring_file, through, epoch=2)
    epochs = [2] * len(NAMES)
    hosts.wait_until(
        lambda: [s["ring"]["epoch"] for s in cloud.statuses().values()] == epochs,
        "the ring of relays",
        30,
    )
    return cloud, relays, liar


@pytest.mark.parametrize("seed", range(2))
def test_every_byte_is_right_with_lost_messages_and_one_lying_peer(tmp_path, seed):
    images = local.ImageFolder(tmp_path / "images")
    image_id: ids.ImageId = images.add(DATA)
    with contextlib.ExitStack() as stack:
        cloud, relays, liar = relayed_cloud(stack, tmp_path, images, seed)
        paths = [agent.image_path(image_id) for agent in cloud.agents.values()]
        assert read_at_once(paths) == [True] * len(NAMES)
        statuses = cloud.statuses().values()
        for status in statuses:
            assert status["images"][image_id]["failed_reads"] == 0
        assert sum(s["fetched"]["home"]["bytes"] for s in statuses) > 0
        assert liar.gets > 0
    moved = sum(relay.passed + relay.lost for relay in relays)
    assert moved > 100
    assert 0.05 < sum(relay.lost for relay in relays) / moved < 0.3
    assert sum(relay.late for relay in relays) > 0
