# SPDX-License-Identifier: Apache-2.0
"""Batched chunk requests and responses, valid and invalid, over TCP on the loopback."""

import contextlib
import os

import pytest
import trio

from acstor_agent.peers import peer_network
from acstor_agent.peers.connection import client_connection
from acstor_common import errors
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import request_server
from tests.unit.agent import test_peer_network as nets

CHUNK = 4096
DATA = nets.DATA
COUNT = peer_wire.MAX_BATCH
RUDE = "server.example .* broke the protocol"


def request(number, at=None, **changes):
    offset = CHUNK * (number if at is None else at)
    return nets.REQUEST._replace(request_id=number, offset=offset, length=CHUNK, **changes)


def batch(numbers=range(1, COUNT + 1), **changes) -> bytes:
    """Return one message that requests many chunks."""
    get = peer_wire.Get(tuple(request(number, **changes) for number in numbers))
    return peer_wire.encode(get)[0]


def chunk(asked: peer_wire.ChunkRequest) -> peer_wire.Chunk:
    return peer_wire.Chunk(asked.request_id, DATA[asked.offset : asked.offset + asked.length])


def frames(*messages) -> bytes:
    return b"".join(b"".join(map(bytes, peer_wire.encode(message))) for message in messages)


class Here:
    """A server with all chunks in memory; records the groups of requests."""

    def __init__(self):
        self.groups = []
        self.raises = []

    def requests_received(self, connection, requests, arrived_s):
        self.groups.append([one.request_id for one in requests])
        connection.send_answers([answer for one in requests if (answer := self.answer(one))])

    def answer(self, one):
        return chunk(one)

    def requests_cancelled(self, connection, request_ids):
        pass

    def priorities_raised(self, connection, request_ids):
        self.raises.append(list(request_ids))

    def answers_drained(self, connection):
        pass

    def connection_ended(self, connection):
        pass


class Host:
    """A scripted peer: it receives requests, and sends any bytes."""

    def __init__(self, stream):
        self._stream = stream
        self._to = peer_receiver.Receiver("client", peer_wire.FROM_CLIENT)
        self.messages = []

    async def receive_requests(self, count):
        """Return the first ``count`` requests, by offset, once they have arrived."""
        while len(nets.requests_in(self.messages)) < count:
            self.messages += self._to.feed_bytes(await self._stream.receive_some())
        return sorted(nets.requests_in(self.messages), key=lambda one: one.offset)

    async def receive_cancel(self):
        """Return the first Cancel, once it has arrived."""
        while True:
            for message in self.messages:
                if isinstance(message, peer_wire.Cancel):
                    return message
            await self.receive_more()

    async def receive_more(self):
        self.messages += self._to.feed_bytes(await self._stream.receive_some())

    def cancelled(self):
        """Return the ids of cancelled requests."""
        cancels = [m for m in self.messages if isinstance(m, peer_wire.Cancel)]
        return {number for cancel in cancels for number in cancel.request_ids}

    async def send(self, data):
        await self._stream.send_all(data)


@contextlib.asynccontextmanager
async def client_of_peer(converse, **options):
    """Let ``converse`` answer a client; yields the client."""

    async def handler(stream):
        await stream.send_all(nets.SERVER_HELLO)
        with contextlib.suppress(trio.BrokenResourceError):
            await converse(Host(stream))
            await trio.sleep_forever()

    async with nets.faking(handler) as address, nets.asking(address, **options) as client:
        yield client


async def fetch_all(client, numbers, outcomes, *, timeout_s=3.0, mode=peer_wire.Mode.HOME_ONLY):
    """Fetch chunks in one batch; record the outcome of each."""
    asked = [request(number, mode=mode) for number in numbers]
    came = await request_server.fetch_all(client.net, nets.SERVER, client.address, asked, timeout_s)
    for number, outcome in came.items():
        is_right = not isinstance(outcome, Exception) and (
            outcome == DATA[CHUNK * number :][:CHUNK]
        )
        outcomes[number] = "came" if is_right else outcome


# Client side


async def test_requests_of_one_loop_turn_share_a_message_and_accept_any_order():
    received = []

    async def converse(host):
        asked = await host.receive_requests(COUNT)
        received.extend(m for m in host.messages if isinstance(m, peer_wire.Get))
        run = peer_wire.encode_chunks([chunk(one) for one in reversed(asked)])
        await host.send(b"".join(run))

    async with client_of_peer(converse) as client:
        outcomes = {}
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        await fetch_all(client, range(COUNT), outcomes)
    assert len(received) == 1 and outcomes == dict.fromkeys(range(COUNT), "came")


