# SPDX-License-Identifier: Apache-2.0
"""Chunks in messages: which bytes match, and which chunks are one run."""

import pytest

from acstor_agent.engine import chunk_ref
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from tests.fakes import one_machine

KEY = ids.ScopeKey(bytes(range(32)))
PARTS = [b"first", b"second one", b"3"]


def refs_of(parts, key=None):
    keys = () if key is None else (key,)
    cids = [ids.cid_of(part, key) for part in parts]
    return [
        one_machine.chunk(n)._replace(cid=cid, length=len(part), keys=keys)
        for n, (cid, part) in enumerate(zip(cids, parts, strict=True))
    ]


@pytest.mark.parametrize("key", [None, KEY])
def test_bytes_of_consecutive_chunks_are_verified_one_by_one(key):
    refs = refs_of(PARTS, key)
    assert chunk_ref.matching(refs, b"".join(PARTS)) == PARTS
    assert chunk_ref.matching(refs, b"first" + b"SECOND ONE" + b"3") == [b"first", None, b"3"]
    assert chunk_ref.matching(refs, b"first" + b"second one") == [b"first", b"second one", None]


def test_chunk_with_the_key_of_another_scope_does_not_match():
    other = [ref._replace(keys=(ids.ScopeKey(bytes(32)),)) for ref in refs_of(PARTS, KEY)]
    assert chunk_ref.matching(other, b"".join(PARTS)) == [None] * 3


def runs_of(*places, numbers=None):
    """Return number and length of each run of chunks at (offset, length)."""
    refs = [one_machine.chunk(0)._replace(offset=at, length=length) for at, length in places]
    found = chunk_ref.runs(numbers or range(len(refs)), refs)
    return [(run.number, run.length, len(run.refs)) for run in found]


def test_only_the_last_chunk_of_a_run_may_be_shorter():
    assert runs_of((0, 8), (8, 5), (13, 5)) == [(0, 13, 2), (2, 5, 1)]
    assert runs_of((0, 5), (5, 8), (13, 8)) == [(0, 5, 1), (1, 16, 2)]


def test_gap_in_offsets_or_numbers_ends_a_run():
    assert runs_of((0, 8), (8, 8), (24, 8)) == [(0, 16, 2), (2, 8, 1)]
    assert runs_of((0, 8), (8, 8), (16, 8), numbers=(3, 4, 6)) == [(3, 16, 2), (6, 8, 1)]


def test_run_has_at_most_the_bytes_of_one_message():
    half = peer_request.MAX_DATA_BYTES // 2
    assert runs_of(*((n * half, half) for n in range(3))) == [(0, 2 * half, 2), (2, half, 1)]
