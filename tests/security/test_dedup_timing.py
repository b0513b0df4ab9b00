# SPDX-License-Identifier: Apache-2.0
"""A tenant measures whether another tenant's image contains guessed chunks.

The attack of Harnik et al. (2010, "Side channels in cloud services") on a real agent: the victim's
guest has read its image, so its chunks are in the host's cache.  The attacker's image on the same
host holds guesses, half of them right; the attacker reads and times each once.  The source responds
slowly, as over a network.

With ``dedup_scope = cloud`` the attack succeeds, so the test is able to fail; with names in each
project's scope it finds nothing.

"""

import contextlib
import mmap
import os
import pathlib
import random
import time
from collections.abc import Iterator

import pytest

from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import local

CHUNK = geometry.DEFAULT_CHUNK_BYTES
GUESSES = 24
"""Number of right guesses, and of wrong ones."""
SOURCE_S = 0.01
SECRET = b"the secret of this cloud in tests"[: deduplication.SECRET_BYTES]
KNOWS, CHANCE = 0.95, 0.37
"""Share of pairs with the right guess first: the attack's success, and how far chance moves it
from a half (four standard deviations of Mann and Whitney's U with 24 and 24: 0.34)."""


def chunk(number: int) -> bytes:
    return random.Random(number).randbytes(CHUNK)


VICTIM = b"".join(chunk(number) for number in range(GUESSES))
RIGHT = random.Random(2010).sample(range(2 * GUESSES), GUESSES)
"""Positions of the right guesses in the attacker's image."""


def guesses() -> bytes:
    right = iter(range(GUESSES))
    return b"".join(
        chunk(next(right)) if place in RIGHT else chunk(1000 + place)
        for place in range(2 * GUESSES)
    )


def naming(dedup_scope: str, project: str) -> deduplication.Naming:
    if dedup_scope == deduplication.DedupScope.CLOUD:
        return deduplication.PLAIN
    return deduplication.Naming(deduplication.key_of(SECRET, project))


class Cloud:
    """One host, a slow source, and an image of each tenant."""

    def __init__(self, folder: pathlib.Path, dedup_scope: str) -> None:
        self.images = images = local.ImageFolder(folder / "images")
        self.victim = images.add(VICTIM, naming=naming(dedup_scope, "victim"))
        self.attacker = images.add(guesses(), naming=naming(dedup_scope, "attacker"))
        self.maps = {image: images.map_of(image) for image in (self.victim, self.attacker)}


@contextlib.contextmanager
def attacked(folder: pathlib.Path, cloud: Cloud) -> Iterator[agents.Agent]:
    """Run an agent whose cache holds the victim's image."""
    images = cloud.images
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        server.always = http_server.slow(SOURCE_S)
        given = {"variants": "no-read-ahead", **hosts.http_options(server.url)}
        with hosts.running(folder / "h1", images, **given) as agent:
            assert agent.image_path(cloud.victim).read_bytes() == VICTIM
            yield agent


def first_byte_s(path: pathlib.Path) -> list[float]:
    """Return how long the first read of each guess takes, past the page cache, in any order."""
    took_s = [0.0] * (2 * GUESSES)
    buffer = mmap.mmap(-1, 4096)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for place in random.Random(1).sample(range(2 * GUESSES), 2 * GUESSES):
            began_s = time.perf_counter()
            os.preadv(fd, [buffer], place * CHUNK)
            took_s[place] = time.perf_counter() - began_s
    finally:
        os.close(fd)
    return took_s


def share_right_first(took_s: list[float]) -> float:
    """Return the share of pairs (right, wrong) in which the right guess was faster."""
    right = [took_s[place] for place in RIGHT]
    wrong = [took_s[place] for place in range(2 * GUESSES) if place not in RIGHT]
    return sum(r < w for r in right for w in wrong) / (len(right) * len(wrong))


@hosts.needs_fuse
@pytest.mark.parametrize("dedup_scope", list(deduplication.DedupScope))
def test_timing_reveals_chunks_of_another_project_only_in_a_common_scope(
    dedup_scope: deduplication.DedupScope, tmp_path: pathlib.Path
) -> None:
    cloud = Cloud(tmp_path, dedup_scope)
    with attacked(tmp_path, cloud) as agent:
        took_s = first_byte_s(agent.image_path(cloud.attacker))
        origins = agent.status()["images"][cloud.attacker]["read"]
    requests = {name: found["requests"] for name, found in origins.items() if found["requests"]}
    share = share_right_first(took_s)
    if dedup_scope is deduplication.DedupScope.CLOUD:
        assert requests == {"cache": GUESSES, "source": GUESSES}
        assert share >= KNOWS
    else:
        assert requests == {"source": 2 * GUESSES}
        assert abs(share - 0.5) <= CHANCE


@pytest.mark.parametrize("dedup_scope", list(deduplication.DedupScope))
def test_names_in_messages_are_distinct_for_two_projects(
    dedup_scope: deduplication.DedupScope, tmp_path: pathlib.Path
) -> None:
    """CIDs, and their OIDs and prefixes in advertisements and hints."""
    cloud = Cloud(tmp_path, dedup_scope)
    victim, attacker = (
        {
            name
            for number in range(len(found))
            for name in (
                found.cid_of(number),
                ids.oid_of(found.cid_of(number)),
                found.cid_of(number)[:4],
            )
        }
        for found in (cloud.maps[cloud.victim], cloud.maps[cloud.attacker])
    )
    common = len(victim & attacker)
    assert common == (3 * GUESSES if dedup_scope is deduplication.DedupScope.CLOUD else 0)


@hosts.needs_fuse
@pytest.mark.parametrize("dedup_scope", list(deduplication.DedupScope))
def test_hosts_exchange_private_chunks_only_within_a_project(
    dedup_scope: deduplication.DedupScope, tmp_path: pathlib.Path
) -> None:
    cloud = Cloud(tmp_path, dedup_scope)
    with hosts.cloud(tmp_path, cloud.images, ("h1", "h2"), variants="no-read-ahead") as two:
        assert two["h1"].image_path(cloud.victim).read_bytes() == VICTIM
        assert two["h2"].image_path(cloud.victim).read_bytes() == VICTIM
        before = source_bytes(two)
        assert before == len(VICTIM)  # the other host got all from it, and verified it with the key
        assert two["h1"].image_path(cloud.attacker).read_bytes() == guesses()
        new = 1 if dedup_scope is deduplication.DedupScope.CLOUD else 2
        assert source_bytes(two) - before == new * len(VICTIM)
        for agent in two.agents.values():
            assert agent.status()["exchange"]["invalid_chunks"] == 0


def source_bytes(cloud: hosts.Cloud) -> int:
    """Return how many bytes all hosts together have read from the source."""
    return sum(int(status["exchange"]["source_bytes"]) for status in cloud.statuses().values())
