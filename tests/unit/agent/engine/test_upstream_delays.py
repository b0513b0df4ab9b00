# SPDX-License-Identifier: Apache-2.0
"""Choice between outer homes and the source by their measured delays."""

import itertools

import pytest

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_agent.engine.fetch import upstream_delays
from acstor_agent.engine.ring import placement
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from tests.fakes import one_machine
from tests.fakes.one_machine import chunk

Failure = failure.Failure
HERE, FAR, OTHER = ("central",), ("edge",), ("third",)
RACK, SECOND_RACK, FAR_RACK = ("edge", "r1"), ("edge", "r2"), ("central", "r9")
WINDOW_S, ROUND_TRIP_S = upstream_delays.WINDOW_S, upstream_delays.ROUND_TRIP_S
MANY = 128


def known(relay_s, source_s, answers=upstream_delays.MIN_ANSWERS, slower_s=0.0):
    """Return delays after so many answers at 10 s, of which the last is the fastest."""
    delays = upstream_delays.UpstreamDelays()
    delays.record_relay(FAR, 1.0 - relay_s, 1.0)
    for n in range(answers):
        more_s = slower_s if n < answers - 1 else 0.0
        delays.record_relay(FAR, 10.0 - relay_s - more_s, 10.0)
        delays.record_source(10.0 - source_s - more_s, 10.0)
    return delays


def record(delays, group, relay_s):
    """Record answers of another group."""
    delays.record_relay(group, 1.0, 1.0)
    for _ in range(upstream_delays.MIN_ANSWERS):
        delays.record_relay(group, 10.0 - relay_s, 10.0)


def asked(delays, count, group=FAR, now=10.0, own_group=HERE):
    """Return how many of ``count`` requests go to the group."""
    return sum(delays.may_ask(group, one_machine.IMAGE, 1, now, own_group) for _ in range(count))


def test_group_behind_a_wan_is_not_asked_if_the_source_is_near():
    delays = known(0.02, 0.001)
    assert asked(delays, MANY) == 0
    assert delays.skipped == MANY


@pytest.mark.parametrize(
    ("relay_s", "source_s"),
    [
        (0.11, 0.1),  # the source is behind the same WAN
        (0.1, 0.2),
        (0.005, 0.001),  # another rack
        (0.03, 0.02),
    ],
)
def test_group_that_is_hardly_farther_than_the_source_is_asked(relay_s, source_s):
    delays = known(relay_s, source_s)
    assert asked(delays, MANY) == MANY
    assert delays.skipped == 0


def test_slow_responses_under_load_do_not_make_a_group_far():
    assert asked(known(0.003, 0.001, slower_s=5.0), MANY) == MANY
    assert asked(known(0.1, 0.001, slower_s=5.0), MANY) == 0


def test_group_is_far_only_after_enough_recent_responses():
    assert asked(known(0.1, 0.001, upstream_delays.MIN_ANSWERS - 1), MANY) == MANY
    delays = known(0.1, 0.001)
    assert asked(delays, MANY, now=10.0 + 0.9 * WINDOW_S) == 0
    assert asked(delays, MANY, now=10.0 + 2 * WINDOW_S) == MANY


def test_responses_to_requests_before_the_first_response_do_not_count():
    delays = known(0.002, 0.001, answers=0)
    for _ in range(2 * upstream_delays.MIN_ANSWERS):
        delays.record_relay(FAR, 0.5, 10.0)  # while the connection was made
        delays.record_source(9.999, 10.0)
    assert asked(delays, MANY) == MANY


def test_far_group_does_not_make_another_group_far():
    assert asked(known(0.1, 0.001), MANY, OTHER) == MANY


def test_fast_rack_of_the_same_site_makes_only_other_sites_far():
    """The source is behind the WAN, too."""
    delays = known(0.1, 0.1)
    record(delays, FAR_RACK, 0.1)
    assert asked(delays, MANY, FAR_RACK, own_group=RACK) == MANY
    record(delays, SECOND_RACK, 0.002)
    assert asked(delays, MANY, FAR_RACK, own_group=RACK) == 0
    assert asked(delays, MANY, SECOND_RACK, own_group=RACK) == MANY
    assert asked(delays, MANY, ("edge", "r3"), own_group=RACK) == MANY


