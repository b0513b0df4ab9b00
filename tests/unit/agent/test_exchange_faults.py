# SPDX-License-Identifier: Apache-2.0
"""One host's exchange and a peer with faults within a batch, over TCP in real time.

The peer runs in threads of its own, so it responds while this host's event loop is blocked.
"""

import contextlib
import sys
import threading
import time

import pytest
import trio

from acstor_agent.engine import priority
from acstor_agent.peers import peer_network
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from tests.fakes import exchange_cloud
from tests.fakes import lying_peer
from tests.unit.agent import test_peer_network as nets

CHUNK, H2 = exchange_cloud.CHUNK, ids.HostId("h2")
Priority = priority.Priority
TIMEOUT_S = 1.0
COUNT = 8


class OneOfTwo(exchange_cloud.Cloud):
    """One of two hosts; its requests to ``h2`` use a TCP connection."""

    def _net(self, here):
        net = peer_network.PeerNetwork(here, admission=nets.EVERYBODY)
        net.set_callbacks(
            protocol_violated=lambda *reported: self.hosts[here].protocol_violated(*reported)
        )
        self.nets = {**getattr(self, "nets", {}), here: net}
        return net

    def put_in_force(self, epoch, ports, vnodes=None):
        """Put a table in force without a former one."""
        weights = vnodes or {}
        self.ring = hash_ring.Ring(
            epoch,
            tuple(
                hash_ring.RingHost(name, f"127.0.0.1:{port}", weights.get(name, 100))
                for name, port in ports.items()
            ),
        )


