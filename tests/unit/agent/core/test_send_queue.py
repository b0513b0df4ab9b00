# SPDX-License-Identifier: Apache-2.0
import itertools

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core import send_queue
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced

READAHEAD, PREFETCH = peer_wire.Priority.READAHEAD, peer_wire.Priority.PREFETCH
MODE = peer_wire.Mode.HELD_ONLY


def request(number, priority=PREFETCH):
    image_id = ids.ImageId("00000000-0000-4000-8000-000000000001")
    return peer_wire.ChunkRequest(
        number, image_id, number << 16, 65536, bytes(16), MODE, priority, 9
    )


def named(news):
    return tuple([name for name, _ in news.chunks])


def taken(outgoing):
    """Return all turns: the numbers of requests, or the chunks of an announcement."""
    turns = iter(outgoing.pop_next, None)
    return [
        [one.request_id for one in turn] if isinstance(turn, list) else named(turn)
        for turn in turns
    ]


def test_urgent_requests_go_first_then_announcements_then_prefetches():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([request(1), request(2)])
    outgoing.queue_announcement(peer_wire.Advertise(announced.alone(7)))
    outgoing.queue_requests([request(3, READAHEAD)])
    assert taken(outgoing) == [[3], (7,), [1, 2]]
    assert not outgoing and outgoing.pop_next() is None


def test_announcements_are_sent_in_order():
    outgoing = send_queue.SendQueue()
    for news in (
        peer_wire.Advertise(announced.alone(7)),
        peer_wire.Gone(announced.alone(7)),
        peer_wire.Advertise(announced.alone(8)),
    ):
        outgoing.queue_announcement(news)
    assert [type(outgoing.pop_next()) for _ in range(3)] == [
        peer_wire.Advertise,
        peer_wire.Gone,
        peer_wire.Advertise,
    ]


def test_request_with_raised_priority_goes_with_urgent_requests():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([request(1), request(2)])
    outgoing.queue_announcement(peer_wire.Advertise(announced.alone(7)))
    outgoing.raise_priority(2)
    outgoing.raise_priority(99)
    assert taken(outgoing) == [[2], (7,), [1]]


def test_dropped_request_is_not_sent():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([request(1), request(2, READAHEAD)])
    assert 1 in outgoing and 2 in outgoing
    assert outgoing.drop_chunk(1) and outgoing.drop_chunk(2) and not outgoing.drop_chunk(1)
    assert 1 not in outgoing and not outgoing


def test_turn_takes_as_many_requests_as_a_message_holds():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests(map(request, range(peer_wire.MAX_BATCH + 1)))
    assert [len(numbers) for numbers in taken(outgoing)] == [peer_wire.MAX_BATCH, 1]


def test_announcements_do_not_starve_prefetches():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([request(1)])
    turns = []
    for number in itertools.count():
        outgoing.queue_announcement(peer_wire.Advertise(announced.alone(number)))
        turns.append(outgoing.pop_next())
        if isinstance(turns[-1], list):
            break
    assert len(turns) == send_queue.LOWER_EVERY


def test_urgent_requests_starve_neither_announcements_nor_prefetches():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([request(1)])
    outgoing.queue_announcement(peer_wire.Advertise(announced.alone(7)))
    turns = []
    for number in range(2, 2 + 2 * send_queue.LOWER_EVERY):
        outgoing.queue_requests([request(number, READAHEAD)])
        turns.append(outgoing.pop_next())
    lower = [
        turn for turn in turns if not (isinstance(turn, list) and turn[0].priority is READAHEAD)
    ]
    assert lower == [peer_wire.Advertise(announced.alone(7)), [request(1)]]


@given(st.lists(st.sampled_from("wnlthd"), max_size=120))
def test_every_queued_item_is_sent_once(steps):
    outgoing, numbers, left, dropped = send_queue.SendQueue(), itertools.count(), [], set()
    put = []
    for step in steps:
        if step in "wl":
            put.append(next(numbers))
            outgoing.queue_requests([request(put[-1], READAHEAD if step == "w" else PREFETCH)])
        elif step == "n":
            put.append(next(numbers))
            outgoing.queue_announcement(peer_wire.Advertise(announced.alone(put[-1])))
        elif step == "h" and put:
            outgoing.raise_priority(put[-1])
        elif step == "d" and put and outgoing.drop_chunk(put[-1]):
            dropped.add(put[-1])
        elif step == "t" and (turn := outgoing.pop_next()) is not None:
            left += [r.request_id for r in turn] if isinstance(turn, list) else named(turn)
    left += itertools.chain.from_iterable(taken(outgoing))
    assert sorted(left) == [number for number in put if number not in dropped]


def run(number, count, priority=PREFETCH):
    one = request(number, priority)
    return one._replace(length=65536 * count, chunk_bytes=65536)


def test_run_is_sent_whole_while_one_of_its_chunks_is_wanted():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([run(1, 3)])
    assert not outgoing.drop_chunk(1) and not outgoing.drop_chunk(3)
    assert 1 not in outgoing and 2 in outgoing
    [[left]] = [outgoing.pop_next()]
    assert left == run(1, 3) and 2 not in outgoing and not outgoing


def test_run_without_wanted_chunks_is_not_sent():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([run(1, 3), run(4, 2, READAHEAD)])
    assert [outgoing.drop_chunk(number) for number in (1, 2, 3, 3, 9)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert taken(outgoing) == [[4]]


def test_turn_takes_as_many_chunks_as_a_message_may_name():
    outgoing = send_queue.SendQueue()
    outgoing.queue_requests([run(1 + 40 * n, 40) for n in range(3)])
    outgoing.raise_priority(50)
    assert taken(outgoing) == [[41], [1], [81]]