async def test_each_chunk_of_a_batch_has_its_own_answer():
    """The answers are bytes, a refusal, a referral and none."""

    async def converse(host):
        first, second, third, _ = await host.receive_requests(4)
        refused = peer_wire.Refuse(second.request_id, peer_wire.RefuseCode.MISSING)
        referred = peer_wire.Refer(third.request_id, ("h7",))
        await host.send(frames(referred, chunk(first), refused))

    async with client_of_peer(converse) as client:
        outcomes = {}
        await fetch_all(client, range(4), outcomes, mode=peer_wire.Mode.HOME, timeout_s=0.3)
    assert outcomes[0] == "came" and outcomes[2].hosts == ("h7",)
    assert isinstance(outcomes[1], errors.ChunkMissing)
    assert "no answer within 0.3 s" in str(outcomes[3])


async def test_flood_of_pings_causes_few_callbacks():
    received, came = [], trio.Event()

    async def converse(host):
        [asked] = await host.receive_requests(1)
        await host.send(frames(*[peer_wire.Ping(0)] * 1000, chunk(asked)))

    def on_answers(answers):
        received.append(answers)
        if answers:
            came.set()

    async with client_of_peer(converse, limits=nets.TALKATIVE) as client:
        client.net.send_requests(nets.SERVER, client.address, [request(1)], on_answers)
        with trio.fail_after(5):
            await came.wait()
    signs = received.count([])
    assert 1 <= signs <= 100 and len(received) == signs + 1


UNREQUESTED_ANSWERS = {
    "unrequested chunk": lambda asked: [peer_wire.Chunk(777, b"x")],
    "unrequested refusal": lambda asked: [peer_wire.Refuse(777, peer_wire.RefuseCode.MISSING)],
    "twice": lambda asked: [chunk(asked), chunk(asked)],
    "answered and refused": lambda asked: [
        chunk(asked),
        peer_wire.Refuse(asked.request_id, peer_wire.RefuseCode.BUSY),
    ],
}


@pytest.mark.expect_log(RUDE)
@pytest.mark.parametrize("name", UNREQUESTED_ANSWERS)
async def test_unrequested_answer_closes_the_connection(name):
    async def converse(host):
        asked, _ = await host.receive_requests(2)
        await host.send(frames(*UNREQUESTED_ANSWERS[name](asked)))

    async with client_of_peer(converse) as client:
        outcomes = {}
        await fetch_all(client, range(2), outcomes)
        await nets.wait_until(lambda: client.net.connection_counts[1] == 0)
    assert isinstance(outcomes[1], errors.RemoteProtocolError)
    assert "unsolicited" in outcomes[1].why
    if "twice" in name or "given" in name:
        assert outcomes[0] == "came"  # earlier valid responses are kept


def late_answers(asked):
    return [peer_wire.Chunk(one.request_id, bytes(one.length)) for one in asked[:4]]


TOO_LATE = {
    "chunks": late_answers,
    "in another order": lambda asked: reversed(late_answers(asked)),
    "refused and referred": lambda asked: [
        peer_wire.Refuse(asked[0].request_id, peer_wire.RefuseCode.MISSING),
        peer_wire.Refer(asked[1].request_id, ("h7",)),
    ],
    "none": lambda asked: [],
}
MORE_THAN_TOO_LATE = {
    "one of them twice": lambda asked: [*late_answers(asked), late_answers(asked)[0]],
    "as many, of numbers that never were": lambda asked: [
        peer_wire.Chunk(900_000 + n, bytes(CHUNK)) for n in range(4)
    ],
    "longer by a byte": lambda asked: [peer_wire.Chunk(asked[0].request_id, bytes(CHUNK + 1))],
    "shorter": lambda asked: [peer_wire.Chunk(asked[0].request_id, b"x")],
}


async def given_up(late_answers_of):
    """Answer four of eight requests after their cancel, then the rest; return the outcomes."""

    async def converse(host):
        asked = await host.receive_requests(8)
        while len(cancelled := host.cancelled()) < 4:
            await host.receive_more()
        assert cancelled == {one.request_id for one in asked[:4]}
        await host.send(frames(*late_answers_of(asked), *map(chunk, asked[4:])))

    async with client_of_peer(converse) as client:
        late, in_time = {}, {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: fetch_all(client, range(4), late, timeout_s=0.1))
            nursery.start_soon(lambda: fetch_all(client, range(4, 8), in_time))
        assert all(isinstance(e, errors.SourceUnreachable) for e in late.values())
        return in_time, client.net.connection_counts[1]


@pytest.mark.parametrize("name", TOO_LATE)
async def test_late_answers_to_cancelled_requests_are_dropped(name):
    assert await given_up(TOO_LATE[name]) == (dict.fromkeys(range(4, 8), "came"), 1)


@pytest.mark.expect_log(RUDE)
@pytest.mark.parametrize("name", MORE_THAN_TOO_LATE)
async def test_invalid_answers_to_cancelled_requests_close_the_connection(name):
    in_time, _ = await given_up(MORE_THAN_TOO_LATE[name])
    assert {type(e) for e in in_time.values()} == {errors.RemoteProtocolError}


