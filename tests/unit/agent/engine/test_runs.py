# SPDX-License-Identifier: Apache-2.0
"""Transfers of several chunks, and how they split when their responses differ."""

import random

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import chunk_ref
from acstor_agent.engine import failure
from acstor_agent.engine import identity
from acstor_agent.engine import peer_state
from acstor_agent.engine import priority
from acstor_agent.engine import transfer
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import data_of

F, P = failure.Failure, priority.Priority
H2, H3 = ids.HostId("h2"), ids.HostId("h3")
OTHER = one_machine.OTHER
SEGMENT = 64


class Segments(identity.ByContent):
    """Chunks of one segment share an OID, so they share a home and the other owners."""

    def oid_of(self, image_id, offset, cid):
        """Return the name of the segment."""
        segment = offset // one_machine.CHUNK // SEGMENT
        return ids.oid_of(ids.cid_of(b"segment %d" % segment))

    oids_of = identity.Identity.oids_of


NAMES = Segments()


def chunk(number, image_id=one_machine.IMAGE):
    ref = one_machine.chunk(number, image_id)
    return ref._replace(oid=NAMES.oid_of(image_id, ref.offset, ref.cid))


def new_machine(**more):
    return one_machine.Machine(run_chunks=16, names=NAMES, **more)


@pytest.fixture
def machine():
    return new_machine()


def chunks_of(machine, home, count):
    """Return numbers of chunks of one segment with a home; this host does not act for it."""
    for start in range(0, 100_000, SEGMENT):
        first, second = machine.core.context.ring.owners_of(chunk(start).oid, 2)
        if first == home and second != "h1":
            return [*range(start, start + count)]
    raise AssertionError(home)


def ask_run(machine, count=8, urgency=P.GUEST, home="h2", token="run"):
    """Request chunks of one home; return their numbers and the attempt."""
    numbers = chunks_of(machine, home, count)
    machine.request_chunks([chunk(n) for n in numbers], urgency, token)
    [ask] = machine.got(actions.RequestChunks)
    [attempt] = ask.attempts
    assert ask.host == home and [number for number, _, _ in ask.iter_chunks()] == [*attempt.numbers]
    return numbers, attempt


def give(machine, attempt, numbers, some):
    """Let the host of an attempt give some of its chunks, by index."""
    chunks = [(attempt.numbers[at], data_of(numbers[at])) for at in some]
    return machine.chunks_arrived(attempt.host, chunks)


def transfers(machine):
    return list(dict.fromkeys(machine.core.context.transfers.values()))


def test_chunks_of_one_home_are_one_transfer_and_one_attempt(machine):
    numbers, attempt = ask_run(machine)
    assert len(transfers(machine)) == 1 and len(machine.core) == 8
    assert attempt.refs == tuple(chunk(n) for n in numbers)
    assert len(set(attempt.numbers)) == 8 and machine.core.context.peers.pending_attempts(H2) == 8
    assert [machine.core.requested_chunk(H2, n) for n in attempt.numbers] == [*attempt.refs]
    give(machine, attempt, numbers, [7, 0, 1, 2, 3, 4, 5, 6])
    [store], [done] = machine.got(actions.Store), machine.completes()
    assert done.chunks == [data_of(n) for n in numbers]
    assert [run.refs for run in store.runs] == [attempt.refs]
    assert (
        not len(machine.core) and not machine.core.context.peers.get_or_create(H2).in_flight_bytes
    )


