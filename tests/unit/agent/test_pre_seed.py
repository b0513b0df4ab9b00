# SPDX-License-Identifier: Apache-2.0
import collections

import pytest
import trio

from acstor_agent.engine_io import exchange
from acstor_agent.images.prefetch import pre_seed
from acstor_common import errors
from tests.fakes import one_host

CHUNK = one_host.CHUNK
PER_SEGMENT = (1 << 20) // CHUNK
DATA = one_host.image_bytes(3 * PER_SEGMENT * CHUNK + 5 * CHUNK) + bytes(3 * CHUNK)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as made:
        yield made


async def seed(host, report=None, is_home=lambda ref: False, first_chunk=0):
    async def ignore(done_bytes, total_bytes):
        pass

    return await pre_seed.pre_seed(
        await host.mirrors.attach_image(one_host.IMAGE),
        host.chunks,
        report or ignore,
        is_home=is_home,
        first_chunk=first_chunk,
    )


async def test_pre_seed_fetches_every_chunk_once(host):
    assert await seed(host) == {
        "done_bytes": len(DATA),
        "fetched_bytes": len(DATA) - 3 * CHUNK,
        "failed_bytes": 0,
    }
    before = len(host.source.reads)
    assert (await seed(host))["fetched_bytes"] == 0
    assert len(host.source.reads) == before


async def test_pre_seed_fetches_chunks_that_this_host_is_home_of_first(host):
    image = await host.mirrors.attach_image(one_host.IMAGE)
    host.chunks.core.pending.prefetch_limits._left[exchange.Priority.PRE_SEED] = 1
    before = len(host.source.reads)
    first_half = {image.map.cid_of(n) for n in range(len(image.map) // 2, len(image.map))}
    await seed(host, is_home=lambda ref: ref.cid in first_half, first_chunk=5)
    offsets = [offset for offset, _ in host.source.reads[before:]]
    home, others = offsets[: len(first_half) - 1], offsets[len(first_half) :]
    assert min(home) >= len(DATA) // 2 - CHUNK
    assert others[0] < others[-1] or others[0] >= 5 * CHUNK


async def test_pre_seed_limits_bytes_in_flight(host):
    await seed(host)
    assert CHUNK < host.source.in_flight_bytes_most <= 4 * CHUNK


async def test_pre_seed_reports_growing_progress(host, autojump_clock):
    host.source._delay, host.source._delay_s = range(1000), 0.1
    reported = []

    async def report(done_bytes, total_bytes):
        reported.append((trio.current_time(), done_bytes))
        assert total_bytes == len(DATA)

    await seed(host, report)
    assert len(reported) > 5
    assert [done for _, done in reported] == sorted(done for _, done in reported)
    assert reported[0][1] == 0
    assert reported[-1][1] > len(DATA) * 0.7


async def test_failed_pre_seed_raises_and_keeps_fetched_chunks(host):
    await host.mirrors.attach_image(one_host.IMAGE)
    before = len(host.source.reads)
    host.source._fail = {before + 3, before + 7}
    with pytest.raises(errors.SourceUnreachable, match="fails by order"):
        await seed(host)
    image = host.mirrors.get_nowait(one_host.IMAGE)
    failed = sum(host.source.reads[number - 1][1] for number in host.source._fail)
    assert 0 < failed < len(DATA) / 8
    assert image.cached_bytes() == len(DATA) - 3 * CHUNK - failed


async def test_cancelled_pre_seed_withdraws_requests_that_have_not_started(host, autojump_clock):
    await host.mirrors.attach_image(one_host.IMAGE)
    host.source._delay, before = range(1000), len(host.source.reads)
    with trio.move_on_after(0.5):
        await seed(host)
    assert len(host.chunks.core) == 4 and not len(host.chunks.core.pending)
    await trio.sleep(10)
    assert sum(length for _, length in host.source.reads[before:]) == 4 * CHUNK
    assert not len(host.chunks.core) and not host.chunks.core.pending.prefetch_limits.in_flight


async def test_search_for_homes_yields_to_other_tasks(tmp_path):
    turns, looks = 0, collections.Counter()
    chunks, in_a_row = 4 * pre_seed.CHUNKS_PER_CHECKPOINT, pre_seed.CHUNKS_PER_CHECKPOINT

    def is_home(ref):
        looks[turns] += 1
        return False

    async with (
        one_host.one_host(tmp_path, data=bytes(chunks * CHUNK)) as host,
        trio.open_nursery() as nursery,
    ):

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(others)
        await seed(host, is_home=is_home)
        nursery.cancel_scope.cancel()
    assert sum(looks.values()) == chunks and max(looks.values()) <= 2 * in_a_row