def frame_of(*chunks) -> bytes:
    """Return one frame with chunks of any lengths."""
    return b"".join(map(bytes, peer_wire._encode_chunks(chunks)))


PADDED = {
    "unsolicited": lambda asked: frame_of(chunk(asked), peer_wire.Chunk(99, bytes(1 << 19))),
    "bytes of data": lambda asked: frame_of(chunk(asked), peer_wire.Chunk(99, bytes(1 << 20))),
    "were requested": lambda asked: frame_of(peer_wire.Chunk(asked.request_id, bytes(1 << 22))),
}


@pytest.mark.expect_log(RUDE)
@pytest.mark.parametrize("why", PADDED)
async def test_oversized_frame_is_refused_by_its_header_and_reported(why):
    """No byte of it is kept; the violation is reported although no other request is pending."""
    received, rude = [], []

    async def converse(host):
        [asked] = await host.receive_requests(1)
        await host.send(PADDED[why](asked)[:1000])

    async with client_of_peer(
        converse, reported={"protocol_violated": lambda *reported: rude.append(reported)}
    ) as client:
        client.net.send_requests(nets.SERVER, client.address, [request(1)], received.extend)
        await nets.wait_until(lambda: rude)
    assert [type(answer) for answer in received] == [client_connection.RequestLost]
    [(host, error)] = rude
    assert host == nets.SERVER and why in error.why


async def test_chunk_is_copied_out_of_a_frame_with_cancelled_chunks():
    async def converse(host):
        asked = await host.receive_requests(3)
        await host.receive_cancel()
        await host.send(frame_of(*map(chunk, asked)))
        await host.send(frame_of(*map(chunk, (await host.receive_requests(6))[3:])))

    async with client_of_peer(converse) as client:
        received = []
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        [connection] = client.net._outgoing()
        for numbers, given_up in (((1, 2, 3), [1, 3]), ((4, 5, 6), [])):
            connection.send_requests([request(n) for n in numbers], received.extend)
            await trio.sleep(0.05)  # they are sent
            connection.cancel_requests(given_up)
            await nets.wait_until(lambda: len(received) == (1 if given_up else 4))  # noqa: B023
    assert received == [chunk(request(n)) for n in (2, 4, 5, 6)]
    assert isinstance(received[0].data, bytes)  # a copy of its own
    assert len({id(answer.data.obj) for answer in received[1:]}) == 1  # adjacent, all requested


def is_used(connection, number):
    """Return whether an answer to this request id may still arrive."""
    return any(number in some for some in connection.used_numbers)


async def test_request_id_is_not_reused_while_an_answer_may_arrive():
    """Otherwise the answer to the cancelled request would be taken for that to the new one."""

    async def converse(host):
        first, _ = await host.receive_requests(2)
        await host.receive_cancel()
        await host.send(frames(chunk(first)))
        await host.send(frames(chunk((await host.receive_requests(3))[2])))

    async with client_of_peer(converse) as client:
        received = []
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        [connection] = client.net._outgoing()
        connection.send_requests([request(7, at=1), request(8, at=2)], received.extend)
        with pytest.raises(errors.LocalProtocolError, match="request id 8 is still in use"):
            connection.send_requests([request(8, at=3)], received.extend)
        await trio.sleep(0.05)
        connection.cancel_requests([7])
        with pytest.raises(errors.LocalProtocolError, match="request id 7 is still in use"):
            connection.send_requests([request(7, at=3)], received.extend)
        await nets.wait_until(lambda: not is_used(connection, 7))  # its answer has arrived
        connection.send_requests([request(7, at=3)], received.extend)
        await nets.wait_until(lambda: received)
        assert received == [peer_wire.Chunk(7, chunk(request(0, at=3)).data)]


async def test_oldest_remembered_cancel_is_forgotten_at_the_limit():
    limits = peer_network.PeerLimits(remembered_cancels=3)

    async def converse(host):
        await host.receive_requests(5)

    async with client_of_peer(converse, limits=limits) as client:
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        [connection] = client.net._outgoing()
        connection.send_requests([request(n) for n in range(5)], lambda answers: None)
        await nets.wait_until(lambda: not connection._send_queue)
        connection.cancel_requests(range(5))
        assert [is_used(connection, n) for n in range(5)] == [False, False, True, True, True]


async def test_cancel_names_chunks_of_a_batch_and_the_rest_arrives():
    cancelled = []

    async def converse(host):
        asked = await host.receive_requests(8)
        cancelled.append(await host.receive_cancel())
        wanted = {r.request_id for r in asked} - {n for m in cancelled for n in m.request_ids}
        await host.send(frames(*(chunk(r) for r in asked if r.request_id in wanted)))

    async with client_of_peer(converse) as client:
        received = []
        async with trio.open_nursery() as nursery:
            await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
            [connection] = client.net._outgoing()
            connection.send_requests([request(n) for n in range(1, 9)], received.extend)
            await nets.wait_until(lambda: not connection._send_queue)
            connection.cancel_requests([1, 3, 5, 7])
            await nets.wait_until(lambda: len(received) == 4)
            nursery.cancel_scope.cancel()
    assert [message.request_ids for message in cancelled] == [(1, 3, 5, 7)]
    assert [answer.request_id for answer in received] == [2, 4, 6, 8]


