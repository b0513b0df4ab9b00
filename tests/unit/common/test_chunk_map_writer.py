# SPDX-License-Identifier: Apache-2.0
"""The index of a chunk map lists each content once, with its first chunk."""

import random

import pytest

from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = geometry.DEFAULT_CHUNK_BYTES


def some_cids(count: int) -> list[ids.Cid]:
    """Return CIDs with zeros and with repetitions at short and long distances."""
    rng = random.Random(count)
    few = [ids.cid_of(rng.randbytes(8)) for _ in range(count // 10 + 1)]
    return [
        rng.choice([ids.ZERO_CID, rng.choice(few), ids.cid_of(rng.randbytes(8))])
        for _ in range(count)
    ]


@pytest.mark.parametrize("run_contents", [200, 1000, 1 << 17])
@pytest.mark.parametrize("count", [1, 256, 5000])
def test_index_lists_each_content_once_with_its_first_chunk(count: int, run_contents: int) -> None:
    cids = some_cids(count)
    cut = geometry.Geometry(count * CHUNK, CHUNK)
    made = chunk_maps.made(IMAGE_ID, cut, cids, run_contents=run_contents)
    found = chunk_map.ChunkMap.parse(made, "made")
    first: dict[ids.Cid, int] = {}
    for chunk_no, cid in enumerate(cids):
        first.setdefault(cid, chunk_no)
    first.pop(ids.ZERO_CID, None)
    ordered = sorted(first)
    assert [found.cid_of(chunk_no) for chunk_no in range(count)] == cids
    assert [found.first_chunk(n) for n in range(found.tables.contents)] == [
        first[cid] for cid in ordered
    ]
    assert list(found.sorted_heads()) == [chunk_map.head_of(ids.oid_of(cid)) for cid in ordered]