class Peer:
    """The responses of ``h2``: correct except for chunks that a test sets.

    :ivar odd: replacements of responses, by chunk number
    :ivar asked: the chunk numbers of each message
    """

    def __init__(self):
        self.odd = {}
        self.asked = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, link, requests):
        numbers = [one.offset // CHUNK for one in requests]
        self.asked.append(numbers)
        self.may_answer.wait(20)
        chunks = []
        for number, request in zip(numbers, requests, strict=True):
            if number in self.odd:
                self.odd[number](link, request, chunks)
            else:
                data = exchange_cloud.bytes_of(number)
                chunks.append(peer_wire.Chunk(request.request_id, data))
        link.sendall(b"".join(peer_wire.encode_chunks(chunks)))


@contextlib.asynccontextmanager
async def asking_one(folder, version=peer_wire.MAJOR_VERSION, **chosen):
    """Run a host that has a peer; yield both, and set the chunks whose home the peer is.

    :param version: protocol version in the peer's frames
    """
    peer = Peer()
    more = {"timeout_s": TIMEOUT_S, "topology": None, **chosen}
    with lying_peer.answering("h2", peer.answer, version) as at:
        async with exchange_cloud.running(folder, ("h1",), kind=OneOfTwo, **more) as cloud:
            await cloud.nursery.start(cloud.nets["h1"].run)
            ports = {"h1": 1, "h2": at.port}
            cloud.put_in_force(2, ports)
            cloud.ports = ports
            cloud.peers = [n for n in range(40) if cloud.home(cloud.ref_of(n)) == "h2"]
            try:
                yield cloud, peer
            finally:
                peer.may_answer.set()


async def read(cloud, numbers, deadline_s=15.0, within_s=12.0):
    """Read chunks in one batch, and check their data."""
    refs = [cloud.ref_of(n) for n in numbers]
    with (
        trio.fail_after(within_s),
        cloud.hosts["h1"].submit_read(refs, deadline_s=deadline_s) as wish,
    ):
        came = await wish.wait()
    assert [bytes(chunk.data) for chunk in came] == [exchange_cloud.bytes_of(n) for n in numbers]


def counters(cloud):
    return cloud.hosts["h1"].core.counters


def from_source(cloud):
    """Return how many chunks the source delivered."""
    return cloud.hosts["h1"].counters.source_bytes // CHUNK


def wrong_bytes(link, request, chunks):
    """Send wrong data among correct chunks."""
    chunks.append(peer_wire.Chunk(request.request_id, bytes(CHUNK)))


def refuses(code):
    def refuse(link, request, chunks):
        lying_peer.send(link, peer_wire.Refuse(request.request_id, code))

    return refuse


def is_silent(link, request, chunks):
    """Never respond."""


# Faults of one chunk in a batch


@pytest.mark.parametrize(
    "what",
    [refuses(peer_wire.RefuseCode.MISSING), refuses(peer_wire.RefuseCode.BUSY), is_silent],
    ids=["missing", "busy", "silent"],
)
async def test_missing_chunk_of_a_batch_costs_one_source_read_and_no_backoff(tmp_path, what):
    async with asking_one(tmp_path) as (cloud, peer):
        numbers = cloud.peers[:COUNT]
        peer.odd[numbers[3]] = what
        await read(cloud, numbers)
        assert [n for asked in peer.asked for n in asked] == numbers  # each was requested once
        assert cloud.source.reads == [numbers[3] * CHUNK]
        assert not cloud.hosts["h1"].list_backoffs() and not counters(cloud).invalid_chunks


@pytest.mark.expect_log("is in backoff for .*: invalid")
async def test_invalid_chunk_backs_off_the_peer_but_keeps_the_rest_of_its_batch(tmp_path):
    async with asking_one(tmp_path, may_hedge=False) as (cloud, peer):
        numbers = cloud.peers[:COUNT]
        peer.odd[numbers[3]] = wrong_bytes
        await read(cloud, numbers)
        assert cloud.source.reads == [
            numbers[3] * CHUNK
        ]  # the other chunks of the frame were correct
        assert counters(cloud).invalid_chunks == 1
        assert cloud.hosts["h1"].list_backoffs()["h2"] > 30
        asked = len(peer.asked)
        await read(cloud, cloud.peers[COUNT : 2 * COUNT])
        assert len(peer.asked) == asked and from_source(cloud) == 1 + COUNT


async def test_cancelled_batch_does_not_cancel_chunks_that_others_wait_for(tmp_path):
    """One of two guests that share a batch is killed; its chunks are stored."""
    async with asking_one(tmp_path) as (cloud, peer):
        peer.may_answer.clear()
        host, numbers = cloud.hosts["h1"], cloud.peers[:COUNT]
        with host.submit_read([cloud.ref_of(n) for n in numbers]):
            await nets.wait_until(lambda: peer.asked)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, cloud, numbers[2:4])
            await trio.sleep(0.05)
            peer.may_answer.set()
        await nets.wait_until(lambda: all(host.has_chunk(cloud.ref_of(n).cid) for n in numbers))
        assert [n for asked in peer.asked for n in asked] == numbers
        assert not cloud.source.reads and not len(host.core)


# Table changes while a batch is in flight


async def test_responses_to_requests_by_the_former_table_are_accepted(tmp_path):
    """All homes move before the peer responds."""
    async with asking_one(tmp_path, timeout_s=10.0) as (cloud, peer):
        peer.may_answer.clear()
        numbers = cloud.peers[:COUNT]
        peer.odd[numbers[3]] = refuses(peer_wire.RefuseCode.MISSING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, cloud, numbers)
            await nets.wait_until(lambda: peer.asked)
            cloud.put_in_force(3, cloud.ports, {"h1": 4000, "h2": 1})
            cloud.hosts["h1"].handle_event(cloud.hosts["h1"].core.run_due_timers)  # any event
            assert cloud.hosts["h1"].core.context.ring.table.epoch == 3
            peer.may_answer.set()
        assert cloud.source.reads == [numbers[3] * CHUNK]
        assert [n for asked in peer.asked for n in asked] == numbers