@pytest.mark.expect_log("a request to a peer has failed")
@pytest.mark.parametrize("is_connected", [False, True])
async def test_unencodable_request_fails_all_requests_of_the_connection(is_connected):
    """The connection closes, and all of its requests are lost."""
    received = []

    async def converse(host):
        await trio.sleep_forever()

    async with client_of_peer(converse) as client:
        line = client.net._channel_to(nets.SERVER, client.address, nets.DEMAND)
        if is_connected:
            await line.is_decided.wait()
        line.send_requests([request(1)], received.extend)
        line.send_requests([request(2, timeout_ms=0)], received.extend)
        await nets.wait_until(lambda: len(received) == 2)
        await nets.wait_until(lambda: not client.net._channels)
        assert client.net.faults.count == 1
    assert sorted(one.request_id for one in received) == [1, 2]
    assert all("a Get without a timeout" in str(one.failure) for one in received)


async def test_request_is_sent_immediately():
    hosts = []

    async def converse(host):
        hosts.append(host)
        await trio.sleep_forever()

    async with client_of_peer(converse) as client:
        line = client.net._channel_to(nets.SERVER, client.address, nets.DEMAND)
        await line.is_decided.wait()
        await nets.wait_until(lambda: hosts)
        [host] = hosts
        client.net.send_requests(nets.SERVER, client.address, [request(1)], lambda answers: None)
        host.messages += host._to.feed_bytes(os.read(host._stream.socket.fileno(), 4096))
        assert nets.requests_in(host.messages) == [request(1)]


def fill(connection):
    """Send until the socket is full."""
    while not connection.outbox_bytes:
        connection.send_messages(*[peer_wire.Ping(0)] * 1024)


async def test_requests_queued_at_a_full_socket_share_a_message():
    reads, received = trio.Event(), []

    async def converse(host):
        await reads.wait()
        await host.receive_requests(2)
        received.extend(host.messages)

    async with client_of_peer(converse) as client:
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        [connection] = client.net._outgoing()
        fill(connection)
        for number in (1, 2, 3):
            connection.send_requests([request(number)], lambda answers: None)
        connection.cancel_requests([1])
        reads.set()
        await nets.wait_until(lambda: received)
    asked = [
        [one.request_id for one in m.requests] for m in received if isinstance(m, peer_wire.Get)
    ]
    assert asked == [[2, 3]]
    assert not any(isinstance(m, peer_wire.Cancel) for m in received)


async def test_lost_connection_fails_each_request_once_and_later_ones_too():
    async def converse(host):
        asked = await host.receive_requests(COUNT)
        await host.send(frames(chunk(asked[5])))
        await host._stream.aclose()

    async with client_of_peer(converse) as client:
        received = []
        line = client.net._channel_to(nets.SERVER, client.address, nets.DEMAND)
        line.send_requests([request(n) for n in range(COUNT)], received.extend)
        await nets.wait_until(lambda: len(received) == COUNT)
        line.send_requests([request(1000)], received.extend)
        assert len(received) == COUNT  # no callback runs inside the call
        await nets.wait_until(lambda: len(received) == COUNT + 1)
    assert received[0] == chunk(request(5))
    assert all(isinstance(answer, client_connection.RequestLost) for answer in received[1:])
    numbers = [answer.request_id for answer in received]
    assert sorted(numbers) == [*range(COUNT), 1000] and numbers[-1] == 1000


async def test_unanswered_requests_of_a_batch_time_out_concurrently():
    async def converse(host):
        asked = await host.receive_requests(COUNT)
        await host.send(frames(chunk(asked[7])))

    async with client_of_peer(converse) as client:
        outcomes = {}
        began = trio.current_time()
        await fetch_all(client, range(COUNT), outcomes, timeout_s=0.4)
        assert trio.current_time() - began < 2
    assert outcomes.pop(7) == "came"
    assert all("no answer within 0.4 s" in str(e) for e in outcomes.values())


async def test_requests_before_the_connection_are_sent_once_it_is_established():
    received, asked = [], []

    async def converse(host):
        asked.extend(await host.receive_requests(3))
        await host.send(frames(*map(chunk, asked)))

    async with client_of_peer(converse) as client:
        at = nets.SERVER, client.address
        client.net.send_requests(*at, [request(n) for n in (1, 2)], received.extend)
        client.net.send_requests(*at, [request(n) for n in (3, 4)], received.extend)
        client.net.cancel_requests(nets.SERVER, [2])
        await nets.wait_until(lambda: len(received) == 3)
        assert not client.net._outgoing()[0]._waiting
    assert [one.request_id for one in asked] == [1, 3, 4]
    assert sorted(received) == [chunk(request(n)) for n in (1, 3, 4)]


