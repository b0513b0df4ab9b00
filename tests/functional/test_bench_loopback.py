# SPDX-License-Identifier: Apache-2.0
"""Loopback benchmarks run with real agents, and end when an agent hangs."""

import os
import signal
import time

import pytest

from acstor_common.model import geometry
from evaluation.bench import harness
from evaluation.bench import loopback
from evaluation.bench import p15_one_host
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

IMAGE_BYTES = 4 * geometry.MIB
SOON_S = 1.0


@pytest.mark.parametrize("peers", [1, 2])
def test_benchmark_reads_an_image_from_peers_and_by_plain_python(peers, images, tmp_path):
    image_id = images.add(local.random_bytes(IMAGE_BYTES))
    play = p15_one_host.Play(tmp_path / "play", images, image_id, peers, "insecure")
    turns = play.turns(1)
    assert [way for way, _ in turns] == ["insecure", loopback.PLAINLY]
    for _, figures in turns:
        assert figures["gb_per_s"] > 0
        assert len(figures["by_agent"]) == 1 + peers
        assert figures["cpu_s_per_gb"] == pytest.approx(sum(figures["by_agent"]))


def test_result_is_refused_if_the_image_did_not_come_from_peers(images, tmp_path):
    image_id = images.add(local.random_bytes(IMAGE_BYTES))
    cloud = loopback.Cloud(tmp_path / "cloud", images, {"h1": 1}, "insecure", 2 * IMAGE_BYTES)
    with cloud.running("h1") as agent:
        loopback.attach(agent, image_id)
        loopback.cost(agent, image_id, IMAGE_BYTES, [agent])
        with pytest.raises(harness.CannotRun, match="0 of 4194304 bytes came from other hosts"):
            loopback.peers_share(agent, IMAGE_BYTES, least=0.95)


def test_hung_agent_is_killed_and_its_reader_gets_an_error(images, tmp_path):
    image_id = images.add(local.random_bytes(IMAGE_BYTES))
    cloud = loopback.Cloud(tmp_path / "cloud", images, {"h1": 1}, "insecure", 2 * IMAGE_BYTES)
    with cloud.running("h1") as agent:
        loopback.attach(agent, image_id)
        os.kill(agent.worker_pid(), signal.SIGSTOP)
        began_s = time.monotonic()
        with (
            pytest.raises(harness.CannotRun, match="took longer than 1 s"),
            loopback.bounded([agent], SOON_S),
        ):
            loopback.read(agent.image_path(image_id), loopback.whole(IMAGE_BYTES))
        assert time.monotonic() - began_s < 20 * SOON_S
