# SPDX-License-Identifier: Apache-2.0
"""Chunks that several images contain: failures of one image do not affect the others."""

import collections

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.wire.peer import peer_request
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk
from tests.fakes.one_machine import data_of

F = failure.Failure
P = priority.Priority
HERS, MINE = one_machine.OTHER, one_machine.IMAGE
THIRD = ids.ImageId("00000000-0000-4000-8000-000000000001")
KEY = ids.ScopeKey(bytes(32))


def gives_mine(host, attempt):
    """Answer MISSING to requests under another image's name."""
    return b"right" if attempt.first_ref.image_id == MINE else F.MISSING


def test_peer_that_refuses_one_image_is_asked_under_the_next_one():
    machine = one_machine.Machine()
    number = machine.chunk_of("h2")
    todo = machine.request_chunks([chunk(number, HERS)], P.GUEST, "her guest")
    machine.last = todo + machine.request_chunks([chunk(number, MINE)], P.GUEST, "my guest")
    done = machine.play(0.0, gives_mine, lambda _: F.UNREACHABLE)
    assert done["my guest"].chunks == [b"right"]


def test_image_name_is_dropped_with_its_last_reader():
    machine = one_machine.Machine()
    number = machine.chunk_of("h2")
    machine.request_chunks([chunk(number, HERS)], P.GUEST, "her guest")
    machine.request_chunks([chunk(number, MINE)], P.GUEST, "my guest")
    machine.cancel_reads("her guest")
    (transfer,) = machine.core.context.transfers.values()
    assert [name[0].image_id for name in transfer.names] == [MINE]


def test_other_home_is_asked_under_each_image_before_the_source():
    machine = one_machine.Machine()
    number = machine.move_home("h2", "h1", vnodes=300)
    machine.ask_me("h3", machine.request(number, "h3", image_id=HERS))
    asked = [machine.attempt()]
    machine.ask_me("h4", machine.request(number, "h4", image_id=MINE))
    machine.peer_refused(ids.HostId("h2"), [(asked[0].number, F.MISSING)])
    asked.append(machine.attempt())
    assert [attempt.first_ref.image_id for attempt in asked] == [HERS, MINE]
    assert {attempt.mode for attempt in asked} == {peer_request.Mode.RELAYED}
    machine.chunks_arrived(ids.HostId("h2"), [(asked[1].number, b"right")])
    assert [answer.data for answer in machine.answers()] == [b"right"] * 2


def test_chunks_with_other_keys_or_lengths_are_separate_transfers():
    machine = one_machine.Machine()
    number = machine.chunk_of("h2")
    plain = chunk(number)
    batch = [plain, plain._replace(keys=(KEY,)), plain._replace(length=512)]
    for token, wanted in enumerate(batch):
        machine.request_chunks([wanted], P.GUEST, token)
        assert machine.attempt().first_ref == wanted
        assert machine.core.requested_chunk("h2", machine.attempt().number) == wanted
    assert len(machine.core) == 3


def test_chunk_is_lost_only_for_the_image_that_was_denied_long_enough():
    """An attacker's images do not make another image's chunk count as lost."""
    machine = one_machine.Machine(hosts=24, lost_after_s=900.0)
    tables = machine.core.context.ring
    numbers = (n for n in range(4000) if "h1" not in tables.owners_of(chunk(n).oid, 8))
    victim, other = next(numbers), next(numbers)
    asked = collections.Counter()

    def peer(host, attempt):
        asked[attempt.first_ref.image_id] += 1
        has_it = attempt.first_ref.image_id == MINE and host not in tables.owners_of(
            attempt.first_ref.oid, 8
        )
        return b"right" if has_it else F.MISSING

    machine.request_chunks([chunk(other, THIRD)], P.GUEST, "denied for long")
    assert "denied for long" not in machine.play(899.0, peer, lambda _: F.MISSING, 1.0)
    todo = list(machine.last)
    for image in (HERS, MINE, THIRD):
        todo += machine.request_chunks([chunk(victim, image)], P.GUEST, image)
    machine.last = todo
    done = machine.play(30.0, peer, lambda _: F.MISSING)
    assert done["denied for long"].failure is F.LOST
    assert done[MINE].chunks == [b"right"] and asked[MINE]
    assert HERS not in done or done[HERS].failure is None