async def test_requests_to_an_unreachable_peer_fail_once_with_the_reason():
    received = []
    limits = peer_network.PeerLimits(outgoing=1)
    async with nets.asking("127.0.0.1:1", limits=limits) as client:
        client.net.send_requests(
            nets.SERVER, client.address, [request(n) for n in range(8)], received.extend
        )
        urgent = [request(9, priority=peer_wire.Priority.PREFETCH)]
        client.net.send_requests(
            nets.SERVER, client.address, urgent, received.extend
        )  # over the limit of connections
        assert not received
        await nets.wait_until(lambda: len(received) == 9)
        await trio.sleep(0.05)
    received.sort(key=lambda answer: answer.request_id)
    assert [answer.request_id for answer in received] == [*range(8), 9]
    assert "in use" in str(received.pop().failure)
    assert all("cannot connect" in str(answer.failure) for answer in received)


async def test_requests_after_close_fail():
    """A callback that requests again fails again, each time in a new turn of the event loop."""
    received = []
    async with nets.asking("127.0.0.1:1") as client:

        def on_answers(answers):
            received.extend(answers)
            if len(received) < 2000:
                client.net.send_requests(
                    nets.SERVER, client.address, [request(len(received))], on_answers
                )

        await client.net.aclose()
        await nets.wait_until(lambda: client.net._nursery is None)
        client.net.send_requests(nets.SERVER, client.address, [request(0)], on_answers)
        assert not received
        await nets.wait_until(lambda: len(received) == 2000)
        client.net.send_requests(
            nets.SERVER, client.address, [request(1), request(2)], received.extend
        )
        client.net.cancel_requests(nets.SERVER, [1])
        await nets.wait_until(lambda: len(received) == 2001)
        with pytest.raises(errors.SourceUnreachable):
            await client.fetch(0, CHUNK)
        assert not client.net._replaced
    assert [answer.request_id for answer in received] == [*range(2000), 2]
    assert {type(answer.failure) for answer in received} == {errors.SourceUnreachable}


async def test_cancelled_request_to_a_moved_host_gets_no_callback():
    received = []

    async def converse(host):
        await host.receive_requests(2)

    async with client_of_peer(converse) as client:
        client.net.send_requests(
            nets.SERVER, client.address, [request(1), request(2)], received.extend
        )
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        client.net.send_requests(nets.SERVER, "127.0.0.1:1", [request(3)], received.extend)
        client.net.cancel_requests(nets.SERVER, [1])
        await nets.wait_until(lambda: len(received) == 2)
        await trio.sleep(0.05)
        assert not client.net._replaced
    assert sorted(answer.request_id for answer in received) == [2, 3]


@pytest.mark.expect_log("(an answer of|a connection to) a peer has failed")
@pytest.mark.parametrize("is_there", [True, False])
async def test_exception_in_a_callback_does_not_affect_other_requests(is_there):
    received = []

    def on_answers(answers):
        raise ZeroDivisionError

    async def converse(host):
        await host.receive_requests(2)
        await host._stream.aclose()

    async with client_of_peer(converse) as client:
        address = client.address if is_there else "127.0.0.1:1"
        client.net.send_requests(nets.SERVER, address, [request(1)], on_answers)
        client.net.send_requests(nets.SERVER, address, [request(2)], received.extend)
        await nets.wait_until(lambda: client.net.faults.count)
    assert [answer.request_id for answer in received] == [2]


async def test_duplicate_request_ids_raise_local_protocol_error():
    async with nets.asking("127.0.0.1:1") as client:
        at = nets.SERVER, client.address
        client.net.send_requests(*at, [request(1)], lambda answers: None)
        for numbers in ([2, 1], [3, 3]):
            with pytest.raises(errors.LocalProtocolError, match="still in use"):
                client.net.send_requests(*at, [request(n) for n in numbers], lambda answers: None)


# Server side


async def receive_all(stream, count):
    to, messages = peer_receiver.Receiver("server", peer_wire.FROM_SERVER), []
    data = b""
    with trio.fail_after(5):
        while len(messages) < count + 1:  # and Hello
            came = await stream.receive_some()
            data += came
            messages += to.feed_bytes(came)
    return messages[1:], data


async def test_batched_requests_are_served_together_in_one_frame():
    server = Here()
    async with nets.serving(handler=server) as (_net, address):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO + batch())
        chunks, data = await receive_all(stream, COUNT)
        await stream.aclose()
    assert chunks == [chunk(request(n)) for n in range(1, COUNT + 1)]
    assert server.groups == [list(range(1, COUNT + 1))]
    assert len(data) == len(nets.SERVER_HELLO) + 9 + COUNT * (16 + CHUNK)


