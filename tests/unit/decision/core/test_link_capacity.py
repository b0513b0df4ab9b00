# SPDX-License-Identifier: Apache-2.0
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_common.ring import location
from acstor_common.wire import decision_messages
from acstor_decision.core import link_capacity

PODS, RACKS, HOSTS = 3, 3, 4
LEVELS = {
    ids.HostId(f"p{pod}r{rack}h{host}"): (f"p{pod}", f"r{rack}")
    for pod in range(PODS)
    for rack in range(RACKS)
    for host in range(HOSTS)
}
LIAR = ids.HostId("p0r0h0")
Waits = Callable[[ids.HostId, ids.HostId], float]


def readers(wait: Waits, source: float | None = None) -> dict[ids.HostId, link_capacity.PeerWaits]:
    """Return the waits of each host for all the others."""
    return {
        one: link_capacity.PeerWaits(
            where, {other: wait(one, other) for other in LEVELS if other != one}, source
        )
        for one, where in LEVELS.items()
    }


def test_equal_places_have_slowness_one():
    found = link_capacity.slowness(readers(lambda one, other: 2.0), LEVELS)
    assert found == dict.fromkeys(
        {*(f"p{n}" for n in range(3)), *map("/".join, LEVELS.values())}, 1
    )


def test_slow_rack_is_detected_and_its_pod_is_not():
    slow = readers(lambda one, other: 7.0 if other.startswith("p1r2") else 1.0)
    found = link_capacity.slowness(slow, LEVELS)
    assert found.pop("p1/r2") == 7.0
    assert set(found.values()) == {1.0}


def test_slow_pod_is_detected_and_its_racks_are_not():
    slow = readers(
        lambda one, other: 7.0 if other.startswith("p1") and not one.startswith("p1") else 1.0
    )
    found = link_capacity.slowness(slow, LEVELS)
    assert found.pop("p1") == 7.0
    assert set(found.values()) == {1.0}


def test_slow_reader_makes_no_place_look_slow():
    slow = readers(lambda one, other: 50.0 if one.startswith("p0") else 1.0)
    assert set(link_capacity.slowness(slow, LEVELS).values()) == {1.0}


def test_too_few_readers_give_no_slowness():
    all_of_them = readers(lambda one, other: 7.0 if other.startswith("p1r2") else 1.0)
    for count in range(link_capacity.QUORUM):
        few = dict(list(all_of_them.items())[:count])
        assert link_capacity.slowness(few, LEVELS) == {}
    enough = dict(list(all_of_them.items())[: link_capacity.QUORUM])
    assert link_capacity.slowness(enough, LEVELS)["p1/r2"] == 7.0


def test_place_with_fewer_than_two_siblings_is_not_compared():
    levels = {ids.HostId(f"h{n}"): ("p", "r1" if n < 4 else "r2") for n in range(8)}
    found = link_capacity.slowness(
        {
            host: link_capacity.PeerWaits(where, {other: 1.0 for other in levels if other != host})
            for host, where in levels.items()
        },
        levels,
    )
    assert found == {}, "who is in one of two racks sees only the other one"


def test_hosts_outside_the_table_are_ignored():
    ghosts = readers(lambda one, other: 1.0)
    for one in ghosts.values():
        one.wait.update({ids.HostId(f"ghost{n}"): 1e-9 for n in range(50)})
    assert set(link_capacity.slowness(ghosts, LEVELS).values()) == {1.0}


ANY = st.floats(link_capacity.SHORTEST, link_capacity.LONGEST)


@settings(max_examples=25, deadline=None)
@given(st.lists(ANY, min_size=1, max_size=8), st.integers(0, 1 << 32))
def test_one_lying_host_moves_no_slowness_beyond_honest_reports(said, seed):
    rng = random.Random(seed)

    def wait(one: ids.HostId, other: ids.HostId) -> float:
        return rng.choice(said) if LIAR in (one, other) else rng.uniform(1.0, 1.5)

    for slowness in link_capacity.slowness(readers(wait), LEVELS).values():
        assert 1 / 1.5 <= slowness <= 1.5


