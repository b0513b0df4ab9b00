# SPDX-License-Identifier: Apache-2.0
"""Random event sequences: each read completes once, each peer request is answered at most once.

The machine is a former, a present and a future home at once; peers and the source respond
correctly, wrongly, twice, late or never; tables change at any moment.
"""

from types import MappingProxyType

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes import transfer_world

Failure = failure.Failure
P = priority.Priority
CHUNKS = 12
CHUNK = one_machine.CHUNK
PEERS = tuple(ids.HostId(f"h{n}") for n in range(2, 7))
FAR = PEERS[3:]
IMAGES = (one_machine.IMAGE, one_machine.OTHER)
FAILURES = (Failure.UNREACHABLE, Failure.BUSY, Failure.WITHHELD, Failure.MISSING)
OWN = (P.GUEST, P.GUEST, P.READAHEAD, P.PRE_SEED, P.ADVERTISED, P.HYDRATE)


class _Shell:
    """The attributes that ``transfer_world.check_host`` reads."""

    settings = MappingProxyType({"background_limit": 3, "timeout_s": 10.0})

    def __init__(self, machine):
        self.machine, self.name = machine, machine.here
        machine.in_flight_limit_bytes = transfer_world.MAX_IN_FLIGHT_BYTES

    core = property(lambda self: self.machine.core)
    world = property(lambda self: self.machine)


