# SPDX-License-Identifier: Apache-2.0
"""Work for a peer ends when the peer cancels, disconnects or times out."""

import pytest
import trio
import trio.testing

from acstor_agent.engine import actions
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_wire
from tests.fakes import exchange_cloud

CHUNK, IMAGE, OTHER = exchange_cloud.CHUNK, exchange_cloud.IMAGE, exchange_cloud.OTHER
NOWHERE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13")
HERE, PEER = "h1", "h2"
ROUNDS = 50


@pytest.fixture
async def cloud(tmp_path):
    async with exchange_cloud.running(tmp_path, (HERE, PEER)) as made:
        yield made


class Hung:
    """Work that never completes.

    :ivar in_flight: calls that run now; ``asked``: arguments of all calls
    """

    def __init__(self):
        self.in_flight, self.asked = 0, []

    async def __call__(self, *what):
        self.asked.append(what)
        self.in_flight += 1
        try:
            await trio.sleep_forever()
        finally:
            self.in_flight -= 1


def requests(numbers, image_id=IMAGE, timeout_ms=60_000, priority=peer_wire.Priority.PEER):
    return [
        peer_wire.ChunkRequest(
            *(number, image_id, number % 40 * CHUNK, CHUNK),
            proof=peer_wire.proof_of(
                ids.cid_of(exchange_cloud.bytes_of(number % 40)), ids.HostId(PEER), ids.HostId(HERE)
            ),
            mode=peer_wire.Mode.HELD,
            priority=priority,
            timeout_ms=timeout_ms,
        )
        for number in numbers
    ]


class Peer:
    """A peer that sends requests to ``h1`` on one connection at a time."""

    def __init__(self, cloud):
        self._cloud, self.host = cloud, cloud.hosts[HERE]
        self.giving = self.host.peer_server
        self.answers = []
        self.connect()

    def connect(self):
        self.connection = exchange_cloud.Connection(self._cloud, ids.HostId(PEER), HERE)

    async def ask(self, some):
        for one in some:
            self.connection.handlers[one.request_id] = self.answers.extend
        self.giving.requests_received(self.connection, some, trio.current_time())
        await trio.testing.wait_all_tasks_blocked()

    async def cancel(self, some):
        self.giving.requests_cancelled(self.connection, [one.request_id for one in some])
        await trio.testing.wait_all_tasks_blocked()

    async def leave(self):
        self.connection.is_closed = True
        self.giving.connection_ended(self.connection)
        await trio.testing.wait_all_tasks_blocked()
        self.connect()


class Looked:
    """A connection that records each poll of its delivery.

    :ivar looks: times of the polls; ``is_there``: their result; None: they raise
    """

    is_drained = is_there = True

    def __init__(self, connection):
        self._connection, self.looks = connection, []

    def __getattr__(self, name):
        return getattr(self._connection, name)

    @property
    def is_delivered(self):
        self.looks.append(trio.current_time())
        if self.is_there is None:
            raise OSError("a fault")
        return self.is_there


async def until(condition):
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110  (several tasks bring it about)
            await trio.sleep(0.001)


def hung_disk(cloud):
    """Give a host cached chunks whose disk reads hang."""
    cache, disk = cloud.caches[HERE], Hung()
    for number in range(40):
        data = exchange_cloud.bytes_of(number)
        cache.store_chunk(ids.cid_of(data), data)
        cloud.names[HERE].record_names([cloud.ref_of(number)])
    cache.read_chunks_nowait = lambda cids: [None] * len(cids)
    cache.read_chunk = disk
    return disk


async def test_disk_reads_end_when_a_peer_cancels_its_requests(cloud):
    disk, peer = hung_disk(cloud), Peer(cloud)
    for begin in range(0, 8 * ROUNDS, 8):
        some = requests(range(begin, begin + 8))
        await peer.ask(some)
        await peer.cancel(some)
        assert disk.in_flight == 0
    assert len(disk.asked) > 2 * ROUNDS
    await peer.ask(requests(range(8)))
    await until(lambda: disk.in_flight > 0)