SAMPLE = decision_messages.Sample(
    host="h1",
    address="10.0.0.1:7201",
    session=1,
    started_s=0,
    number=1,
    sent_s=0,
    interval_s=5,
    link_bytes_s=1000,
    total=decision_messages.TrafficBytes(),
)


def test_peer_waits_are_the_bounded_seconds_per_byte_of_a_sample():
    sample = msgspec.structs.replace(
        SAMPLE,
        peers={
            "fast": decision_messages.PeerTraffic(900, 5, decision_messages.TimedTraffic(800, 0.4)),
            "given-up": decision_messages.PeerTraffic(0, 0, decision_messages.TimedTraffic(0, 0.4)),
            "prefetched": decision_messages.PeerTraffic(100, 0),
            "tiny": decision_messages.PeerTraffic(
                1 << 62, 0, decision_messages.TimedTraffic(1 << 62, 5e-324)
            ),
            "huge": decision_messages.PeerTraffic(1, 0, decision_messages.TimedTraffic(1, 1e12)),
        },
        source=decision_messages.TimedTraffic(1000, 2.0),
    )
    read = link_capacity.peer_waits((), sample)
    assert read.wait == {
        "fast": pytest.approx(0.0005),
        "given-up": link_capacity.LONGEST,
        "tiny": link_capacity.SHORTEST,
        "huge": link_capacity.LONGEST,
    }
    assert read.source == pytest.approx(0.002)


def test_peer_waits_use_a_limited_number_of_peers():
    many = {
        f"h{n}": decision_messages.PeerTraffic(1, 0, decision_messages.TimedTraffic(1, 1.0))
        for n in range(999)
    }
    sample = msgspec.structs.replace(SAMPLE, peers=many)
    assert len(link_capacity.peer_waits((), sample).wait) == link_capacity.PEERS


@pytest.mark.parametrize("hosts", [0, 5, link_capacity.READERS, link_capacity.READERS + 1, 5000])
def test_all_hosts_are_selected_in_turn_a_limited_number_at_once(hosts):
    names = [ids.HostId(f"h{n}") for n in range(hosts)]
    rounds = -(-hosts // link_capacity.READERS) + 1
    turns = [link_capacity.select_hosts(names, collection) for collection in range(rounds)]
    assert {name for turn in turns for name in turn} == set(names)
    assert all(len(turn) == len(set(turn)) <= link_capacity.READERS for turn in turns)


def group(
    wait: Waits, source: float | None, rack: str = "p0r0"
) -> dict[str, link_capacity.PeerWaits]:
    return {host: one for host, one in readers(wait, source).items() if host.startswith(rack)}


def test_group_waits_are_the_waits_below_each_level():
    def wait(one: ids.HostId, other: ids.HostId) -> float:
        return (0.1, 2.0, 5.0)[location.distance(LEVELS[one], LEVELS[other])]

    found = link_capacity.group_waits(group(wait, 3.0), LEVELS, 1, [9, 2])
    assert found == {0: 3.0, 2: 2.0, 9: 5.0}
    found = link_capacity.group_waits(group(wait, None), LEVELS, 2, [9])
    assert found == {9: 5.0}


def test_one_lying_host_does_not_change_group_waits():
    def wait(one: ids.HostId, other: ids.HostId) -> float:
        return 1e-9 if one == LIAR else 1.0

    honest = group(wait, 1.0)
    honest[LIAR] = honest[LIAR]._replace(source=1e-9)
    assert link_capacity.group_waits(honest, LEVELS, 1, [9]) == {0: 1.0, 9: 1.0}


def test_group_with_too_few_reports_has_no_waits():
    few = group(lambda one, other: 1.0, None)
    for host in list(few)[1:]:
        few[host] = few[host]._replace(wait={})
    assert link_capacity.group_waits(few, LEVELS, 1, [9]) == {}
    alone = {LIAR: link_capacity.PeerWaits(LEVELS[LIAR], {ids.HostId("p1r1h1"): 1.0})}
    assert link_capacity.group_waits(alone, LEVELS, 1, [9]) == {9: 1.0}, (
        "a host that is a group by itself"
    )