class Machine(stateful.RuleBasedStateMachine):
    """One host; each rule is an event from outside."""

    @stateful.initialize(
        topology=st.sampled_from((None, topologies.all_hosts)), copies=st.integers(0, 2)
    )
    def begin(self, topology, copies):
        self.machine = one_machine.Machine(
            6, topology=topology, copies_limit=copies, lost_after_s=5.0, **_Shell.settings
        )
        self.shell = _Shell(self.machine)
        self.waiting, self.asked, self.reads = {}, {}, {}
        self.requests = {}
        self.next = 0

    def do(self, todo):  # noqa: C901 - one branch for each action
        """Record the machine's actions, and check the invariants."""
        for action in todo:
            match action:
                case actions.RequestChunks(host, attempts):
                    assert 1 <= len(attempts) <= peer_request.MAX_BATCH and host != "h1"
                    for attempt in attempts:
                        assert (host, attempt.number) not in self.asked
                        self.asked[host, attempt.number] = attempt
                case actions.CancelRequests(host, numbers):
                    for number in numbers:
                        del self.asked[host, number]
                case actions.ReadSource(number):
                    in_flight = {w.cid for read in self.listened() for w in read}
                    assert not in_flight & {ref.cid for ref in action.refs}
                    self.reads[number] = dict(enumerate(action.refs))
                case actions.CancelSourceRead(number):
                    del self.reads[number]
                case actions.Store(runs):
                    self.machine.cache.update(ref.cid for run in runs for ref in run.refs)
                    self.do(self.machine.chunks_stored(runs))
                case actions.CompleteRead(token, chunks, why):
                    batch = self.waiting.pop(token)
                    right = [one_machine.data_of(n) for n in batch]
                    some = [data is not None for data in chunks]
                    assert all(some) if why is None else not all(some)
                    pairs = zip(chunks, right, strict=True)
                    assert all(data in (None, its) for data, its in pairs)
                case actions.SendAnswers(connection, answers):
                    for answer in answers:
                        self.answered(connection, answer)

    def listened(self):
        """Yield the chunks of each source read that the engine still expects."""
        reads = self.machine.core.context.source_reads._ranges
        for number, read in self.reads.items():
            left = reads[number].reads if number in reads else ()
            yield [ref for index, ref in read.items() if index in left]

    def answered(self, connection, answer):
        number = self.requests.pop((connection, answer.number))
        if isinstance(answer, actions.SendChunk):
            right = one_machine.chunk(number)
            assert answer.ref.cid == right.cid
            assert answer.data in (None, one_machine.data_of(number))
            assert answer.data is not None or right.cid in self.machine.cache
        elif isinstance(answer, actions.SendReferral):
            assert connection not in answer.hosts and "h1" not in answer.hosts

    # This host

    @stateful.rule(
        numbers=st.lists(st.integers(0, CHUNKS - 1), min_size=1, max_size=5),
        image=st.sampled_from(IMAGES),
        urgency=st.sampled_from(OWN),
        within_s=st.sampled_from((0.05, 3.0, float("inf"))),
    )
    def request(self, numbers, image, urgency, within_s):
        numbers = [n for n in numbers if one_machine.chunk(n).cid not in self.machine.cache]
        if numbers:
            self.next += 1
            self.waiting[self.next] = numbers
            batch = [one_machine.chunk(n, image) for n in numbers]
            end_s = self.machine.now + within_s
            self.do(self.machine.request_chunks(batch, urgency, self.next, deadline_s=end_s))

    @stateful.rule(
        numbers=st.lists(st.integers(0, CHUNKS - 1), min_size=1, max_size=5),
        image=st.sampled_from(IMAGES),
        urgency=st.sampled_from(OWN[2:]),
    )
    def want_each(self, numbers, image, urgency):
        wanted = []
        for number in numbers:
            if one_machine.chunk(number).cid not in self.machine.cache:
                self.next += 1
                self.waiting[self.next] = [number]
                wanted.append((self.next, (one_machine.chunk(number, image),)))
        self.do(self.machine.request_batches(wanted, urgency))

    @stateful.precondition(lambda self: self.waiting)
    @stateful.rule(data=st.data())
    def cancel(self, data):
        one = st.sampled_from(sorted(self.waiting))
        tokens = data.draw(st.lists(one, min_size=1, max_size=3, unique=True))
        for token in tokens:
            del self.waiting[token]
        self.do(self.machine.cancel_reads(*tokens))

    @stateful.rule(number=st.integers(0, CHUNKS - 1))
    def evict(self, number):
        cid = one_machine.chunk(number).cid
        if cid in self.machine.cache:
            self.machine.cache.discard(cid)
            self.do(self.machine.chunks_evicted([cid]))

    @stateful.rule(has_room=st.booleans())
    def room(self, has_room):
        self.do(self.machine.cache_space_changed(has_room))

    @stateful.rule()
    def is_mended(self):
        """Recovery without a fault ends nothing."""
        assert not self.machine.core.recover_from_fault(self.machine.now, "no fault")

    @stateful.rule(seconds=st.sampled_from((0.001, 0.1, 0.3, 1.0, 6.0, 45.0)))
    def time_passes(self, seconds):
        end_s = self.machine.now + seconds
        while (due_s := self.machine.core.next_s) is not None and due_s <= end_s:
            self.machine.now = max(self.machine.now, due_s)
            self.do(self.machine.core.run_due_timers(self.machine.now))
        self.machine.now = end_s

    # Responses to requests of this host

    def one_asked(self, data):
        found = data.draw(st.sampled_from(sorted(self.asked)))
        return found, self.asked.pop(found)

    @stateful.precondition(lambda self: self.asked)
    @stateful.rule(data=st.data(), again=st.booleans())
    def peer_gives(self, data, again):
        (host, number), attempt = self.one_asked(data)
        chunk = attempt.first_ref.offset // one_machine.CHUNK
        given = [(number, one_machine.data_of(chunk))] * (1 + again)
        self.do(self.machine.chunks_arrived(host, given))

    @stateful.precondition(lambda self: self.asked)
    @stateful.rule(data=st.data(), why=st.sampled_from(FAILURES))
    def peer_refuses(self, data, why):
        (host, number), _ = self.one_asked(data)
        self.do(self.machine.peer_refused(host, [(number, why)]))

    @stateful.precondition(lambda self: self.asked)
    @stateful.rule(data=st.data())
    def peer_lies(self, data):
        (host, number), _ = self.one_asked(data)
        self.do(self.machine.peer_refused(host, [(number, Failure.INVALID)]))

    @stateful.precondition(lambda self: self.asked)
    @stateful.rule(data=st.data(), hosts=st.lists(st.sampled_from(("h1", *PEERS)), max_size=4))
    def peer_refers(self, data, hosts):
        (host, number), _ = self.one_asked(data)
        self.do(self.machine.peer_referred(host, number, tuple(hosts)))

    @stateful.rule(host=st.sampled_from(PEERS), number=st.integers(0, 1 << 32))
    def peer_babbles(self, host, number):
        if (host, number) not in self.asked:
            self.do(self.machine.chunks_arrived(host, [(number, b"babble")]))
            self.do(self.machine.peer_refused(host, [(number, Failure.MISSING)]))
            self.do(self.machine.peer_referred(host, number, PEERS[:2]))

    @stateful.rule(host=st.sampled_from(PEERS), round_trip_s=st.sampled_from((0.0, 0.001, 0.1)))
    def connection_is_dialled(self, host, round_trip_s):
        self.do(self.machine.peer_dialled(host, round_trip_s))

    @stateful.rule(host=st.sampled_from(PEERS))
    def connections_break(self, host):
        for key in [key for key in self.asked if key[0] == host]:
            del self.asked[key]
        for key in [key for key in self.requests if key[0] == host]:
            del self.requests[key]
        self.do(self.machine.connection_lost(host))
        self.do(self.machine.peer_disconnected(host))

    @stateful.precondition(lambda self: self.reads)
    @stateful.rule(data=st.data(), why=st.sampled_from((None, None, *FAILURES)))
    def source_answers(self, data, why):
        number = data.draw(st.sampled_from(sorted(self.reads)))
        reported = data.draw(st.sets(st.sampled_from(sorted(self.reads[number]))))
        chunks = {index: self.reads[number].pop(index) for index in reported}
        if why is None:
            given = [(n, one_machine.data_of(w.offset // CHUNK)) for n, w in chunks.items()]
        else:
            given = [(n, why) for n in chunks]
        if not self.reads[number]:
            del self.reads[number]
        self.do(self.machine.source_read_progressed(number, given))

    @stateful.precondition(lambda self: self.reads)
    @stateful.rule(data=st.data(), why=st.sampled_from(FAILURES))
    def source_ends(self, data, why):
        number = data.draw(st.sampled_from(sorted(self.reads)))
        del self.reads[number]
        self.do(self.machine.source_ended(number, why))

    # Requests of peers

    @stateful.rule(
        host=st.sampled_from(PEERS),
        numbers=st.lists(st.integers(0, CHUNKS - 1), min_size=1, max_size=4),
        asked=st.sampled_from(peer_request.Mode),
        urgency=st.sampled_from((P.PEER, P.READAHEAD, P.PREFETCH)),
        timeout_s=st.sampled_from((0.5, 30.0)),
    )
    def peer_asks(self, host, numbers, asked, urgency, timeout_s):
        requests = []
        for number in numbers:
            self.next += 1
            self.requests[host, self.next] = number
            requests.append(
                self.machine.request(
                    number, host, asked, self.next, urgency=urgency, timeout_s=timeout_s
                )
            )
        self.do(self.machine.peer_requested(host, ids.HostId(host), requests, host in FAR))

    @stateful.precondition(lambda self: self.requests)
    @stateful.rule(data=st.data())
    def peer_cancels(self, data):
        host, number = data.draw(st.sampled_from(sorted(self.requests)))
        del self.requests[host, number]
        self.do(self.machine.peer_cancelled(host, [number]))

    @stateful.rule(host=st.sampled_from(PEERS), numbers=st.lists(st.integers(0, CHUNKS - 1)))
    def peer_tells(self, host, numbers):
        reported = one_machine.announced(*map(one_machine.chunk, numbers))
        self.do(
            self.machine.announcement_received(host, reported[::2], reported[1::2], reported[::3])
        )

    @stateful.rule(hosts=st.lists(st.sampled_from(PEERS)))
    def answers_arrive(self, hosts):
        self.do(self.machine.answers_delivered(hosts))

    @stateful.rule(places=st.sampled_from((1, 3, 64)))
    def uplink_fills(self, places):
        self.machine.core.context.uploads.slots.count = places

    @stateful.rule(
        heavy=st.sampled_from(("h1", *PEERS)), count=st.integers(1, 6), has_former=st.booleans()
    )
    def table_changes(self, heavy, count, has_former):
        before = self.machine.core.context.ring.table
        new = one_machine.table(count, epoch=before.epoch + 1, weights={heavy: 300})
        self.do(self.machine.table_changed(new, before if has_former else None))

    @stateful.invariant()
    def what_must_hold(self):
        if hasattr(self, "machine"):
            transfer_world.check_host(self.shell)
            assert len(self.machine.core.pending) == len(self.waiting)

    def teardown(self):
        """All reads complete once peers and the source respond correctly."""
        if not hasattr(self, "machine"):
            return
        self.do(self.machine.cache_space_changed(True))
        end_s = self.machine.now + 900
        while self.waiting and self.machine.now < end_s:
            for (host, number), attempt in list(self.asked.items()):
                self.asked.pop((host, number), None)
                chunk = attempt.first_ref.offset // one_machine.CHUNK
                given = [(number, one_machine.data_of(chunk))]
                self.do(self.machine.chunks_arrived(host, given))
            for number, read in list(self.reads.items()):
                del self.reads[number]
                given = [(n, one_machine.data_of(w.offset // CHUNK)) for n, w in read.items()]
                self.do(self.machine.source_read_progressed(number, given))
            self.do(self.machine.answers_delivered(PEERS))
            self.time_passes(0.5)
        assert not self.waiting
        for _ in range(200):
            self.do(self.machine.answers_delivered(PEERS))
            self.time_passes(0.5)
        assert not self.requests


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis.settings(
    max_examples=60, stateful_step_count=50, deadline=None, derandomize=True
)
