# SPDX-License-Identifier: Apache-2.0
import random

import pytest
import trio
import trio.testing

from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import attempt
from acstor_agent.sources import base
from acstor_agent.sources import coalesce
from acstor_agent.sources import retry
from acstor_common import errors
from acstor_common import ids
from tests.fakes import faulty_source
from tests.fakes import piecewise

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
DATA = random.Random(1).randbytes(4_000)
NEVER_S = 1e6
ALWAYS = range(1, 1_000)


class Silent(faulty_source.MemorySource):
    """A place that is silent, whatever it is asked."""

    async def size_bytes(self, blob):
        await trio.sleep(NEVER_S)

    async def look(self, blob):
        await trio.sleep(NEVER_S)

    async def read(self, blob, offset, length, content=None):
        await trio.sleep(NEVER_S)

    async def aclose(self):
        await trio.sleep(NEVER_S)


def attempts(inner, base_s=30.0):
    return attempt.AttemptSource(inner, attempt_timeout.AttemptTimeout(base_s))


def memory(**faults):
    return faulty_source.FaultySource(faulty_source.MemorySource({BLOB: DATA}), **faults)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda source: source.size_bytes(BLOB), "the size of"),
        (lambda source: source.look(BLOB), "a look at"),
        (lambda source: source.read(BLOB, 0, 10), "bytes 0-9"),
    ],
)
async def test_question_without_an_answer_ends_in_time(autojump_clock, ask, what):
    source = attempts(Silent({}))
    with pytest.raises(errors.SourceUnreachable, match=f"{what}.*no answer within 30 s"):
        await ask(source)
    assert 30 <= trio.current_time() < 31
    with pytest.raises(errors.SourceUnreachable, match="no answer within 60 s"):
        await ask(source)
    assert source.health().missed_attempts == 2


async def test_slow_link_costs_one_time_out_at_most(autojump_clock):
    source = attempts(memory(delay=ALWAYS, delay_s=43.0))
    with pytest.raises(errors.SourceUnreachable):
        await source.read(BLOB, 0, 10)
    for _ in range(40):
        assert await source.read(BLOB, 0, 10) == DATA[:10]


async def test_failure_before_the_deadline_is_passed_on_and_counts_as_no_time(autojump_clock):
    source = attempts(memory(fail=[1], delay=[1], delay_s=20.0))
    with pytest.raises(errors.SourceUnreachable, match="by order"):
        await source.read(BLOB, 0, 10)
    assert source.health().missed_attempts == 0


async def test_reader_who_gives_up_is_no_missed_attempt(autojump_clock):
    source = attempts(Silent({}))
    with trio.move_on_after(5) as scope:
        await source.read(BLOB, 0, 10)
    assert scope.cancelled_caught
    assert source.health().missed_attempts == 0


async def test_who_joins_a_late_read_is_told_when_that_ends(autojump_clock, nursery):
    inner = memory(delay=[1], delay_s=NEVER_S)
    source = coalesce.CoalesceSource(attempts(inner), nursery)
    ended_s = []

    async def read():
        with pytest.raises(errors.SourceUnreachable, match="no answer within 30 s"):
            await source.read(BLOB, 0, 10)
        ended_s.append(trio.current_time())

    async with trio.open_nursery() as readers:
        readers.start_soon(read)
        await trio.sleep(29)
        readers.start_soon(read)
    assert [round(s) for s in ended_s] == [30, 30]
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert len(inner.reads) == 2


async def test_hung_reads_free_their_places_in_time(autojump_clock, nursery):
    inner = memory(delay=range(1, 9), delay_s=NEVER_S)
    source = coalesce.CoalesceSource(attempts(inner), nursery, in_flight=8)
    outcomes = []

    async def read(number):
        try:
            outcomes.append(await source.read(BLOB, 10 * number, 1))
        except errors.SourceUnreachable:
            outcomes.append(None)

    async with trio.open_nursery() as readers:
        for number in range(20):
            readers.start_soon(read, number)
    assert (outcomes.count(None), len(outcomes)) == (8, 20)
    assert trio.current_time() < 100


async def test_missed_attempt_is_made_again_by_retry(autojump_clock):
    source = retry.RetrySource(attempts(memory(delay=[1, 2], delay_s=NEVER_S)), random.Random(1))
    assert await source.read(BLOB, 0, 10) == DATA[:10]
    assert 90 <= trio.current_time() < 92


async def test_retry_ends_by_itself_when_nobody_sets_a_deadline(autojump_clock):
    source = retry.RetrySource(attempts(Silent({})), random.Random(1))
    for _ in range(3):
        with pytest.raises(errors.SourceUnreachable):
            await source.read(BLOB, 0, 10)
    assert trio.current_time() < 3 * 3 * (attempt_timeout.MOST_S + retry.LONGEST_PAUSE_S)


async def test_closing_waits_for_nothing_that_hangs(autojump_clock):
    await attempts(Silent({})).aclose()
    assert trio.current_time() < 5


async def test_pieces_that_came_in_time_are_told_and_the_rest_is_unreachable(autojump_clock):
    inner = piecewise.PiecewiseSource(DATA, delay_s={10: 20.0, 20: 20.0})
    told_s = {}
    outcomes = {}

    def note(answers):
        outcomes.update(answers)
        told_s.update({number: round(trio.current_time()) for number, _ in answers})

    source = attempts(inner)
    await source.read_pieces(BLOB, [base.Piece(at, 10) for at in (0, 10, 20, 30)], note)
    assert told_s == {0: 0, 1: 20, 2: 30, 3: 30}
    assert (outcomes[0], outcomes[1]) == (DATA[:10], DATA[10:20])
    assert {type(outcomes[number]) for number in (2, 3)} == {errors.SourceUnreachable}
    assert source.health().missed_attempts == 1
    assert inner.cancelled == 1
