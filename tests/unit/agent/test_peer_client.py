# SPDX-License-Identifier: Apache-2.0
import pytest
import trio

from acstor_agent.cloud import decision_link
from acstor_agent.engine_io import exchange
from tests.fakes import exchange_cloud

CHUNK = exchange_cloud.CHUNK
GUEST, AHEAD = exchange.Priority.GUEST, exchange.Priority.HYDRATE
LANES = [exchange.Priority.READAHEAD, exchange.Priority.PRE_SEED, exchange.Priority.FLATTEN, AHEAD]


@pytest.fixture
async def cloud(tmp_path):
    """A cloud whose hosts take a second for an answer."""
    async with exchange_cloud.running(tmp_path, ("h1", "h2", "h3", "h4"), may_hedge=False) as made:
        made.slow.update(made.hosts)
        yield made


def asked(cloud):
    """Return a chunk, its home, and another host."""
    wanted = cloud.ref_of(0)
    return wanted, cloud.home(wanted), cloud.others(wanted)[0]


async def test_transfer_that_a_guest_waits_for_is_measured_with_its_time(cloud, autojump_clock):
    wanted, home, name = asked(cloud)
    began_s = trio.current_time()
    await cloud.hosts[name].fetch_chunk(wanted, GUEST)
    took_s = trio.current_time() - began_s
    assert cloud.moved == [(name, home, CHUNK, pytest.approx(took_s, abs=0.02))]
    assert took_s > 1


async def test_concurrent_transfers_are_measured_one_by_one(cloud, autojump_clock):
    _, home, name = asked(cloud)
    refs = [cloud.ref_of(n) for n in range(40) if cloud.home(cloud.ref_of(n)) == home]
    with cloud.hosts[name].submit_read(refs) as wish:
        await wish.wait()
    assert len(refs) > 1
    assert sum(moved[2] for moved in cloud.moved) == len(refs) * CHUNK
    assert sum(moved[3] for moved in cloud.moved) > len(refs)


async def test_background_transfer_is_measured_without_a_time(cloud, autojump_clock):
    wanted, home, name = asked(cloud)
    await exchange_cloud.bring(cloud.hosts[name], wanted, AHEAD)
    assert cloud.moved == [(name, home, CHUNK, None)]


async def test_peer_beaten_by_a_hedge_is_charged_the_time_until_then(tmp_path, autojump_clock):
    async with exchange_cloud.running(tmp_path, ("h1", "h2", "h3", "h4")) as hedging:
        wanted, home, name = asked(hedging)
        hedging.frozen.add(home)
        began_s = trio.current_time()
        await hedging.hosts[name].fetch_chunk(wanted, GUEST)
        took_s = trio.current_time() - began_s
    given_up, (_, other, count, other_s) = sorted(hedging.moved, key=lambda moved: moved[2])
    assert given_up == (name, home, 0, pytest.approx(took_s, abs=0.02))
    assert (other != home, count) == (True, CHUNK)
    assert 0 < other_s < took_s


async def test_transfer_is_measured_at_its_end_after_its_reader_cancels(cloud, autojump_clock):
    wanted, home, name = asked(cloud)
    with trio.move_on_after(0.1):
        await cloud.hosts[name].fetch_chunk(wanted, GUEST)
    assert cloud.moved == []
    await trio.sleep(2)
    assert cloud.moved == [(name, home, CHUNK, pytest.approx(1, abs=0.1))]


async def test_silent_peer_is_not_measured(cloud, autojump_clock):
    wanted, home, name = asked(cloud)
    cloud.frozen.add(home)
    await cloud.hosts[name].fetch_chunk(wanted, GUEST, 60)
    assert home not in {giver for _, giver, _, _ in cloud.moved}


@pytest.mark.expect_log("is in backoff")
@pytest.mark.parametrize(
    ("priority", "took_s"), [(GUEST, pytest.approx(1, abs=0.1)), (AHEAD, None)]
)
async def test_transfer_of_invalid_bytes_is_measured(cloud, autojump_clock, priority, took_s):
    wanted, home, name = asked(cloud)
    cloud.lying.add(home)
    await cloud.hosts[name].fetch_chunk(wanted, priority, 60)
    assert (name, home, CHUNK, took_s) in cloud.moved
    assert sum(cloud.hosts[name].counters.fetched[wanted.image_id].bytes.values()) == CHUNK


async def test_answers_without_bytes_are_not_measured(cloud, autojump_clock):
    wanted, home, name = asked(cloud)
    other = cloud.others(wanted)[1]
    cloud.busy[home] = (other,)  # which has no copy
    await cloud.hosts[name].fetch_chunk(wanted, GUEST, 60)
    assert {host for _, host, _, _ in cloud.asked} == {home, other}
    assert [moved[:3] for moved in cloud.moved] == [(name, home, CHUNK)]


@pytest.mark.parametrize("is_home", [True, False])
async def test_source_read_for_a_guest_counts_bytes_and_time(cloud, autojump_clock, is_home):
    wanted, home, name = asked(cloud)
    cloud.source.delay_s = 0.25
    await cloud.hosts[home if is_home else name].fetch_chunk(wanted, GUEST)
    held = decision_link.exchange_totals(cloud.hosts[home], cloud.caches[home])
    assert (held.source.received, held.source.took_s) == (CHUNK, pytest.approx(0.25))
    assert held.chunks.received == CHUNK
    assert cloud.hosts[name].counters.source_s == 0


@pytest.mark.parametrize("is_home", [True, False])
@pytest.mark.parametrize("priority", LANES)
async def test_background_source_read_counts_no_time(cloud, autojump_clock, priority, is_home):
    wanted, home, name = asked(cloud)
    await exchange_cloud.bring(cloud.hosts[home if is_home else name], wanted, priority)
    held = decision_link.exchange_totals(cloud.hosts[home], cloud.caches[home])
    assert (held.source.received, held.source.took_s) == (0, 0.0)
    assert held.chunks.received == CHUNK


async def test_source_time_of_each_chunk_ends_with_its_own_bytes(cloud, autojump_clock):
    async def one_after_the_other(request):
        for number, piece in enumerate(request.pieces):
            await trio.sleep(0.25)
            request.report([(number, exchange_cloud.bytes_of(piece.offset // CHUNK))])

    cloud.source.read_pieces = one_after_the_other
    homes = [cloud.home(cloud.ref_of(n)) for n in range(40)]
    first = next(n for n in range(38) if homes[n] == homes[n + 1] == homes[n + 2])
    with cloud.hosts[homes[first]].submit_read([cloud.ref_of(first + n) for n in range(3)]) as wish:
        await wish.wait()
    counted = cloud.hosts[homes[first]].counters
    assert counted.source_timed_bytes == 3 * CHUNK
    assert counted.source_s == pytest.approx(0.25 + 0.5 + 0.75)