async def test_refused_and_pending_requests_do_not_delay_their_batch():
    class Mixed(Here):
        def answer(self, one):
            if one.request_id % 3 == 0:
                return peer_wire.Refuse(one.request_id, peer_wire.RefuseCode.MISSING)
            return None if one.request_id == 4 else super().answer(one)

    async with nets.serving(handler=Mixed()) as (net, address):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO + batch(range(1, 10)))
        answers, _ = await receive_all(stream, 8)
        refused = {a.request_id for a in answers if isinstance(a, peer_wire.Refuse)}
        given = {a.request_id for a in answers if isinstance(a, peer_wire.Chunk)}
        assert (refused, given) == ({3, 6, 9}, {1, 2, 5, 7, 8})
        await stream.send_all(frames(peer_wire.Cancel((4, 5))))  # 5 was answered before
        await nets.wait_until(lambda: not net._budgets.requests.used)
        await stream.send_all(batch([4, 5]))  # the ids are free again
        await nets.wait_until(lambda: net._budgets.requests.used == 1)
        await stream.aclose()


def slowly(each_s, begun):
    """Return a handler that answers after a delay, and records the requests it starts."""

    async def serve(host, get):
        begun.append(get.request_id)
        await trio.sleep(each_s)
        return chunk(get).data

    return serve


async def test_request_cancelled_in_the_queue_is_not_started():
    begun = []
    serve = slowly(0.1, begun)
    async with nets.serving(serve, limits=peer_network.PeerLimits(host_requests=1)) as (_, address):
        stream = await nets.dial(address)
        cancel = frames(peer_wire.Cancel((2, 3, 4)))
        await stream.send_all(nets.HELLO + batch([1]) + batch(range(2, 6)) + cancel + batch([6]))
        answers, _ = await receive_all(stream, 3)
        await stream.aclose()
    assert begun == [1, 5, 6] == [answer.request_id for answer in answers]


async def test_cancel_frees_capacity_for_queued_requests():
    begun = []
    serve = slowly(nets.PATIENT.serve_s, begun)
    async with nets.serving(serve, limits=peer_network.PeerLimits(host_requests=1)) as (_, address):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO + batch([1]))
        await nets.wait_until(lambda: begun == [1])
        await stream.send_all(batch([2, 3]) + frames(peer_wire.Cancel((1, 3))))
        await nets.wait_until(lambda: begun == [1, 2])
        await stream.aclose()


async def test_request_that_expires_in_the_queue_is_not_started():
    begun = []
    serve = slowly(0.3, begun)
    async with nets.serving(serve, limits=peer_network.PeerLimits(host_requests=1)) as (
        net,
        address,
    ):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO + batch(range(1, 7), timeout_ms=200))
        answers, _ = await receive_all(stream, 6)
        assert not net._budgets.requests.used
        await stream.aclose()
    assert begun == [1]
    late = peer_wire.RefuseCode.UNREACHABLE
    assert sorted(answers) == [peer_wire.Refuse(number, late) for number in range(1, 7)]


class Quiet(Here):
    """Answers nothing; records the cancelled requests."""

    def __init__(self):
        super().__init__()
        self.cancels = []

    def answer(self, one):
        return None

    def requests_cancelled(self, connection, request_ids):
        self.cancels.append(list(request_ids))


async def test_cancels_of_unknown_requests_are_not_passed_on():
    server = Quiet()
    async with nets.serving(handler=server) as (_net, address):
        stream = await nets.dial(address)
        nothing = frames(*[peer_wire.Cancel(tuple(range(100, 164)))] * 100)
        await stream.send_all(nets.HELLO + batch([1, 2]) + nothing)
        await nets.wait_until(lambda: server.groups)
        await stream.send_all(nothing + frames(peer_wire.Cancel((1, 777))))
        await nets.wait_until(lambda: server.cancels)
        await stream.aclose()
    assert server.cancels == [[1]]


async def test_server_accepts_a_request_id_reused_right_after_its_cancel():
    async with nets.serving(handler=Here()) as (_net, address):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO + batch([5]) + frames(peer_wire.Cancel((5,))) + batch([5]))
        answers, _ = await receive_all(stream, 1)
        await stream.aclose()
    assert answers == [chunk(request(5))]


@pytest.mark.expect_log("client.example .* broke the protocol")
@pytest.mark.parametrize(
    "message",
    [
        batch([*range(1, 64)])[:-36] + batch([1])[-36:],
        batch([1, 2]) + batch([3, 2]),
        batch([1, 2])[:-28] + batch([1])[-28:],
        batch([1]) + batch(range(2, 3), priority=peer_wire.Priority.PREFETCH),
    ],
    ids=["number twice in it", "number that is open", "chunk twice in it", "priority"],
)
async def test_invalid_batch_closes_its_connection(message):
    async def serve(host, get):
        await trio.sleep_forever()

    async with nets.serving(serve) as (server, address):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO)
        assert await stream.receive_some() == nets.SERVER_HELLO
        await stream.send_all(message)
        with trio.fail_after(2), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        await stream.aclose()
        await nets.wait_until(lambda: server.connection_counts[0] == 0)
        assert not server._budgets.requests.used and not server._budgets.bytes.used


