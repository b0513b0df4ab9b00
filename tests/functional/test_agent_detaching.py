# SPDX-License-Identifier: Apache-2.0
"""Images used one after the other leave nothing behind: real agents, files and scrapes."""

import os
import pathlib
import time
import urllib.request
from typing import NamedTuple

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import tiers

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES
LIFE_S = 400.0
UNUSED_S = 2.0
NOTICED_S = 90.0
FIRST = 50
MORE = (200, 1000)


class HeldResources(NamedTuple):
    """Resources that an agent holds."""

    open_files: int
    files: int
    series: int
    scrape_bytes: int
    rss_bytes: int

    @classmethod
    def by(cls, agent: agents.Agent, port: int) -> "HeldResources":
        """Measure them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        pid = agent.worker_pid()
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
        folders = (agent.state_dir, agent.folder / "cache")
        return cls(
            open_files=len(os.listdir(f"/proc/{pid}/fd")),
            files=sum(len(names) for folder in folders for _, _, names in os.walk(folder)),
            series=sum(not line.startswith("#") for line in text.splitlines()),
            scrape_bytes=len(text),
            rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        )


def use(agent: agents.Agent, images: local.ImageFolder, count: int) -> None:
    """Read new images one after the other."""
    for number in range(count):
        # The first sector has no signature of a partition table by chance.
        data = bytes(512) + os.urandom(CHUNK + 512 * (number % 64))
        image_id = images.add(data)
        assert agent.image_path(image_id).read_bytes() == data


def wait_detached(agent: agents.Agent) -> None:
    hosts.wait_until(lambda: agent.status()["images"] == {}, "detached images", NOTICED_S)


@pytest.mark.parametrize("more", tiers.first_now(MORE))
def test_detached_images_do_not_grow_memory_files_or_metrics(images, start, more):
    port = local.unused_port()
    agent = start(
        life_s=LIFE_S,
        detach_unused_after_s=UNUSED_S,
        metrics_listen=f"127.0.0.1:{port}",
        cache_limit_bytes=4 * geometry.MIB,
    )
    use(agent, images, FIRST)
    wait_detached(agent)
    before = HeldResources.by(agent, port)
    use(agent, images, more)
    wait_detached(agent)
    after = HeldResources.by(agent, port)
    print(f"{FIRST} images: {before}\n{FIRST + more} images: {after}")
    assert after.series == before.series
    assert after.scrape_bytes < 1.1 * before.scrape_bytes  # numbers have more digits
    assert after.files <= before.files
    assert after.open_files <= before.open_files + 8  # threads and connections vary
    assert after.rss_bytes < 1.3 * before.rss_bytes
    status = agent.status()
    assert status["detached"]["images"] == FIRST + more
    assert status["fetched"]["source"]["bytes"] > (FIRST + more) * CHUNK
    assert os.listdir(agent.mount_point / "images") == []


def test_open_image_stays_attached_and_a_detached_one_attaches_again(images, start):
    data = local.random_bytes(3 * CHUNK)
    one, other = images.add(data), images.add(local.random_bytes(CHUNK, seed=2))
    agent = start(life_s=LIFE_S, detach_unused_after_s=UNUSED_S)
    agent.ctl("attach", other)
    with agent.image_path(one).open("rb", buffering=0) as opened:
        assert opened.read(10) == data[:10]
        hosts.wait_until(
            lambda: list(agent.status()["images"]) == [one], "one detached image", NOTICED_S
        )
        time.sleep(2 * UNUSED_S)
        assert list(agent.status()["images"]) == [one]
        assert opened.read() == data[10:]
    wait_detached(agent)
    assert agent.image_path(one).read_bytes() == data
    assert list(agent.status()["images"]) == [one]


def test_detaching_a_deleted_image_purges_only_its_own_chunks(images, start):
    shared = local.random_bytes(2 * CHUNK)
    own = local.random_bytes(2 * CHUNK, seed=2)
    kept, gone = images.add(shared), images.add(shared + own)
    agent = start(life_s=LIFE_S, detach_unused_after_s=UNUSED_S)
    with agent.image_path(kept).open("rb") as opened:
        assert agent.image_path(gone).read_bytes() == shared + own
        os.utime(agent.image_path(gone), (1e9, 1e9))  # Nova's last touch was years ago
        for path in (images.path(gone), images.map_path(gone)):
            path.unlink()
        hosts.wait_until(
            lambda: list(agent.status()["images"]) == [kept], "one detached image", NOTICED_S
        )
        assert agent.status()["cache"]["chunks"] == 2
        assert agent.status()["detached"] == {"images": 1, "purged_chunks": 2}
        assert opened.read() == shared
    assert not agent.image_path(gone).exists()
