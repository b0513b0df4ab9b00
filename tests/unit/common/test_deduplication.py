# SPDX-License-Identifier: Apache-2.0
"""Chunk names: projects share a name only for chunks that both may read."""

import random

import pytest

from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import chunk_maps
from tests.fakes import glance_records as records

SECRET = b"s" * 32
CHUNK = geometry.MIN_CHUNK_BYTES
IMAGE_ID = ids.parse_image_id(records.IMAGE_ID)
A, B = deduplication.key_of(SECRET, "project a"), deduplication.key_of(SECRET, "project b")


def chunk(number: int) -> bytes:
    return random.Random(number).randbytes(CHUNK)


def map_of(chunks: list[bytes], naming: deduplication.Naming) -> chunk_map.ChunkMap:
    cut = geometry.Geometry(len(chunks) * CHUNK, CHUNK)
    cids = [naming.cid_of(number, data) for number, data in enumerate(chunks)]
    raw = chunk_maps.made(IMAGE_ID, cut, cids, scope_keys=naming.scope_keys)
    return chunk_map.ChunkMap.parse(raw, "m")


def cids(found: chunk_map.ChunkMap) -> list[ids.Cid]:
    return [found.cid_of(number) for number in range(len(found))]


def test_scope_keys_differ_per_project_and_cloud() -> None:
    keys = [
        deduplication.key_of(SECRET, "a"),
        deduplication.key_of(SECRET, "b"),
        deduplication.key_of(b"t" * 32, "a"),
    ]
    keys.append(deduplication.key_of(SECRET, ""))
    assert len(set(keys)) == 4 and all(len(key) == ids.SCOPE_KEY_BYTES for key in keys)
    assert deduplication.key_of(SECRET, "a") == keys[0]


@pytest.mark.parametrize("length", [0, 31, 33])
def test_secret_of_invalid_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        deduplication.key_of(bytes(length), "a")


@pytest.mark.parametrize(
    ("visibility", "dedup_scope", "expected"),
    [
        ("public", "project", "cloud"),
        ("community", "project", "cloud"),
        ("shared", "project", "project"),
        ("private", "project", "project"),
        (None, "project", "project"),
        ("what comes one day", "project", "project"),
        ("private", "cloud", "cloud"),
    ],
)
def test_scope_follows_visibility_and_configuration(
    visibility: str | None, dedup_scope: str, expected: str
) -> None:
    image = records.image(visibility=visibility)
    assert deduplication.scope_of(image, deduplication.DedupScope(dedup_scope)) == expected


@pytest.mark.parametrize(
    ("visibility", "owner", "members", "expected"),
    [
        ("public", "b", [], True),
        ("community", "b", [], True),
        ("private", "a", [], True),
        ("private", "b", [], False),
        ("private", "b", ["a"], False),  # members remain from the time when it was shared
        ("shared", "b", [], False),
        ("shared", "b", ["c"], False),
        ("shared", "b", ["c", "a"], True),
        (None, "b", ["a"], False),
    ],
)
def test_project_may_read_what_glance_allows(
    visibility: str | None, owner: str, members: list[str], expected: bool
) -> None:
    base = records.image(visibility=visibility, owner=owner)
    assert deduplication.may_read("a", base, members) is expected


def test_project_without_an_id_may_read_no_private_image() -> None:
    assert not deduplication.may_read("", records.image(visibility="private", owner=""))


def test_same_bytes_have_other_names_in_another_project() -> None:
    chunks = [chunk(1), chunk(2)]
    of_a, of_b = map_of(chunks, deduplication.Naming(A)), map_of(chunks, deduplication.Naming(B))
    plain = map_of(chunks, deduplication.PLAIN)
    names = [*cids(of_a), *cids(of_b), *cids(plain)]
    assert len(set(names)) == 6
    assert (of_a.scope_keys, of_b.scope_keys, plain.scope_keys) == ((A,), (B,), ())
    assert cids(map_of(chunks, deduplication.Naming(A))) == cids(of_a)


def test_snapshot_keeps_the_names_of_unchanged_chunks_of_its_base() -> None:
    base = map_of([chunk(1), chunk(2), chunk(3)], deduplication.PLAIN)
    snapshot = map_of([chunk(1), chunk(9), chunk(3), chunk(4)], deduplication.Naming(A, base))
    assert [cid in cids(base) for cid in cids(snapshot)] == [True, False, True, False]
    assert snapshot.scope_keys == (A,)
    for number, data in enumerate([chunk(1), chunk(9), chunk(3), chunk(4)]):
        assert snapshot.content_of(number).matches_data(data)


def test_chunk_at_another_offset_of_the_base_is_not_recognised() -> None:
    """Otherwise the owner of an image could detect its chunks in snapshots of other projects."""
    base = map_of([chunk(1), chunk(2), chunk(3)], deduplication.PLAIN)
    snapshot = map_of([chunk(2), chunk(3), chunk(1)], deduplication.Naming(A, base))
    assert not set(cids(snapshot)) & set(cids(base))


def test_snapshot_of_a_snapshot_keeps_the_names_of_both() -> None:
    base = map_of([chunk(1), chunk(2), chunk(3)], deduplication.PLAIN)
    first = map_of([chunk(1), chunk(8), chunk(3)], deduplication.Naming(A, base))
    same_project = map_of([chunk(1), chunk(8), chunk(7)], deduplication.Naming(A, first))
    assert cids(same_project)[:2] == cids(first)[:2] and same_project.scope_keys == (A,)
    other_project = map_of([chunk(1), chunk(8), chunk(7)], deduplication.Naming(B, first))
    assert cids(other_project)[:2] == cids(first)[:2] and other_project.scope_keys == (B, A)
    assert other_project.cid_of(2) == ids.cid_of(chunk(7), B)
    assert all(
        other_project.content_of(n).matches_data(data)
        for n, data in enumerate([chunk(1), chunk(8), chunk(7)])
    )


def test_chain_with_too_many_scopes_drops_the_oldest_keys() -> None:
    chunks = [chunk(0), chunk(1)]
    found, keys = map_of(chunks, deduplication.PLAIN), []
    for number in range(1, 12):
        keys.insert(0, deduplication.key_of(SECRET, f"project {number}"))
        chunks = [chunk(0), *chunks[1:], chunk(number + 1)]
        found = map_of(chunks, deduplication.Naming(keys[0], found))
        assert found.scope_keys == tuple(keys)[: chunk_map_header.MAX_SCOPE_KEYS]
        assert all(found.content_of(n).matches_data(data) for n, data in enumerate(chunks))
    assert found.cid_of(0) == ids.cid_of(chunk(0))


def test_fingerprint_differs_when_names_may_differ() -> None:
    base, other = map_of([chunk(1)], deduplication.PLAIN), map_of([chunk(2)], deduplication.PLAIN)
    namings = [
        deduplication.PLAIN,
        deduplication.Naming(A),
        deduplication.Naming(B),
        deduplication.Naming(A, base),
    ]
    namings.append(deduplication.Naming(A, other))
    prints = {naming.fingerprint for naming in namings}
    assert len(prints) == 5
    assert deduplication.Naming(A, base).fingerprint in prints