async def test_disk_reads_end_with_the_connection_of_the_peer(cloud):
    disk, peer = hung_disk(cloud), Peer(cloud)
    for _ in range(ROUNDS):
        await peer.ask(requests(range(8)))
        await peer.leave()
        assert disk.in_flight == 0
    assert len(disk.asked) > 2 * ROUNDS


@pytest.mark.parametrize("end", ["cancel", "leave"])
async def test_delivery_is_not_polled_while_responses_wait_for_the_disk(cloud, autojump_clock, end):
    disk, peer, some = hung_disk(cloud), Peer(cloud), requests(range(4))
    connection = peer.connection = Looked(peer.connection)
    await peer.ask(some)
    peer.host.carry_out(actions.WatchDelivery([connection]))
    await trio.sleep(10)
    assert disk.in_flight and not connection.looks
    await (peer.cancel(some) if end == "cancel" else peer.leave())
    await trio.sleep(1)
    assert (len(connection.looks), disk.in_flight) == (int(end == "cancel"), 0)


async def test_delivery_poll_starts_after_the_send_queue_drains_and_backs_off(
    cloud, autojump_clock
):
    peer = Peer(cloud)
    connection, giving = Looked(peer.connection), peer.giving
    connection.is_drained = connection.is_there = False
    peer.host.carry_out(actions.WatchDelivery([connection]))
    await trio.sleep(10)
    assert not connection.looks
    began_s = trio.current_time()
    connection.is_drained = True
    giving.answers_drained(connection)
    await trio.sleep(0.1)
    times = [round(1000 * (at_s - began_s)) for at_s in connection.looks]
    assert times[:6] == [1, 3, 7, 15, 23, 31]
    connection.is_there = True
    await trio.sleep(0.1)
    giving.answers_drained(connection)  # it is not watched any more
    reported = len(connection.looks)
    await trio.sleep(1)
    assert len(connection.looks) == reported <= len(times) + 1


async def test_delivery_poll_stops_when_the_connection_ends(cloud, autojump_clock):
    peer = Peer(cloud)
    connection = Looked(peer.connection)
    connection.is_there = False
    peer.host.carry_out(actions.WatchDelivery([connection]))
    await trio.sleep(0.1)
    peer.giving.connection_ended(connection)
    reported = len(connection.looks)
    await trio.sleep(1)
    assert len(connection.looks) == reported > 0


@pytest.mark.parametrize(
    ("place", "is_far", "is_delivered"),
    [("p2", True, True), ("p2", False, False), ("p1", True, False)],
)
async def test_bytes_to_far_peer_of_another_group_count_as_delivered_once_sent(
    cloud, autojump_clock, place, is_far, is_delivered
):
    peer = Peer(cloud)
    core = peer.host.core
    hosts = tuple(
        hash_ring.RingHost(h.host, h.address, h.vnodes, place if h.host == PEER else "p1")
        for h in core.context.ring.table.hosts
    )
    core.table_changed(trio.current_time(), hash_ring.Ring(2, hosts, threshold=1), None)
    connection = Looked(peer.connection)
    connection.is_there, connection.is_far = False, is_far
    peer.host.carry_out(actions.WatchDelivery([connection]))
    await trio.sleep(1)
    assert (len(connection.looks) == 1) == is_delivered


@pytest.mark.parametrize(("wired", "klass"), [("PEER", "PEER"), ("PREFETCH", "PREFETCH")])
async def test_disk_read_for_a_peer_runs_in_the_stream_of_class_and_peer(cloud, wired, klass):
    disk, peer, streams = hung_disk(cloud), Peer(cloud), []

    async def read_chunk(cid):
        streams.append(str(disk_io._stream.get()))
        await disk(cid)

    cloud.caches[HERE].read_chunk = read_chunk
    await peer.ask(requests([3], priority=peer_wire.Priority[wired]))
    assert streams == [f"{klass.lower()}:{PEER}"]


@pytest.mark.expect_log("a check of answers to a peer")
async def test_exception_in_delivery_poll_releases_the_upload_slot(cloud):
    peer = Peer(cloud)
    cloud.caches[HERE].store_chunk(
        ids.cid_of(exchange_cloud.bytes_of(0)), exchange_cloud.bytes_of(0)
    )
    cloud.names[HERE].record_names([cloud.ref_of(0)])
    peer.connection = Looked(peer.connection)
    peer.connection.is_there = None
    await peer.ask(requests([0]))
    await until(lambda: len(peer.answers) == 1)
    assert peer.answers[0].data == exchange_cloud.bytes_of(0)
    await until(lambda: cloud.hosts[HERE].core.context.uploads.used == 0)