def test_chunks_of_other_owners_or_images_are_separate_transfers(machine):
    first, second = chunks_of(machine, "h2", 2)
    (other,) = chunks_of(machine, "h3", 1)
    batch = [chunk(first), chunk(first), chunk(second, OTHER), chunk(other), chunk(second)]
    machine.request_chunks(batch, P.GUEST, "mixed")
    assert [one.chunk_count for one in transfers(machine)] == [1, 1, 1]
    numbers = first, first, second, other, second
    machine.play(1.0, lambda host, attempt: data_of(attempt.first_ref.offset // one_machine.CHUNK))
    assert not len(machine.core) and len(numbers) == len(batch)


def test_holder_is_asked_for_the_part_of_a_batch_that_it_announced():
    machine = new_machine(topology=topologies.all_hosts)
    numbers = chunks_of(machine, "h2", 2)
    others = chunks_of(machine, "h3", 2)
    machine.announcement_received(ids.HostId("h4"), one_machine.announced(chunk(others[0])), [], [])
    machine.request_chunks([chunk(n) for n in (*numbers, *others)], P.GUEST, "both")
    asked = {
        ask.host: [len(a.refs) for a in ask.attempts] for ask in machine.got(actions.RequestChunks)
    }
    assert asked == {"h2": [2], "h4": [2]}


def test_run_length_is_bounded(machine):
    numbers = chunks_of(machine, "h2", 40)
    machine.request_chunks([chunk(n) for n in numbers], P.GUEST, "long")
    asks = machine.got(actions.RequestChunks)
    assert [a.transfer.chunk_count for ask in asks for a in ask.attempts] == [16, 16, 8]
    assert max(len(list(ask.iter_chunks())) for ask in asks) <= peer_request.MAX_BATCH


def test_requested_run_fits_into_one_request():
    size = peer_request.MAX_DATA_BYTES // 3
    refs = [one_machine.chunk(n)._replace(offset=n * size, length=size) for n in range(7)]
    found = [run.length // size for run in chunk_ref.runs(range(7), refs)]
    assert found == [3, 3, 1]


@pytest.mark.parametrize("why", [F.INVALID, F.MISSING, F.BUSY, F.WITHHELD, F.UNREACHABLE])
def test_refused_chunk_of_a_run_is_retried_alone(machine, why):
    numbers, attempt = ask_run(machine)
    machine.peer_refused(H2, [(attempt.numbers[3], why)])
    [again] = machine.got(actions.RequestChunks)
    [alone] = again.attempts
    assert alone.refs == (chunk(numbers[3]),) and again.host != "h2"
    assert attempt.numbers == attempt.transfer.attempts[0].numbers and len(attempt.refs) == 7
    left = [n for n in numbers if n != numbers[3]]
    give(machine, attempt, left, range(7))
    assert not machine.completes()
    machine.chunks_arrived(alone.host, [(alone.number, data_of(numbers[3]))])
    assert machine.completes()[0].chunks == [data_of(n) for n in numbers]
    assert not len(machine.core)


def test_run_with_different_refusals_splits_by_reason(machine):
    _, attempt = ask_run(machine)
    whys = [F.MISSING, F.BUSY, F.MISSING, F.BUSY, F.MISSING]
    machine.peer_refused(H2, list(zip(attempt.numbers, whys, strict=False)))
    assert sorted(one.chunk_count for one in transfers(machine)) == [2, 3, 3]
    [kept] = [one for one in transfers(machine) if attempt in one.attempts]
    assert len(attempt.refs) == 3 and kept.chunk_count == 3


def test_partial_response_leaves_the_rest_with_its_host_and_timeout(machine):
    numbers, attempt = ask_run(machine)
    give(machine, attempt, numbers, [2, 4])
    assert len(machine.core) == 6 and not machine.completes()
    found = machine.wait(peer_state.MAX_LATE_S + 1.0)
    hedged = [
        ref
        for ask in found
        if isinstance(ask, actions.RequestChunks)
        for _, ref, _ in ask.iter_chunks()
    ]
    rest = {chunk(n) for at, n in enumerate(numbers) if at not in (2, 4)}
    assert len(hedged) == peer_state.INITIAL_HEDGES and rest > set(
        hedged
    )  # the budget is in chunks


def test_second_guest_joins_a_part_of_a_run(machine):
    numbers, attempt = ask_run(machine)
    machine.request_chunks([chunk(numbers[5]), chunk(numbers[4])], P.GUEST, "second")
    assert not machine.got(actions.RequestChunks)
    assert sorted(one.chunk_count for one in transfers(machine)) == [2, 6]
    every = {number: at for at, number in enumerate(range(min(attempt.numbers), 1 + 8))}
    chunks = [(number, data_of(numbers[at])) for number, at in every.items()]
    machine.chunks_arrived(H2, chunks)
    done = {one.token: one.chunks for one in machine.completes()}
    assert done["second"] == [data_of(numbers[5]), data_of(numbers[4])]
    assert done["run"] == [data_of(n) for n in numbers]


def test_second_guest_of_the_same_run_joins_the_whole_transfer(machine):
    numbers, attempt = ask_run(machine)
    machine.request_chunks([chunk(n) for n in reversed(numbers)], P.GUEST, "second")
    [one] = transfers(machine)
    assert one.chunk_count == 8 and not machine.got(actions.RequestChunks)
    give(machine, attempt, numbers, range(8))
    done = {one.token: one.chunks for one in machine.completes()}
    assert done["second"] == [data_of(n) for n in reversed(numbers)]


def test_peer_request_for_one_chunk_of_a_run_waits_for_that_chunk(machine):
    numbers = chunks_of(machine, "h1", 4)
    machine.request_chunks([chunk(n) for n in numbers], P.GUEST, "run")
    [read] = machine.got(actions.ReadSource)
    machine.ask_me("h2", machine.request(numbers[2], "h2"))
    assert sorted(one.chunk_count for one in transfers(machine)) == [1, 3]
    machine.source_read_progressed(read.number, [(2, data_of(numbers[2]))])
    assert [answer.data for answer in machine.answers()] == [data_of(numbers[2])]
    machine.source_read_progressed(read.number, [(n, data_of(numbers[n])) for n in (0, 1, 3)])
    assert machine.completes()[0].chunks == [data_of(n) for n in numbers]
    assert not len(machine.core) and not len(machine.core.context.source_reads)


def test_source_is_retried_for_the_failed_part_of_a_run(machine):
    numbers = chunks_of(machine, "h1", 6)
    machine.request_chunks([chunk(n) for n in numbers], P.GUEST, "run")
    [read] = machine.got(actions.ReadSource)
    reported = [(n, data_of(numbers[n]) if n % 2 else F.UNREACHABLE) for n in range(6)]
    machine.source_read_progressed(read.number, reported)
    done = machine.play(
        5.0,
        peer=lambda host, attempt: F.MISSING,
        source=lambda ref: data_of(ref.offset // one_machine.CHUNK),
    )
    assert done["run"].chunks == [data_of(n) for n in numbers] and not len(machine.core)


def test_cancelled_read_abandons_its_whole_run(machine):
    numbers = chunks_of(machine, "h1", 4)
    machine.request_chunks([chunk(n) for n in numbers], P.GUEST, "run")
    machine.cancel_reads("run")
    [one] = transfers(machine)
    assert not one.is_wanted and one in machine.core.context.transfers.unwanted


def test_lost_connection_redirects_a_run_once(machine):
    _, attempt = ask_run(machine)
    machine.connection_lost(H2, attempt.connection)
    [ask] = machine.got(actions.RequestChunks)
    assert ask.host != "h2" and [len(one.refs) for one in ask.attempts] == [8]
    assert machine.core.counters.failovers == 8
    assert not machine.core.context.peers.get_or_create(H2).pending


def test_new_table_splits_runs(machine):
    """Their chunks may have other owners by the new table."""
    numbers, attempt = ask_run(machine)
    sent = dict(zip(attempt.numbers, numbers, strict=True))
    machine.table_changed(one_machine.table(8, epoch=2), None)
    assert [one.chunk_count for one in transfers(machine)] == 8 * [1] and not machine.got(
        actions.RequestChunks
    )
    machine.chunks_arrived(H2, [(number, data_of(n)) for number, n in sent.items()])
    assert machine.completes()[0].chunks == [data_of(n) for n in numbers]


def test_run_is_not_split_without_hedge_budget(machine):
    _, attempt = ask_run(machine)
    peers = machine.core.context.peers
    peers._first_hedges_left, peers._hedges_left = 0.0, 0.0
    machine.wait(peer_state.MAX_LATE_S - 1.0)
    assert [one.chunk_count for one in transfers(machine)] == [8] and not attempt.is_late


def test_readahead_limit_counts_chunks(machine):
    machine.core.context.prefetch_limits._left[P.READAHEAD] = 20
    numbers = chunks_of(machine, "h2", 64)
    machine.request_chunks([chunk(n) for n in numbers], P.READAHEAD, None)
    begun = [a for ask in machine.got(actions.RequestChunks) for a in ask.attempts]
    assert [len(one.refs) for one in begun] == [16, 16]
    assert machine.core.context.prefetch_limits.in_flight == 32


class Player:
    """Peers and a source that respond in any order and in any parts, and sometimes fail.

    :ivar asked: chunks that peers owe, by host and number; ``read``: that the source owes
    """

    def __init__(self, seed):
        self.rng, self.machine = random.Random(seed), new_machine()
        self.asked, self.read, self.done = {}, {}, {}

    def request(self, batch, token):
        self.machine.request_chunks(batch, self.rng.choice((P.GUEST, P.READAHEAD)), token)

    def _some(self, owed):
        """Choose a responder, and the chunks that it answers."""
        who = self.rng.choice([of for of, _ in owed])
        mine = [number for of, number in owed if of == who]
        return who, self.rng.sample(mine, self.rng.randint(1, len(mine)))

    def answer(self):
        host, some = self._some(self.asked)
        if self.rng.random() < 0.8:
            chunks = [(n, data_of(self.asked[host, n])) for n in some]
            self.machine.chunks_arrived(host, chunks)
        else:
            self.machine.peer_refused(
                host, [(n, self.rng.choice((F.MISSING, F.BUSY))) for n in some]
            )
        for number in some:
            del self.asked[host, number]

    def tell(self):
        of, some = self._some(self.read)
        fails = self.rng.random() < 0.2
        reported = [(n, F.UNREACHABLE if fails else data_of(self.read[of, n])) for n in some]
        self.machine.source_read_progressed(of, reported)
        for index in some:
            del self.read[of, index]

    def step(self):
        self.machine.now += 0.01
        kind = self.rng.random()
        if self.asked and kind < 0.5:
            self.answer()
        elif self.read and kind < 0.9:
            self.tell()
        else:
            self.machine.wait(self.rng.choice((0.0, 0.2, 1.0)))

    def look(self):
        """Record the actions of the engine."""
        for ask in self.machine.got(actions.RequestChunks):
            for number, ref, _ in ask.iter_chunks():
                self.asked[ask.host, number] = ref.offset // one_machine.CHUNK
        for cancel in self.machine.got(actions.CancelRequests):
            for number in cancel.numbers:
                self.asked.pop((cancel.host, number), None)
        for read in self.machine.got(actions.ReadSource):
            for index, ref in enumerate(read.refs):
                self.read[read.number, index] = ref.offset // one_machine.CHUNK
        for one in self.machine.completes():
            assert one.token not in self.done
            self.done[one.token] = one
        for store in self.machine.got(actions.Store):
            self.machine.cache.update(ref.cid for run in store.runs for ref in run.refs)
            self.machine.chunks_stored(store.runs)
            self.look()


@pytest.mark.parametrize("seed", range(40))
def test_each_read_completes_under_any_order_of_responses_and_failures(seed):
    player = Player(seed)
    rng = player.rng
    batches = {
        token: [chunk(n, rng.choice((one_machine.IMAGE, OTHER))) for n in _run(rng)]
        for token in range(12)
    }
    for token, batch in batches.items():
        player.request(batch, token)
        player.look()
        for _ in range(rng.randint(0, 20)):
            player.step()
            player.look()
            _check(player.machine)
    while len(player.done) < len(batches):
        player.step()
        player.look()
        _check(player.machine)
        assert player.machine.now < 600.0
    for token, one in player.done.items():
        if one.failure is None:
            assert one.chunks == [
                data_of(ref.offset // one_machine.CHUNK) for ref in batches[token]
            ]
    assert any(one.failure is None for one in player.done.values())


def _run(rng):
    start = rng.randrange(200)
    return range(start, start + rng.randint(1, 40))


def _check(machine):
    """Check that each chunk is in one transfer, whose parts have its chunks."""
    context = machine.core.context
    for key, one in context.transfers.items():
        assert key in one.keys
    for one in transfers(machine):
        assert one.chunk_count and all(context.transfers[key] is one for key in one.keys)
        assert all(len(name) == one.chunk_count for name in one.names)
        assert all(len(at) == one.chunk_count for _, at in one.waiters)
        tracks: list[transfer.Attempt] = [*one.attempts, *filter(None, [one.relay])]
        assert all(a.transfer is one and len(a.refs) == one.chunk_count for a in tracks)
        assert all([ref.key for ref in a.refs] == [*one.keys] for a in tracks)
        assert one.read is None or [ref.key for ref in one.read.refs] == [*one.keys]
    for peer in context.peers.list_peers():
        assert all(number in attempt.numbers for number, attempt in peer.pending.items())