def test_round_trips_alone_show_that_another_site_is_farther_than_a_rack_of_this_one():
    delays = known(0.1, 0.1, answers=1)  # the source is behind the WAN, too
    delays.record_round_trip(FAR_RACK, 0.1, 10.0)
    assert asked(delays, MANY, FAR_RACK, own_group=RACK) == MANY
    delays.record_round_trip(SECOND_RACK, 0.0002, 10.0)
    assert asked(delays, MANY, FAR_RACK, own_group=RACK) == 0
    assert asked(delays, MANY, SECOND_RACK, own_group=RACK) == MANY


def test_slow_answers_do_not_make_a_group_with_a_short_round_trip_far():
    """Its host reads a slow source first; the rack of this site was only dialled."""
    delays = known(0.03, 0.03, answers=1)
    record(delays, FAR_RACK, 0.03)
    delays.record_round_trip(FAR_RACK, 0.001, 10.0)
    delays.record_round_trip(SECOND_RACK, 0.0002, 10.0)
    assert asked(delays, MANY, FAR_RACK, own_group=RACK) == MANY


def test_quick_group_at_the_same_level_makes_no_other_far():
    delays = known(0.1, 0.1)
    record(delays, OTHER, 0.002)
    assert asked(delays, MANY) == MANY


@pytest.mark.parametrize("round_trip_s", [0.0, 0.1])
def test_group_that_became_near_is_detected(round_trip_s):
    delays, now = known(0.1, 0.001), 10.0
    delays.record_round_trip(FAR, round_trip_s, now)
    while now < 10.0 + 3 * WINDOW_S + (ROUND_TRIP_S if round_trip_s else 0.0):
        now += 0.1
        delays.record_source(now - 0.001, now)
        if asked(delays, 1, now=now):
            delays.record_relay(FAR, now - 0.002, now)
    delays.record_round_trip(FAR, 0.1, now)  # says nothing beside answers
    assert asked(delays, MANY, now=now) == MANY


@pytest.mark.parametrize(
    ("round_trip_s", "source_s", "is_far"),
    [(0.1, 0.001, True), (0.1, 0.06, False), (0.005, 0.001, False), (0.0, 0.001, False)],
)
def test_round_trip_alone_shows_that_a_group_is_far(round_trip_s, source_s, is_far):
    delays = upstream_delays.UpstreamDelays()
    delays.record_round_trip(FAR, round_trip_s, 1.0)
    assert asked(delays, MANY) == MANY  # the source may be farther
    delays.record_source(10.0 - source_s, 10.0)
    assert asked(delays, MANY) == (0 if is_far else MANY)
    delays.record_source(2 * ROUND_TRIP_S - source_s, 2 * ROUND_TRIP_S)
    assert asked(delays, MANY, now=2 * ROUND_TRIP_S) == MANY


def test_one_slow_host_does_not_make_its_group_far():
    delays = known(0.1, 0.001, answers=1)
    for round_trip_s in (0.1, 0.002, 0.1, 0.0):
        delays.record_round_trip(FAR, round_trip_s, 10.0)
    assert asked(delays, MANY) == MANY
    delays.record_round_trip(FAR, 0.1, 10.0 + ROUND_TRIP_S)  # the fast one is too long ago
    delays.record_source(9.999 + ROUND_TRIP_S, 10.0 + ROUND_TRIP_S)
    assert asked(delays, MANY, now=10.0 + ROUND_TRIP_S) == 0


def test_answers_count_rather_than_the_round_trip():
    delays = known(0.002, 0.001)
    delays.record_round_trip(FAR, 0.1, 1.0)  # a queue, for a moment
    assert asked(delays, MANY) == MANY


# In the engine


def sites(source_access=lambda: placement.SourceAccess.IN_PARTS, **settings):
    """Return the machine of a host at one of two sites, each a group, in one outer group."""
    hosts = tuple(
        hash_ring.RingHost(f"h{n}", f"10.0.0.{n}:7201", 40, "central" if n < 3 else "edge")
        for n in range(1, 5)
    )
    table = hash_ring.Ring(1, hosts, threshold=1, outer_threshold=9)
    return one_machine.Machine(table=table, source_access=lambda *_: source_access(), **settings)


