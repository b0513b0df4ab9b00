# SPDX-License-Identifier: Apache-2.0
"""A local user scrapes the metrics: the cost for a real agent's guests, and the exposed data."""

import re
import time
import urllib.request

from tests.fakes import dos_attacks
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

CHUNK = 64 * 1024
P99_S = 0.010
ROUNDS = 6
IMAGES = 100


def shown(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def read_all(agent: agents.Agent, images: local.ImageFolder, count: int) -> list[str]:
    """Attach images and read them once; return their ids."""
    names = [images.add(local.random_bytes(CHUNK, seed=number + 1)) for number in range(count)]
    for name in names:
        agent.image_path(name).read_bytes()
    return names


def test_scrapes_delay_no_cached_read_and_name_no_image(images, start):
    port = local.unused_port()
    agent = start(metrics_listen=f"127.0.0.1:{port}")
    data = local.random_bytes(64 * CHUNK)
    path = agent.image_path(images.add(data))
    assert path.read_bytes() == data
    names = read_all(agent, images, IMAGES)
    rest_s = min(dos_attacks.p99_s(dos_attacks.reads(path, data)) for _ in range(ROUNDS))
    with dos_attacks.scraping(port):
        time.sleep(0.5)
        beside_s = min(dos_attacks.p99_s(dos_attacks.reads(path, data)) for _ in range(ROUNDS))
    print(f"p99 of cached reads: {rest_s * 1000:.2f} ms, beside scrapes {beside_s * 1000:.2f} ms")
    assert beside_s < max(P99_S, 3 * rest_s)  # a busy machine is slow at rest
    text = shown(port)
    assert 'acstor_read_bytes_total{origin="cache"}' in text
    assert not re.search("|".join(names), text)
