# SPDX-License-Identifier: Apache-2.0
"""Faults of the engine: an exception at any of its calls leaves no state behind."""

import contextlib
import inspect
import os
import sys

import pytest

from acstor_agent import engine as package
from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import lockstep as engine_lockstep
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from acstor_policies import learned_ring
from acstor_policies import lockstep
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

FOLDER = os.path.dirname(package.__file__)
Failure = failure.Failure
Mode = peer_request.Mode
P = priority.Priority
PEERS = [ids.HostId(f"h{n}") for n in range(2, 7)]
NO_FUNCTION = inspect.CO_GENERATOR | inspect.CO_NESTED
STRIDE = 37
"""A fault is injected at every so many calls; with 1 at each call."""


class InjectedError(Exception):
    """The fault."""


@contextlib.contextmanager
def raising_at(number):
    """Raise at the engine's function call of that number; yield the count of calls."""
    calls = [0]

    def look(frame, kind, _):
        code = frame.f_code
        is_function = kind == "call" and not code.co_flags & NO_FUNCTION
        if is_function and code.co_filename.startswith(FOLDER):
            calls[0] += 1
            if calls[0] == number:
                raise InjectedError(code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(before)


class Scene:
    """A host under scripted events of guests, peers and the source, with one fault at most.

    :param at: the number of the call that raises; 0: none does
    """

    def __init__(self, at, is_always_mended=False, **settings):
        self.machine = one_machine.Machine(
            hosts=6, background_limit=2, lost_after_s=2.0, copies_limit=2, **settings
        )
        self.at, self.calls, self.failed = at, 0, ""
        self.is_always_mended = is_always_mended
        self.asked, self.reads, self.requests = {}, {}, {}
        self.waiting, self.answered = set(), []

    def feed(self, event, *what):
        """Pass an event to the engine as the shell does, and recover from what it raises."""
        core, now = self.machine.core, self.machine.now
        try:
            with raising_at(self.at - self.calls) as calls:
                todo = getattr(core, event)(now, *what)
        except InjectedError as error:
            self.failed = f"{error} in {event}"
            todo = core.recover_from_fault(now, "a fault")
        self.calls += calls[0]
        if self.is_always_mended:
            kept = core.context.kept.copy()
            assert not core.recover_from_fault(now, "no fault")
            core.context.kept.update(kept)
        for action in todo:
            self.do(action)
        return self.failed.endswith(f" in {event}")

    def do(self, action):  # noqa: C901 - one branch for each action
        match action:
            case actions.RequestChunks(host, attempts):
                for attempt in attempts:
                    self.asked[host, attempt.number] = attempt
            case actions.CancelRequests(host, numbers):
                for number in numbers:
                    self.asked.pop((host, number), None)
            case actions.ReadSource(number):
                self.reads[number] = dict(enumerate(action.refs))
            case actions.CancelSourceRead(number):
                self.reads.pop(number, None)
            case actions.Store(runs):
                self.machine.cache.update(ref.cid for run in runs for ref in run.refs)
                self.feed("chunks_stored", runs)
            case actions.CompleteRead(token):
                self.answered.append(token)
                self.waiting.discard(token)
            case actions.SendAnswers(connection, answers):
                for answer in answers:
                    self.requests.pop((connection, answer.number), None)

    # Events

    def request(self, token, numbers, urgency=P.GUEST, within_s=60.0):
        self.waiting.add(token)
        until_s = self.machine.now + within_s
        if self.feed("request_chunks", [chunk(n) for n in numbers], urgency, token, until_s):
            self.cancel(token)

    def cancel(self, token):
        self.waiting.discard(token)
        self.feed("cancel_reads", token)

    def ask_me(self, host, *numbers, mode=Mode.HOME):
        asked = [self.machine.request(n, host, mode, timeout_s=20.0) for n in numbers]
        self.requests.update({(host, one.number): one for one in asked})
        if self.feed("peer_requested", host, host, asked, host == PEERS[1]):  # this one is far
            self.feed("peer_cancelled", host, [one.number for one in asked])

    def leaves(self, host):
        self.requests = {key: one for key, one in self.requests.items() if key[0] != host}
        if self.feed("peer_disconnected", host):
            self.feed("peer_disconnected", host)

    def peers_answer(self, odd=None):
        """Let all peers send the requested chunks.

        :param odd: the response to every third request instead
        """
        for at, ((host, number), attempt) in enumerate(list(self.asked.items())):
            if self.asked.pop((host, number), None) is None:
                continue
            if odd is None or at % 3:
                data = data_of(attempt.first_ref.offset // one_machine.CHUNK)
                self.feed("chunks_arrived", host, [(number, data)])
            elif isinstance(odd, Failure):
                self.feed("peer_refused", host, [(number, odd)])
            else:
                self.feed("peer_referred", host, number, odd)

    def source_answers(self, why=None):
        for number, refs in list(self.reads.items()):
            if self.reads.pop(number, None) is None:
                continue
            given = [(n, why or data_of(w.offset // one_machine.CHUNK)) for n, w in refs.items()]
            self.feed("source_read_progressed", number, given)
            self.feed("source_ended", number)

    def wait(self, seconds):
        end_s = self.machine.now + seconds
        while (next_s := self.machine.core.next_s) is not None and next_s <= end_s:
            self.machine.now = max(self.machine.now, next_s)
            self.feed("run_due_timers")
        self.machine.now = end_s

    def drain(self):
        """Answer all outstanding requests and reads, as far as possible."""
        self.feed("cache_space_changed", True)
        for _ in range(60):
            self.peers_answer()
            self.source_answers()
            self.feed("answers_delivered", PEERS)
            self.wait(0.5)

    # Remaining state

    def left(self):
        """Return the state that remains in the engine; empty if there is none."""
        core = self.machine.core
        context, waiters, requests = core.context, core.pending, core.requests
        prefetches = waiters.prefetch_limits
        requesters = [
            (one.requests, one.begun, one.undelivered, one.slots, one.links)
            for one in requests.links.requesters.values()
        ]
        owed = [
            peer.host for peer in context.peers.list_peers() if peer.pending or peer.in_flight_bytes
        ]
        counts = {
            "transfers": len(context.transfers),
            "waiters": len(waiters),
            "readers without a reply": len(self.waiting),
            "kept": len(context.kept),
            "unwanted": len(context.transfers.unwanted),
            "reads": len(context.source_reads)
            + len(context.source_reads._ranges)
            + len(context.source_reads._held),
            "retries": len(waiters.retries) + waiters.retries.due.length,
            "free lookup slots": waiters.lookups._free_slots - 4,
            "prefetches": prefetches.in_flight + len(prefetches),
            "free prefetch slots": sum(prefetches._left.values())
            - sum(prefetches._limits.values()),
            "requests": len(requests) + len(self.requests),
            "upload slots": sum(
                uploads.used + uploads._watched + len(uploads)
                for uploads in (context.uploads, context.far_uploads)
            ),
            "of requesters": sum(map(sum, requesters)),
            "owed by peers": len(owed),
            "queued requests": sum(peer.queue.length for peer in context.peers.list_peers()),
        }
        return {what: count for what, count in counts.items() if count}


def leave(scene):
    """Close all connections, so that no requester remains."""
    for host in PEERS:
        scene.leaves(host)
    scene.feed("connection_lost", PEERS[0])


def guests(scene):
    """Guest reads and readahead from peers that refer, refuse, send invalid data or are late."""
    scene.feed("announcement_received", PEERS[0], [chunk(n).oid for n in range(0, 40, 5)], [], [])
    scene.request("first", range(6))
    scene.request("twice", [2, 3])
    scene.request("ahead", range(10, 16), P.READAHEAD)
    each = [(f"each {n}", (chunk(n),)) for n in range(20, 26)]
    scene.waiting.update(token for token, _ in each)
    if scene.feed("request_batches", each, P.ADVERTISED):
        for token, _ in each:
            scene.cancel(token)
    scene.peers_answer((PEERS[1], PEERS[2]))
    scene.request("hurried", [14, 15, 24])
    scene.peers_answer(Failure.BUSY)
    scene.source_answers()
    scene.request("killed", range(30, 36))
    scene.cancel("killed")
    scene.peers_answer(Failure.INVALID)
    scene.wait(1.0)
    scene.feed("table_changed", one_machine.table(5, epoch=2), scene.machine.table)
    scene.request("late", range(40, 44), within_s=0.3)
    scene.wait(0.4)


def missing_everywhere(scene):
    """Chunks that the source lacks, and chunks that it cannot deliver for a while."""
    scene.request("gone", range(4), within_s=20.0)
    for _ in range(6):
        for host, number in list(scene.asked):
            if scene.asked.pop((host, number), None) is not None:
                scene.feed("peer_refused", host, [(number, Failure.MISSING)])
        scene.source_answers(Failure.MISSING)
        scene.wait(0.2)
    scene.request("away", range(10, 13))
    scene.feed("connection_lost", PEERS[0])
    scene.source_answers(Failure.UNREACHABLE)
    scene.wait(0.3)
    scene.feed("cancel_reads", "nobody")


def peers(scene):
    """Peers that request cached, pending and absent chunks, raise priorities and disconnect."""
    scene.request("first", range(4))
    scene.source_answers()
    scene.peers_answer()
    scene.ask_me(PEERS[0], 0, 1, 2, 3)
    scene.machine.core.context.uploads.slots.count = 1
    scene.ask_me(PEERS[1], 0, 1, 8, 9)
    scene.ask_me(PEERS[2], 0, 2, 9, mode=Mode.HELD)
    scene.ask_me(PEERS[3], 1, 12, 13, mode=Mode.RELAYED)
    scene.feed("peer_raised_priority", PEERS[1], [9, 10])
    scene.feed("peer_cancelled", PEERS[1], [2])
    scene.source_answers()
    scene.peers_answer()
    scene.feed("cache_read_failed", PEERS[0], 1)
    scene.feed("answers_delivered", PEERS[:2])
    scene.feed("chunks_evicted", [chunk(0).cid])
    scene.machine.cache.discard(chunk(0).cid)
    scene.feed("answers_delivered", PEERS)
    scene.ask_me(PEERS[4], 20, 21)
    scene.leaves(PEERS[4])
    scene.feed("table_changed", one_machine.table(6, epoch=2, weights={"h1": 9}), None)
    scene.wait(3.0)


def in_step(scene):
    """Events of hosts that learn a ring."""
    held = Mode.HELD_ONLY
    for host in PEERS:
        lockstep.distance(scene.machine.here, host)  # cached: later calls do not count
    scene.machine.cache.update(chunk(n).cid for n in range(4))
    scene.ask_me(PEERS[0], 0, 1, 2, mode=held)
    scene.wait(0.1)
    scene.feed("answers_delivered", PEERS)  # late: links have queues
    scene.request("near", [5, 6])
    scene.peers_answer(PEERS[1:2])
    scene.ask_me(PEERS[1], 7, 8, mode=Mode.HELD)  # which guests are about to read
    scene.ask_me(PEERS[2], 7, mode=Mode.HELD)
    scene.request("next", [7, 9])
    scene.peers_answer(Failure.MISSING)
    scene.source_answers()
    scene.feed("answers_delivered", PEERS)
    for n in range(10, 14):
        scene.request(f"later {n}", [n])
        scene.peers_answer(Failure.MISSING)
    scene.wait(1.0)


def play(story, at, is_always_mended=False):
    policy = learned_ring.LearnedRing if story is in_step else engine_lockstep.Lockstep
    scene = Scene(at, is_always_mended, lockstep=policy)
    story(scene)
    scene.drain()
    leave(scene)
    scene.drain()
    return scene


@pytest.mark.parametrize("story", [guests, missing_everywhere, peers, in_step])
def test_fault_at_any_call_leaves_no_state_behind(story):
    whole = play(story, 0)
    assert not whole.left() and not whole.failed
    for at in range(1, whole.calls, STRIDE):
        scene = play(story, at)
        assert scene.failed
        assert not scene.left(), f"{scene.failed} (call {at}) leaves {scene.left()}"
        assert len(scene.answered) == len(set(scene.answered))


@pytest.mark.parametrize("story", [guests, missing_everywhere, peers, in_step])
def test_recovery_without_a_fault_ends_no_request(story):
    scene = play(story, 0, is_always_mended=True)
    assert not scene.left()
    assert sorted(scene.answered) == sorted(play(story, 0).answered)