RACKS = ["central/r1", "central/r2", "edge/r1", "edge/r2"]


def table_of_racks():
    """Return the v-node table of two sites with two racks each, h1 to h4."""
    hosts = tuple(
        hash_ring.RingHost(f"h{n}", f"10.0.0.{n}:7201", 40, place)
        for n, place in enumerate(RACKS, 1)
    )
    return hash_ring.Ring(1, hosts, threshold=1, outer_threshold=9)


def test_racks_with_a_remote_source_ask_the_home_of_their_site():
    racks, table = RACKS, table_of_racks()
    ways = set()
    for here in ("h3", "h4"):
        machine = one_machine.Machine(here=here, table=table)
        delays, ring = machine.core.context.upstream_delays, machine.core.context.ring
        for place, delay_s in zip(racks, (0.1, 0.1, 0.002, 0.002), strict=True):
            record(delays, tuple(place.split("/")), delay_s)
        machine.now = 10.0
        for n in range(MANY // 2):
            machine.request_chunks([chunk(n)], priority.Priority.GUEST, f"{n}")
            site_home = table.ring_within(ids.HostId(here), ids.HostId("h1")).home_at(chunk(n).oid)
            assert machine.asks() == (
                {} if site_home == here else {site_home: [(n, peer_request.Mode.RELAYED)]}
            )
            ways.add((site_home == here, len(ring.upstreams_of(chunk(n).oid, None, False))))
    assert ways == {(True, 0), (True, 1), (False, 1)}


def own_chunks(machine, has_outer):
    """Yield numbers of chunks whose home is here, and whose outer home is or is not elsewhere."""
    ring = machine.core.context.ring
    for n in range(99_999):
        position = chunk(n).ring_position
        if ring.is_home(position) and bool(ring.upstreams_of(position, None, False)) == has_outer:
            yield n


def read(machine, numbers, source_s, relay_s):
    """Let a guest read chunks one by one; return how many came by a relay."""
    relays = 0
    for n in numbers:
        machine.request_chunks([chunk(n)], priority.Priority.GUEST, f"{n}")
        reads, asks = machine.got(actions.ReadSource), machine.asks()
        machine.now += source_s if reads else relay_s
        if reads:
            machine.source_read_progressed(reads[0].number, [(0, one_machine.data_of(n))])
        else:
            relays += 1
            [(host, [(_, mode)])] = asks.items()
            assert mode is peer_request.Mode.RELAYED
            number = machine.attempt().number
            machine.chunks_arrived(ids.HostId(host), [(number, one_machine.data_of(n))])
    return relays


def read_both(machine, count, source_s, relay_s):
    """Read so many chunks of each kind in turn; return how many came by a relay."""
    kinds = [own_chunks(machine, has_outer) for has_outer in (False, True)]
    return sum(
        read(machine, [next(kind)], source_s, relay_s) for _ in range(count) for kind in kinds
    )


def test_home_reads_a_near_source_rather_than_ask_over_the_wan():
    machine = sites()
    assert read_both(machine, 40, 0.001, 0.1) == 1 + upstream_delays.MIN_ANSWERS
    assert machine.core.counters.source_preferred == 40 - 1 - upstream_delays.MIN_ANSWERS


def wait_for_relays(machine, count=3):
    """Let a guest wait for so many chunks that one host relays; return their numbers, and it."""
    upstreams_of = machine.core.context.ring.upstreams_of
    found = [
        (n, upstreams_of(chunk(n).ring_position, None, False)[0])
        for n in itertools.islice(own_chunks(machine, has_outer=True), 8 * count)
    ]
    host = found[0][1]
    numbers = [n for n, by in found if by == host][:count]
    assert len(numbers) == count
    for n in numbers:
        machine.request_chunks([chunk(n)], priority.Priority.GUEST, f"{n}")
        assert list(machine.asks()) == [host] and not machine.got(actions.ReadSource)
    return numbers, host


def read_source(machine):
    """Let a guest read a chunk from the source in 1 ms."""
    assert not read(machine, [next(own_chunks(machine, has_outer=False))], 0.001, 0.0)


def test_home_reads_what_a_host_over_the_wan_was_to_relay_once_it_is_dialled():
    machine = sites()
    read_source(machine)
    numbers, far = wait_for_relays(machine)
    machine.peer_dialled(far, 0.1)
    reads = machine.got(actions.ReadSource)
    assert [ref for read in reads for ref in read.refs] == [chunk(n) for n in numbers]
    [cancelled] = machine.got(actions.CancelRequests)
    assert (cancelled.host, len(cancelled.numbers)) == (far, len(numbers))
    for read_number, n in zip([read.number for read in reads], numbers, strict=True):
        machine.source_read_progressed(read_number, [(0, one_machine.data_of(n))])
        assert [done.token for done in machine.got(actions.CompleteRead)] == [f"{n}"]


def test_home_of_the_site_relays_what_a_host_over_the_wan_was_to_once_it_is_dialled():
    table = table_of_racks()
    machine = one_machine.Machine(here="h3", table=table)
    here, far = ids.HostId("h3"), ids.HostId("h1")
    upstreams_of = machine.core.context.ring.upstreams_of
    of_far = (n for n in range(9999) if upstreams_of(chunk(n).ring_position, None, False) == [far])
    homes = {}
    while len(set(homes.values())) < 2:  # this rack's host, and the other's
        n = next(of_far)
        machine.request_chunks([chunk(n)], priority.Priority.GUEST, f"{n}")
        homes[n] = table.ring_within(here, far).home_at(chunk(n).oid)
        assert list(machine.asks()) == [far]
    machine.peer_dialled(ids.HostId("h4"), 0.0002)
    assert not machine.last
    machine.peer_dialled(far, 0.1)
    relays = [(n, peer_request.Mode.RELAYED) for n, home in homes.items() if home == "h4"]
    assert machine.asks() == {"h4": relays}
    read_here = [ref for read in machine.got(actions.ReadSource) for ref in read.refs]
    assert read_here == [chunk(n) for n, home in homes.items() if home == here]


@pytest.mark.parametrize("failure", [Failure.UNREACHABLE, Failure.BUSY, Failure.INVALID])
def test_host_over_the_wan_relays_if_the_source_fails(failure):
    machine = sites()
    read_source(machine)
    [n], far = wait_for_relays(machine, 1)
    machine.peer_dialled(far, 0.1)
    [read] = machine.got(actions.ReadSource)
    machine.source_ended(read.number, failure)
    while machine.asks() != {far: [(n, peer_request.Mode.RELAYED)]}:
        assert machine.now < 5.0
        if machine.asks():  # other owners, which only give what they have
            refused = machine.attempt()
            machine.peer_refused(refused.host, [(refused.number, Failure.MISSING)])
        else:
            machine.wait(0.1)


def test_failing_source_does_not_count_for_its_image():
    delays = known(0.02, 0.001)
    delays.record_source_failure(one_machine.IMAGE, 10.0)
    assert asked(delays, MANY) == MANY
    assert not delays.may_ask(FAR, one_machine.OTHER, 1, 10.0, HERE)
    record(delays, FAR_RACK, 0.002)  # here, it has a rack of this site
    assert not asked(delays, MANY)
    fresh = known(0.02, 0.001)
    fresh.record_source_failure(one_machine.IMAGE, 10.0 - WINDOW_S)
    assert not asked(fresh, MANY)


@pytest.mark.parametrize("round_trip_s", [0.0, 0.003])
def test_home_waits_for_a_near_relay(round_trip_s):
    machine = sites()
    read_source(machine)
    _, near = wait_for_relays(machine)
    machine.peer_dialled(near, round_trip_s)
    assert not machine.last


def test_home_waits_for_a_far_host_that_reads_the_whole_image_for_all():
    access = placement.SourceAccess
    kinds = [access.IN_PARTS]
    machine = sites(lambda: kinds[0])
    read_source(machine)
    kinds[0] = access.WHOLE
    _, far = wait_for_relays(machine)
    machine.peer_dialled(far, 0.1)
    assert not machine.last


def test_home_with_an_equally_far_source_asks_over_the_wan():
    assert read_both(sites(), 40, 0.1, 0.11) == 40


def test_home_asks_over_the_wan_if_source_first_is_disabled():
    assert read_both(sites(may_ask_source_first=False), 40, 0.001, 0.1) == 40
