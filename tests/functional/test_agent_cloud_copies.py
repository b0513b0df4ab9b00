# SPDX-License-Identifier: Apache-2.0
"""Replicas of real agents outlive hosts and sources that go down."""

import json
import os
import shutil

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
LIFE_S = 400.0
SOON_S = 120.0
"""Limit in seconds for each change on a loaded machine."""
BOOTS = {tuned.BOOT_IDLE_S: 1.0}
KEEPING = {"keep_images": "cloud", "constants": BOOTS, "life_s": LIFE_S}
DATA = local.random_bytes(8 * MIB + 12345, zero_share=0.1)


def wait_for(agent: agents.Agent, image_id: str, state: str, why: str = "") -> dict:
    return hosts.wait_fill_state(agent, image_id, state, SOON_S, why)


def read_back(agent: agents.Agent, image_id: str) -> None:
    """Compare every byte, and drop the read pages from the page cache."""
    with agent.image_path(image_id).open("rb") as file:
        assert file.read() == DATA
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def promised_bytes(agent: agents.Agent) -> int:
    return agent.status()["cache"]["reserved_bytes"]


def test_image_outlives_its_source_and_one_host_and_is_replicated_again(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3", "h4"), **KEEPING) as cloud:
        cloud["h1"].ctl("attach", image_id)
        total_bytes = wait_for(cloud["h1"], image_id, "fully_cached")["total_bytes"]
        sums = {name: promised_bytes(agent) for name, agent in cloud.agents.items()}
        assert all(0 < one < 0.75 * total_bytes / 2 for one in sums.values())
        statuses = cloud.statuses()
        source_bytes = sum(one["exchange"]["source_bytes"] for one in statuses.values())
        assert source_bytes <= 1.2 * total_bytes / 2  # once, for both copies
        for name in ("h2", "h3", "h4"):
            shown = statuses[name]
            assert shown["replicas"]["images"] == shown["replicas"]["leased_images"] == 1
            assert shown["images"][image_id]["fill"] is None  # no instance uses it there
        shutil.rmtree(images.folder)
        for agent in cloud.agents.values():
            hosts.wait_written(agent)
        hosts.kill_agent(cloud["h2"])
        read_back(cloud["h1"], image_id)

        # The new table drops it: the other hosts fetch its replicas from each other.
        left = {name: port for name, port in cloud.ports.items() if name != "h2"}
        hosts.write_ring(cloud.ring_file, left, epoch=2)
        hosts.wait_until(
            lambda: all(cloud[name].status()["ring"]["epoch"] == 2 for name in left), "2", SOON_S
        )
        wait_for(cloud["h1"], image_id, "fully_cached")
        for name in left:
            hosts.wait_written(cloud[name])
            assert cloud[name].status()["cache"]["pinned_missing_chunks"] == 0
        hosts.kill_agent(cloud["h3"])
        read_back(cloud["h1"], image_id)
        kept = json.loads((cloud["h4"].state_dir / "pins.json").read_bytes())["images"]
        assert [(one["image_id"], one["is_replica"]) for one in kept] == [(image_id, True)]