async def test_largest_batch_stays_within_the_answer_bytes_of_its_host():
    """One message requests 64 chunks of 4 MiB, and its sender does not read."""
    limit = 16 << 20
    big = os.urandom(peer_wire.MAX_DATA_BYTES)

    class Big(Here):
        def answer(self, one):
            return peer_wire.Chunk(one.request_id, memoryview(big)[: one.length])

    limits = peer_network.PeerLimits(answer_bytes=2 * limit, host_answer_bytes=limit)
    async with nets.serving(handler=Big(), limits=limits) as (net, address):
        stream = await nets.dial(address)
        huge = [
            nets.REQUEST._replace(request_id=n, offset=n << 22, length=len(big))
            for n in range(COUNT)
        ]
        await stream.send_all(nets.HELLO + frames(peer_wire.Get(tuple(huge))))
        await nets.wait_until(lambda: net._budgets.bytes.used > limit / 2)
        await trio.sleep(0.1)
        assert net._budgets.bytes.used <= limit
        async with nets.asking(address, host="other.example") as client:
            assert len(await client.fetch(0, CHUNK)) == CHUNK
        got = 0  # all of it arrives once the client reads
        with trio.fail_after(20):
            while got < COUNT * len(big):
                got += len(await stream.receive_some())
        await stream.aclose()


async def test_largest_batch_stays_within_the_open_requests_of_its_host():
    async def serve(host, get):
        await trio.sleep_forever()

    limits = peer_network.PeerLimits(host_requests=10)
    async with nets.serving(serve, limits=limits) as (net, address):
        stream = await nets.dial(address)
        await stream.send_all(nets.HELLO + batch())
        await nets.wait_until(lambda: net._budgets.requests.used == 10)
        await trio.sleep(0.05)
        assert net._budgets.requests.used == 10
        await stream.aclose()


# Runs


def run(number, count, **changes):
    """Return one request for adjacent chunks."""
    one = request(number, **changes)
    return one._replace(length=count * CHUNK, chunk_bytes=CHUNK)


def chunks(asked, *left_out):
    """Return the chunks of a run, except some."""
    return [
        peer_wire.Chunk(number, DATA[offset : offset + CHUNK])
        for number, offset in zip(asked.numbers, asked.offsets, strict=True)
        if number not in left_out
    ]


async def test_chunks_of_a_run_may_be_answered_separately_in_any_order():
    received = []

    async def converse(host):
        [asked] = await host.receive_requests(1)
        for message in reversed(chunks(asked, 2)):
            await host.send(frames(message))
        await host.send(frames(peer_wire.Refuse(2, peer_wire.RefuseCode.MISSING)))

    async with client_of_peer(converse) as client:
        client.net.send_requests(nets.SERVER, client.address, [run(1, 4)], received.extend)
        await nets.wait_until(lambda: len(received) == 4)
        assert not client.net._outgoing()[0]._waiting
    assert [answer.request_id for answer in received] == [4, 3, 1, 2]
    assert received[2].data == DATA[CHUNK : 2 * CHUNK]


def whole(asked, first=0, stop=None):
    """Return an answer with the chunks of a run, or some of them, in one piece."""
    data = DATA[asked.offset : asked.offset + asked.length][first * CHUNK : stop and stop * CHUNK]
    return peer_wire.Chunk(asked.request_id + first, data, CHUNK if len(data) > CHUNK else 0)


@pytest.mark.parametrize("parts", [[(0, 5)], [(3, 5), (0, 3)], [(4, 5), (0, 4)]])
async def test_run_may_be_answered_in_parts(parts):
    """Its last chunk is shorter than the others."""
    received, asked = [], run(1, 5)._replace(length=5 * CHUNK - 7)

    async def converse(host):
        await host.receive_requests(1)
        await host.send(frames(*[whole(asked, *part) for part in parts]))

    async with client_of_peer(converse) as client:
        client.net.send_requests(nets.SERVER, client.address, [asked], received.extend)
        await nets.wait_until(lambda: sum(answer.chunk_count for answer in received) == 5)
        assert not client.net._outgoing()[0]._waiting
    answered = [chunk for part in parts for chunk in whole(asked, *part).iter_chunks()]
    assert [chunk for answer in received for chunk in answer.iter_chunks()] == answered


async def test_run_with_a_cancelled_chunk_is_delivered_chunk_by_chunk():
    received, asked, may_answer = [], run(1, 4), trio.Event()

    async def converse(host):
        await host.receive_requests(1)
        await may_answer.wait()
        await host.send(frames(whole(asked)))

    async with client_of_peer(converse) as client:
        client.net.send_requests(nets.SERVER, client.address, [asked], received.extend)
        await nets.wait_until(client.net._outgoing)
        client.net.cancel_requests(nets.SERVER, [3])
        may_answer.set()
        await nets.wait_until(lambda: len(received) == 3)
    assert received == chunks(asked, 3)
    assert {type(answer.data) for answer in received} == {bytes}  # none holds the others' memory