async def test_departed_host_may_finish_its_batch_and_is_not_asked_again(tmp_path):
    async with asking_one(tmp_path) as (cloud, peer):
        peer.may_answer.clear()
        numbers = cloud.peers[:COUNT]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, cloud, numbers)
            await nets.wait_until(lambda: peer.asked)
            cloud.put_in_force(3, {"h1": 1})
            cloud.hosts["h1"].handle_event(cloud.hosts["h1"].core.run_due_timers)
            peer.may_answer.set()
        assert not cloud.source.reads
        await read(cloud, cloud.peers[COUNT : 2 * COUNT])
        assert from_source(cloud) == COUNT and len(peer.asked) == 1


# Another version


@pytest.mark.expect_log("dropped: .* it speaks version", "is in backoff for 0")
async def test_host_of_another_protocol_version_is_backed_off_as_unreachable(tmp_path):
    async with asking_one(tmp_path, version=peer_wire.MAJOR_VERSION + 1) as (cloud, peer):
        for number in cloud.peers[:COUNT]:
            await read(cloud, [number])
        assert from_source(cloud) == COUNT and not peer.asked
        assert not counters(cloud).invalid_chunks and counters(cloud).backoffs
        assert cloud.hosts["h1"].list_backoffs().get("h2", 0.0) < 2.0


# Many waiters


@pytest.mark.timed
async def test_thousand_reads_of_one_chunk_share_one_request(tmp_path):
    async with asking_one(tmp_path) as (cloud, peer):
        peer.may_answer.clear()
        host, number = cloud.hosts["h1"], cloud.peers[0]
        wishes = [host.submit_read([cloud.ref_of(number)]) for _ in range(1000)]
        await nets.wait_until(lambda: peer.asked)
        for wish in wishes[::2]:  # every other guest is killed
            wish.__exit__(None, None, None)
        peer.may_answer.set()
        for wish in wishes[1::2]:
            with trio.fail_after(5):
                assert (await wish.wait())[0].data == exchange_cloud.bytes_of(number)
        assert peer.asked == [[number]] and not cloud.source.reads
        assert not host.core.pending and not len(host.core)


# A blocked event loop


async def test_responses_that_arrived_while_the_loop_was_blocked_are_not_late(tmp_path):
    """A peer is not blamed if its response is in the socket when this host resumes.

    This host may be blocked again while it checks, so two chunks may still come from the source.
    """
    async with asking_one(tmp_path, timeout_s=0.5) as (cloud, peer):
        await read(cloud, cloud.peers[:1])  # connected
        await trio.sleep(0.3)
        for number in cloud.peers[1:11]:
            before = len(peer.asked)
            peer.may_answer.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, cloud, [number])
                await nets.wait_until(lambda before=before: len(peer.asked) > before)
                threading.Timer(0.1, peer.may_answer.set).start()
                time.sleep(0.6)  # noqa: ASYNC251  the event loop must block here
            await trio.sleep(0.3)
        assert len(cloud.source.reads) <= 2 and not counters(cloud).backoffs


async def test_guest_reads_complete_beside_cpu_bound_threads(tmp_path):
    """Threads compute all the time, so each turn of the loop waits for the GIL."""
    is_over = False

    def compute():
        while not is_over:
            sum(range(1000))

    before_s = sys.getswitchinterval()
    threads = [threading.Thread(target=compute) for _ in range(3)]
    sys.setswitchinterval(0.02)
    for thread in threads:
        thread.start()
    try:
        async with asking_one(tmp_path) as (cloud, peer):
            for at in range(0, 12, 4):
                await read(cloud, cloud.peers[at : at + 4], within_s=20.0)
            assert not cloud.hosts["h1"].list_backoffs()
            with pytest.raises(errors.DeadlineExceeded):
                peer.odd = dict.fromkeys(range(40), is_silent)
                cloud.source.delay_s = 60.0
                began_s = trio.current_time()
                await read(cloud, cloud.peers[12:13], deadline_s=1.0, within_s=20.0)
            assert trio.current_time() - began_s < 3.0
    finally:
        is_over = True
        sys.setswitchinterval(before_s)
        for thread in threads:
            thread.join()