# Images that are not attached


async def test_map_lookups_end_when_a_peer_cancels_its_requests(cloud):
    cloud.unattached, cloud.learn, peer = {IMAGE, OTHER}, Hung(), Peer(cloud)
    for begin in range(0, 8 * ROUNDS, 8):
        some = [*requests(range(begin, begin + 4)), *requests(range(begin + 4, begin + 8), OTHER)]
        await peer.ask(some)
        assert 0 < cloud.learn.in_flight <= 8
        await peer.cancel(some)
    assert cloud.learn.in_flight == 0


async def test_map_lookups_end_with_the_connection_of_the_peer(cloud):
    cloud.unattached, cloud.learn, peer = {IMAGE}, Hung(), Peer(cloud)
    for _ in range(ROUNDS):
        await peer.ask(requests(range(8)))
        await peer.leave()
    assert cloud.learn.in_flight == 0


async def test_map_lookups_end_when_their_requests_expire(cloud, autojump_clock):
    cloud.unattached, cloud.learn, peer = {IMAGE}, Hung(), Peer(cloud)
    await peer.ask(requests(range(8), timeout_ms=100))
    await trio.sleep(5)
    assert {answer.code for answer in peer.answers} == {peer_wire.RefuseCode.UNREACHABLE}
    assert (len(peer.answers), cloud.learn.in_flight) == (8, 0)


async def test_hanging_map_lookup_does_not_delay_other_images(cloud):
    cloud.unattached, cloud.learn, peer = {IMAGE, NOWHERE}, Hung(), Peer(cloud)
    hung = cloud.learn

    async def learn(host, image_id, offset, length):
        if image_id == NOWHERE:
            return await hung(host)
        await trio.lowlevel.checkpoint()
        return cloud.contents[image_id, offset]

    cloud.learn = learn
    await peer.ask([*requests(range(100, 104), NOWHERE), *requests(range(4))])
    await until(lambda: len(peer.answers) == 4)
    assert sorted(answer.request_id for answer in peer.answers) == [0, 1, 2, 3]
    assert hung.in_flight == 1


async def test_reused_request_id_gets_the_answer_to_its_new_request(cloud):
    cloud.unattached, peer, may = {IMAGE}, Peer(cloud), trio.Event()

    async def learn(host, image_id, offset, length):
        await may.wait()
        return cloud.contents[image_id, offset]

    cloud.learn, seen = learn, []
    looked_up = cloud.hosts[HERE].core.contents_looked_up

    def note(now, connection, found):
        seen.extend(found)
        return looked_up(now, connection, found)

    cloud.hosts[HERE].core.contents_looked_up = note
    first, second = requests([7]), [requests([8])[0]._replace(request_id=7)]
    await peer.ask(first)
    await peer.cancel(first)
    await peer.ask(second)
    may.set()
    await trio.testing.wait_all_tasks_blocked()
    found = [(request.offset, contents) for request, contents in seen]
    assert found == [(8 * CHUNK, [cloud.contents[IMAGE, 8 * CHUNK]])]


@pytest.mark.expect_log("a look-up of chunks")
@pytest.mark.expect_log("refused, no chunk has")
async def test_exception_in_map_lookup_fails_only_that_request(cloud):
    cloud.unattached, peer = {IMAGE}, Peer(cloud)

    async def learn(host, image_id, offset, length):
        await trio.lowlevel.checkpoint()
        if offset:
            raise errors.ChunkMissing("an image", "memory")
        raise ZeroDivisionError

    cloud.learn = learn
    await peer.ask(requests([0, 1]))
    await trio.testing.wait_all_tasks_blocked()
    codes = {answer.request_id: answer.code for answer in peer.answers}
    assert codes == {0: peer_wire.RefuseCode.UNREACHABLE, 1: peer_wire.RefuseCode.MISSING}
