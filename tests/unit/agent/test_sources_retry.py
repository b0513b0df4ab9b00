# SPDX-License-Identifier: Apache-2.0
import itertools
import random

import pytest
import trio

from acstor_agent.sources import base
from acstor_agent.sources import retry
from acstor_common import errors
from acstor_common import ids
from tests.fakes import faulty_source
from tests.fakes import piecewise

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)


class Flaky(faulty_source.FaultySource):
    """Notes when it was asked, and has its size fail once as well."""

    def __init__(self, **faults):
        super().__init__(faulty_source.MemorySource({BLOB: b"0123456789"}), **faults)
        self.asked_at = []
        self.sizes_asked = 0

    async def read(self, blob, offset, length, content=None):
        self.asked_at.append(trio.current_time())
        return await super().read(blob, offset, length, content)

    async def size_bytes(self, blob):
        self.sizes_asked += 1
        if self.sizes_asked == 1:
            raise errors.SourceUnreachable("the size", self.where)
        return await super().size_bytes(blob)


def retried(inner, **limits):
    return retry.RetrySource(inner, random.Random(7), **limits)


async def test_passing_faults_are_not_seen(autojump_clock):
    inner = Flaky(fail=[1, 2])
    assert await retried(inner, attempts=3).read(BLOB, 2, 3) == b"234"
    assert len(inner.reads) == 3


async def test_size_is_asked_again_too(autojump_clock):
    assert await retried(Flaky()).size_bytes(BLOB) == 10


async def test_last_fault_is_raised_after_all_attempts(autojump_clock):
    inner = Flaky(share=1.0)
    with pytest.raises(errors.SourceUnreachable, match="read 4 fails"):
        await retried(inner, attempts=4).read(BLOB, 0, 1)
    assert len(inner.reads) == 4


@pytest.mark.parametrize("kind", [errors.ChunkMissing, errors.ChunkInvalid])
async def test_what_does_not_pass_is_not_retried(kind):
    inner = Flaky(fail=[1], error=kind)
    with pytest.raises(kind):
        await retried(inner).read(BLOB, 0, 1)
    assert len(inner.reads) == 1


async def test_pauses_double_up_to_the_longest_with_jitter(autojump_clock):
    inner = Flaky(share=1.0)
    with pytest.raises(errors.SourceUnreachable):
        await retried(inner, attempts=7, first_pause_s=1, longest_pause_s=8).read(BLOB, 0, 1)
    pauses = [after - before for before, after in itertools.pairwise(inner.asked_at)]
    shares = [pause / full for pause, full in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True)]
    assert all(0.5 <= share <= 1 + 1e-6 for share in shares)
    assert len(set(shares)) == 6


async def test_pause_beyond_the_deadline_is_not_made(autojump_clock):
    inner = Flaky(share=1.0)
    started = trio.current_time()
    with trio.fail_after(10), pytest.raises(errors.SourceUnreachable):
        await retried(inner, attempts=9, first_pause_s=8, longest_pause_s=64).read(BLOB, 0, 1)
    assert trio.current_time() - started <= 8
    assert len(inner.reads) == 2


async def test_only_pieces_that_failed_are_asked_for_again(autojump_clock):
    lost, gone = errors.SourceUnreachable, errors.ChunkMissing
    inner = piecewise.PiecewiseSource(b"0123456789", fail={2: lost, 4: gone, 8: lost})
    told = []

    async def mend():
        await trio.sleep(0.01)
        del inner.fail[8]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend)
        pieces = [base.Piece(at, 2) for at in range(0, 10, 2)]
        await retried(inner, attempts=3).read_pieces(BLOB, pieces, told.extend)
    assert inner.asked == [[0, 2, 4, 6, 8], [2, 8], [2]]
    outcomes = dict(told)
    assert [outcomes[n] for n in (0, 3, 4)] == [b"01", b"67", b"89"]
    assert (type(outcomes[1]), type(outcomes[2])) == (lost, gone)
    assert len(told) == 5


async def test_pieces_are_given_on_before_the_others_are_asked_for_again(autojump_clock):
    inner = piecewise.PiecewiseSource(b"0123456789", fail={0: errors.SourceUnreachable})
    told_s = {}
    await retried(inner).read_pieces(
        BLOB,
        [base.Piece(0, 2), base.Piece(2, 2)],
        lambda answers: told_s.update({n: trio.current_time() for n, _ in answers}),
    )
    assert told_s[1] == 0 < told_s[0]


async def test_pieces_are_not_asked_for_again_when_the_caller_is_about_to_give_up(autojump_clock):
    inner = piecewise.PiecewiseSource(b"0123456789", fail={0: errors.SourceUnreachable})
    told = []
    with trio.fail_after(0.02):
        await retried(inner).read_pieces(BLOB, [base.Piece(0, 2), base.Piece(2, 2)], told.extend)
    assert [number for number, _ in told] == [1, 0]
    assert inner.asked == [[0, 2]]
