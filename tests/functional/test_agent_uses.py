# SPDX-License-Identifier: Apache-2.0
"""Images that a real agent counts as used: open ones, and those that Nova touches."""

import os
import signal
import subprocess

from acstor_agent.images.image import usage
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = 1024 * 1024
LIFE_S = 120.0
NOTICED_S = 60.0
"""Limit in seconds for each change to be noticed; a scan runs every 10 s."""


def is_open(agent: agents.Agent, image_id: str) -> bool:
    return agent.status()["images"][image_id]["is_open"]


def next_worker(agent: agents.Agent) -> None:
    killed = agent.worker_pid()
    hosts.kill(killed)
    hosts.wait_until(lambda: agent.worker_pid() not in (killed, None), "the next worker", 30.0)
    agent.wait_ready()


def wait_closed(agent: agents.Agent, image_id: str) -> None:
    hosts.wait_until(lambda: not is_open(agent, image_id), "a closed image", NOTICED_S)


def test_image_counts_as_open_from_its_first_open_to_its_last_close(images, start):
    image_id = images.add(local.random_bytes(MIB))
    agent = start(life_s=LIFE_S)
    agent.ctl("attach", image_id)
    wait_closed(agent, image_id)
    with agent.image_path(image_id).open("rb"):
        with agent.image_path(image_id).open("rb"):
            pass
        assert is_open(agent, image_id)
    wait_closed(agent, image_id)


@hosts.needs_take_over
def test_new_worker_finds_the_open_images(images, start):
    one, other = images.add(local.random_bytes(MIB, 1)), images.add(local.random_bytes(MIB, 2))
    agent = start(life_s=LIFE_S)
    agent.ctl("attach", other)
    with agent.image_path(one).open("rb") as opened:
        next_worker(agent)
        wait_closed(agent, other)
        assert is_open(agent, one)
        with agent.image_path(one).open("rb"):
            pass
        assert is_open(agent, one)
        assert opened.read(4) == images.path(one).read_bytes()[:4]
    wait_closed(agent, one)


def test_image_counts_as_closed_after_its_process_was_killed(images, start):
    image_id = images.add(local.random_bytes(MIB))
    agent = start(life_s=LIFE_S)
    agent.ctl("attach", image_id)
    wait_closed(agent, image_id)
    with agent.image_path(image_id).open("rb") as opened:
        other = subprocess.Popen(["sleep", "600"], stdin=opened)
    try:
        assert is_open(agent, image_id)
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    wait_closed(agent, image_id)


def test_image_touched_by_nova_stays_and_an_untouched_one_is_detached(images, start):
    touched, other = images.add(local.random_bytes(MIB)), images.add(local.random_bytes(MIB, 2))
    agent = start(life_s=2 * LIFE_S, detach_unused_after_s=4 * usage.SCAN_INTERVAL_S)
    for image_id in (touched, other):
        agent.ctl("attach", image_id)

    def is_gone() -> bool:
        os.utime(agent.image_path(touched))
        return other not in agent.status()["images"]

    hosts.wait_until(is_gone, "an image that is detached", 3 * NOTICED_S)
    assert list(agent.status()["images"]) == [touched]
    assert agent.status()["images"][touched]["is_used"]