@pytest.mark.expect_log("bytes where .* were requested|unsolicited response")
@pytest.mark.parametrize(
    "answer",
    [
        peer_wire.Chunk(1, bytes(4 * CHUNK), 2 * CHUNK),
        peer_wire.Chunk(1, bytes(4 * CHUNK), CHUNK - 1),
        peer_wire.Chunk(1, bytes(3 * CHUNK + 1), CHUNK),
        peer_wire.Chunk(1, bytes(5 * CHUNK), CHUNK),
        peer_wire.Chunk(3, bytes(3 * CHUNK), CHUNK),
        peer_wire.Chunk(2, bytes(2 * CHUNK)),
    ],
)
async def test_run_answered_with_other_chunk_bounds_closes_the_connection(answer):
    received = []

    async def converse(host):
        await host.receive_requests(1)
        await host.send(frames(answer))
        await host.receive_more()

    async with client_of_peer(converse) as client:
        client.net.send_requests(nets.SERVER, client.address, [run(1, 4)], received.extend)
        await nets.wait_until(lambda: len(received) == 4)
    assert {type(answer.failure) for answer in received} == {errors.RemoteProtocolError}


@pytest.mark.expect_log("bytes where .* were requested")
@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK + 1, 4 * CHUNK])
async def test_run_chunk_of_a_wrong_length_closes_the_connection(length):
    received = []

    async def converse(host):
        await host.receive_requests(1)
        await host.send(frames(peer_wire.Chunk(2, bytes(length))))
        await host.receive_more()

    async with client_of_peer(converse) as client:
        client.net.send_requests(nets.SERVER, client.address, [run(1, 4)], received.extend)
        await nets.wait_until(lambda: len(received) == 4)
    assert {type(answer.failure) for answer in received} == {errors.RemoteProtocolError}
    assert sorted(answer.request_id for answer in received) == [1, 2, 3, 4]


async def test_cancel_in_an_unsent_run_is_sent_after_the_run():
    """The proof of a run covers all of its chunks.  Answers to cancelled ones are dropped."""
    reads, received, seen = trio.Event(), [], []

    async def converse(host):
        await reads.wait()
        asked = await host.receive_requests(2)
        seen.append((await host.receive_cancel()).request_ids)
        seen.extend(asked)
        await host.send(frames(*chunks(asked[0]), *chunks(asked[1])))

    async with client_of_peer(converse) as client:
        await client.net._channel_to(nets.SERVER, client.address, nets.DEMAND).is_decided.wait()
        [connection] = client.net._outgoing()
        fill(connection)
        for one in (run(1, 3), run(4, 2), run(6, 2)):
            connection.send_requests([one], received.extend)
        connection.cancel_requests([2, 4, 5])
        assert 2 not in connection._send_queue and 1 in connection._send_queue
        reads.set()
        await nets.wait_until(lambda: len(received) == 4)
        assert not connection._waiting
    assert seen == [(2,), run(1, 3), run(6, 2)]
    assert [answer.request_id for answer in received] == [1, 3, 6, 7]


async def test_cancel_in_a_run_before_connecting_is_sent_once_connected():
    received, seen = [], []

    async def converse(host):
        [asked] = await host.receive_requests(1)
        seen.append((await host.receive_cancel()).request_ids)
        await host.send(frames(*chunks(asked, 3)))

    async with client_of_peer(converse) as client:
        client.net.send_requests(nets.SERVER, client.address, [run(1, 4)], received.extend)
        client.net.cancel_requests(nets.SERVER, [3])
        await nets.wait_until(lambda: len(received) == 3)
    assert seen == [(3,)]
    assert [answer.request_id for answer in received] == [1, 2, 4]


async def test_partial_cancel_of_a_run_is_passed_on_after_the_run():
    class ChunkHost(Here):
        def __init__(self):
            super().__init__()
            self.reported = []

        def requests_received(self, connection, requests, arrived_s):
            self.reported += [[*one.numbers] for one in requests]

        def requests_cancelled(self, connection, request_ids):
            self.reported.append(tuple(request_ids))

    giver = ChunkHost()
    get = peer_wire.Get((run(1, 3), run(4, 2)))
    async with nets.serving(handler=giver) as (server, address):
        stream = await nets.dial(address)
        cancels = peer_wire.Cancel((2,)), peer_wire.Cancel((4, 5))
        await stream.send_all(nets.HELLO + frames(get, *cancels))
        await nets.wait_until(lambda: len(giver.reported) == 2)
        assert giver.reported == [[1, 2, 3], (2,)]
        [connection] = server._incoming
        assert connection._open_chunks == 2
        await stream.aclose()
