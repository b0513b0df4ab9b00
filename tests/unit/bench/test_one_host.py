# SPDX-License-Identifier: Apache-2.0
"""P15 gives each sender the chunks that it owns, and draws the results."""

import itertools

import pytest
from matplotlib import figure

from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from evaluation.bench import loopback
from evaluation.bench import p15_one_host
from tests.fakes import one_host

CHUNK = geometry.DEFAULT_CHUNK_BYTES
CHUNKS = 40
GIVERS = ["giver1", "giver2", "giver3"]


@pytest.fixture
def image_map() -> chunk_map.ChunkMap:
    data = one_host.image_bytes(CHUNKS * CHUNK - 5, 1)
    return chunk_map.ChunkMap.parse(one_host.map_of(data, one_host.IMAGE, CHUNK), "a map")


def table(vnodes: dict[str, int]) -> hash_ring.Ring:
    hosts = [
        hash_ring.RingHost(ids.HostId(name), f"10.0.0.{number}:7201", count)
        for number, (name, count) in enumerate(vnodes.items(), 1)
    ]
    return hash_ring.Ring(1, tuple(hosts))


def test_each_chunk_belongs_to_one_sender_at_most(
    image_map: chunk_map.ChunkMap,
) -> None:
    alone = p15_one_host.shares(image_map, table(dict.fromkeys(GIVERS, 50)), GIVERS)
    assert sorted(itertools.chain(*alone)) == list(range(CHUNKS))
    assert all(alone)
    beside = table({**dict.fromkeys(GIVERS, 50), "reader": 50})
    fewer = p15_one_host.shares(image_map, beside, GIVERS)
    assert all(set(part) <= set(whole) for part, whole in zip(fewer, alone, strict=True))
    assert 0 < sum(map(len, fewer)) < CHUNKS


def test_reads_cover_exactly_the_requested_chunks_once(image_map: chunk_map.ChunkMap) -> None:
    cut = image_map.geometry
    assert p15_one_host.spans([], cut) == []
    assert p15_one_host.spans([0, 2, 3], cut) == [(0, CHUNK), (2 * CHUNK, 2 * CHUNK)]
    assert p15_one_host.spans([CHUNKS - 1], cut) == [((CHUNKS - 1) * CHUNK, CHUNK - 5)]
    long = p15_one_host.spans(range(CHUNKS), cut)
    assert long == loopback.whole(CHUNKS * CHUNK - 5)


def test_picture_has_a_bar_for_each_method_and_number_of_peers() -> None:
    figures = {"gb_per_s": 0.5, "cpu_s_per_gb": 2.0, "by_agent": [1.0, 1.0]}
    ways = {"insecure": figures, loopback.PLAINLY: figures}
    picture = figure.Figure()
    p15_one_host.draw(picture, {"1 peer": ways, "4 peers": ways})
    rates, costs = picture.axes
    assert [bar.get_height() for bar in rates.patches] == pytest.approx([0.5] * 4)
    assert [bar.get_height() for bar in costs.patches] == pytest.approx([2.0] * 4)