def test_lost_chunk_fails_only_reads_of_its_image():
    machine = one_machine.Machine(hosts=2)
    number = machine.chunk_of("h1")
    machine.request_chunks([chunk(number, HERS)], P.GUEST, "hers")

    def source(wanted):
        return F.MISSING if wanted.image_id == HERS else F.UNREACHABLE

    todo = list(machine.last)
    machine.last = todo + machine.request_chunks([chunk(number, MINE)], P.GUEST, "mine")
    done = machine.play(5.0, lambda *_: F.MISSING, source)
    assert done["hers"].failure is F.LOST and "mine" not in done
    done = machine.play(5.0, lambda *_: F.MISSING, lambda wanted: b"right")
    assert done["mine"].chunks == [b"right"]


def test_batch_with_a_lost_chunk_twice_completes_once():
    machine = one_machine.Machine(hosts=2)
    number = machine.chunk_of("h1")
    for token in range(5):
        machine.core.request_chunks(0.0, [chunk(number)], P.GUEST, token)
    todo = machine.request_chunks([chunk(number), chunk(number)], P.GUEST, "twice")
    machine.cancel_reads(3)
    machine.last = [actions.ReadSource(1, one_machine.IMAGE, P.GUEST, "", [chunk(number)]), *todo]
    done = machine.play(1.0, lambda *_: F.MISSING, lambda _: F.MISSING)
    assert {token: answer.failure for token, answer in done.items()} == dict.fromkeys(
        (0, 1, 2, 4, "twice"), F.LOST
    )
    assert not len(machine.core)


def test_hanging_read_of_one_image_does_not_affect_another():
    machine = one_machine.Machine(hosts=2)
    number = machine.chunk_of("h1")
    machine.request_chunks([chunk(number, HERS)], P.GUEST, "hers")
    (hanging,) = machine.got(actions.ReadSource)
    machine.wait(6.0)  # the read is late; another owner is asked
    asked = machine.attempt()
    machine.chunks_arrived(asked.host, [(asked.number, data_of(number))])
    assert machine.completes() and machine.got(actions.CancelSourceRead)
    machine.chunks_stored(machine.got(actions.Store)[0].runs)
    machine.chunks_evicted([chunk(number).cid])
    machine.request_chunks([chunk(number, MINE)], P.GUEST, "mine")
    (read,) = machine.got(actions.ReadSource)
    assert read.image_id == MINE
    assert not machine.source_read_progressed(hanging.number, [(0, F.MISSING)])
    assert not machine.source_ended(hanging.number, F.MISSING)
    machine.source_read_progressed(read.number, [(0, b"right")])
    assert machine.completes()[0].chunks == [b"right"]


def test_guest_does_not_wait_for_the_broadcast_lookup_of_another_image():
    machine = one_machine.Machine(hosts=4, lost_after_s=900.0)
    numbers = [n for n in range(400) if machine.home_of(n) == "h1"]
    machine.request_chunks([chunk(n, HERS) for n in numbers], P.GUEST, "hers")
    hosts = set()

    def peer(host, attempt):
        hosts.add(host)
        return F.MISSING

    machine.play(0.0, peer, lambda _: F.MISSING)
    waiting = [
        t for t in machine.core.context.transfers.values() if t.lookup and not t.lookup.asked
    ]
    assert len(waiting) > 20 and hosts == {"h2", "h3", "h4"}
    machine.request_chunks([waiting[-1].first_ref._replace(image_id=MINE)], P.GUEST, "mine")
    assert [read.image_id for read in machine.got(actions.ReadSource)] == [HERS]
    done = machine.play(0.1, peer, lambda ref: b"right" if ref.image_id == MINE else F.MISSING)
    assert done["mine"].chunks == [b"right"]


def test_broadcast_lookups_take_turns_among_images():
    machine = one_machine.Machine(hosts=40, lost_after_s=900.0)
    numbers = [n for n in range(9000) if machine.home_of(n) == "h1"]
    machine.request_chunks([chunk(n, HERS) for n in numbers[:80]], P.GUEST, "hers")
    machine.play(0.0, lambda *_: F.MISSING, lambda _: F.MISSING)
    machine.request_chunks([chunk(numbers[80], MINE)], P.GUEST, "mine")
    asked = collections.Counter()

    def peer(host, attempt):
        asked[attempt.first_ref.image_id] += 1
        return F.MISSING

    machine.play(1.0, peer, lambda _: F.MISSING)
    assert asked[MINE] and asked[HERS]
