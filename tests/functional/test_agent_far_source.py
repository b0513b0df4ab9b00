# SPDX-License-Identifier: Apache-2.0
"""The fill of a booting image: an agent far from its image server does not defer it."""

import pytest

from acstor_agent.core.boot import boot_memory
from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import delay_link
from tests.lab import image_server
from tests.lab import local
from tests.lab import network

pytestmark = hosts.needs_fuse
MIB = geometry.MIB
STATES = {None: "booting", 20.0: "fully_cached"}
"""Expected states by the delay of the server's link in ms."""


@pytest.mark.parametrize("delay_ms", STATES)
def test_fill_of_a_booting_image_is_deferred_only_with_a_near_source(images, delay_ms):
    image_id = images.add(local.random_bytes(8 * MIB))
    delay = delay_link.LinkDelay(delay_ms) if delay_ms else None
    with (
        network.Network(1, 100, 100, source_delay=delay) as net,
        image_server.ImageServer(net.source, images.folder) as server,
        agents.Agent(net.hosts[0], server.url, keep_images="host") as agent,
    ):
        agent.wait_ready()
        with agent.image_path(image_id).open("rb", buffering=0) as file:
            assert len(file.read(MIB)) == MIB  # the guest's first reads
            within_s = boot_memory.IDLE_S - 10
            hosts.wait_fill_state(agent, image_id, STATES[delay_ms], within_s)
