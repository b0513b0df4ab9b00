# SPDX-License-Identifier: Apache-2.0
import itertools
import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import gossip
from acstor_common import ids

HOSTS = [ids.HostId(f"h{n}") for n in range(9)]
DELAY_S = gossip.Limits().delay_s


def sent(core: gossip.Gossip, now: float = 1e6) -> dict[str, list[int]]:
    told: dict[str, list[int]] = {}
    for host, prefixes in core.take_batches(now):
        told.setdefault(host, []).extend(prefixes)
    return told


# What others have


def test_holders_are_asked_by_fewest_requests_pending():
    core = gossip.Gossip()
    for host in ("h1", "h2", "h3"):
        assert core.advertised(host, [5, 6], 0.0) == [5, 6]
    assert core.holders(5) == ["h1", "h2", "h3"]
    for host in ("h1", "h1", "h2"):
        core.asked(host)
    assert core.holders(5) == ["h3", "h2", "h1"]
    core.answered("h1")
    core.answered("h1")
    assert core.holders(6) == ["h1", "h3", "h2"]


def test_answer_to_nothing_does_no_harm():
    core = gossip.Gossip()
    core.advertised("h1", [5], 0.0)
    core.advertised("h2", [5], 0.0)
    core.answered("h2")
    core.asked("h2")
    assert core.holders(5) == ["h1", "h2"]


def test_host_that_denied_a_chunk_is_not_asked_for_it_again():
    core = gossip.Gossip()
    for host in ("h1", "h2"):
        core.advertised(host, [5, 6], 0.0)
    core.denied("h1", 5, 0.0)
    assert core.holders(5) == ["h2"] and core.holders(6) == ["h1", "h2"]
    core.denied("h2", 5, 0.0)
    assert core.holders(5) == [] and core.known() == [6]
    core.denied("h3", 6, 0.0)
    assert core.statistics.denied == 2


def test_lost_host_is_forgotten_with_all_that_it_told_until_it_tells_again():
    core = gossip.Gossip()
    core.advertised("h1", range(100), 0.0)
    core.advertised("h2", range(50), 0.0)
    core.lost("h1")
    assert core.holders(7) == ["h2"] and core.holders(70) == []
    core.advertised("h1", [70], 1.0)
    assert core.holders(70) == ["h1"] and core.holders(71) == []


def test_a_chunk_has_few_holders_the_last_that_told():
    core = gossip.Gossip(limits=gossip.Limits(holders=3))
    for host in HOSTS[:5]:
        core.advertised(host, [5], 0.0)
    core.advertised("h3", [5], 0.0)
    assert core.holders(5) == ["h2", "h4", "h3"]


def test_table_forgets_the_chunk_that_was_of_no_use_for_longest():
    core = gossip.Gossip(limits=gossip.Limits(table_prefixes=3))
    core.advertised("h1", [1, 2, 3], 0.0)
    core.holders(1)
    core.advertised("h2", [2], 0.0)
    core.advertised("h1", [4], 0.0)
    assert core.known() == [1, 2, 4] and len(core) == 3


def test_flood_is_not_listened_to_and_the_allowance_grows_again():
    limits = gossip.Limits(prefixes_per_s=10, burst_prefixes=20)
    core = gossip.Gossip(limits=limits)
    assert core.advertised("h1", range(15), 0.0) == list(range(15))
    assert core.advertised("h1", range(100, 115), 0.0) == [100, 101, 102, 103, 104]
    assert core.advertised("h2", range(5), 0.0) == list(range(5))
    assert core.advertised("h1", range(200, 215), 0.5) == [200, 201, 202, 203, 204]
    assert len(core.advertised("h1", range(300, 400), 1000.0)) == 20
    assert core.statistics.ignored == 10 + 10 + 80 and core.statistics.heard == 50


def test_clock_that_jumps_back_gives_no_allowance():
    core = gossip.Gossip(limits=gossip.Limits(prefixes_per_s=10, burst_prefixes=20))
    core.advertised("h1", range(20), 1000.0)
    assert core.advertised("h1", range(20, 40), 0.0) == []
    assert core.advertised("h1", range(40, 60), 1000.0) == []


def test_host_that_advertises_what_it_has_not_is_soon_not_listened_to():
    core = gossip.Gossip(limits=gossip.Limits(prefixes_per_s=1, burst_prefixes=100))
    chunks, asked_in_vain = itertools.count(), 0
    for _ in range(1000):
        for prefix in core.advertised("h1", [next(chunks)], 0.0):
            core.denied("h1", prefix, 0.0)
            asked_in_vain += 1
    assert asked_in_vain <= 100 / gossip.DENIAL_COST + 1
    assert core.advertised("h1", [next(chunks)], 120.0)  # but not forever


def test_hosts_that_appear_and_vanish_are_forgotten_in_the_end():
    core = gossip.Gossip(limits=gossip.Limits(peers=10))
    for n in range(100):
        core.advertised(f"x{n}", [n], 0.0)
    assert [n for n in range(100) if core.holders(n)] == list(range(90, 100))
    assert len(core._listening) == len(core._number_of) == len(core._host_of) == 10


# What this host has


def test_all_neighbours_are_told_except_who_gave_it_or_has_it():
    core = gossip.Gossip(["h1", "h2", "h3"])
    core.advertised("h3", [5], 0.0)
    core.have(5, 0.0, from_host="h1")
    core.have(6, 0.0)
    assert sent(core) == {"h1": [6], "h2": [5, 6], "h3": [6]}


def test_neighbour_that_tells_of_a_chunk_first_is_not_told():
    core = gossip.Gossip(["h1", "h2"])
    core.have(5, 0.0)
    core.advertised("h1", [5], 0.0)
    assert sent(core) == {"h2": [5]}


def test_nothing_is_told_twice_unless_it_was_gone():
    core = gossip.Gossip(["h1"])
    core.have(5, 0.0)
    core.have(5, 0.0)
    assert sent(core) == {"h1": [5]}
    core.have(5, 0.0)
    assert sent(core) == {}
    core.gone(5, 0.0)
    assert core.take_gone(1e6) == [("h1", (5,))]
    core.have(5, 0.0)
    assert sent(core) == {"h1": [5]}


def test_chunk_that_is_back_before_anybody_heard_that_it_was_gone_is_not_spoken_of():
    core = gossip.Gossip(["h1"])
    core.have(5, 0.0)
    assert sent(core) == {"h1": [5]}
    core.gone(5, 0.0)
    core.have(5, 0.0)
    assert core.next_timeout() is None
    assert (core.take_gone(1e6), sent(core)) == ([], {})


def test_only_those_who_were_told_of_a_chunk_hear_that_it_is_gone():
    core = gossip.Gossip(["giver", "holder", "first", "told", "new"], gossip.Limits(delay_s=0.0))
    core.set_neighbours(["giver", "holder", "first", "told"], 0.0)
    core.advertised("holder", [5], 0.0)
    core.have(5, 0.0, from_host="giver")
    core.advertised("first", [5], 0.0)  # before it was told
    assert sent(core) == {"told": [5]}
    core.set_neighbours(["giver", "holder", "first", "told", "new"], 0.0)
    assert sent(core) == {"new": [5]}
    core.gone(5, 0.0)
    assert core.take_gone(1e6) == [("told", (5,)), ("new", (5,))]


def test_what_was_pushed_out_of_a_queue_is_not_taken_back():
    core = gossip.Gossip(["h1"], gossip.Limits(queue_prefixes=2))
    for prefix in range(3):
        core.have(prefix, 0.0)
    assert sent(core) == {"h1": [1, 2]}
    for prefix in range(3):
        core.gone(prefix, 0.0)
    assert core.take_gone(1e6) == [("h1", (1, 2))]


def test_chunks_that_are_gone_share_frames_and_those_never_told_are_not_mentioned():
    core = gossip.Gossip(["h1", "h2"])
    for prefix in range(600):
        core.have(prefix, 0.0)
    sent(core)
    for prefix in range(100, 700):
        core.gone(prefix, 5.0)
    assert core.next_timeout() == 5.0 + DELAY_S and core.take_gone(5.0) == []
    told = core.take_gone(5.0 + DELAY_S)
    assert {host: sum(len(b) for h, b in told if h == host) for host in ("h1", "h2")} == {
        "h1": 500,
        "h2": 500,
    }
    assert core.statistics.taken_back == 1000


def test_host_that_took_a_chunk_back_is_not_asked_for_it_and_costs_nobody_a_denial():
    core = gossip.Gossip()
    for host in ("h1", "h2"):
        core.advertised(host, [5, 6], 0.0)
    core.taken_back("h1", [5, 7], 0.0)
    assert core.holders(5) == ["h2"] and core.holders(6) == ["h1", "h2"]
    core.taken_back("h2", [5], 0.0)
    assert core.holders(5) == [] and 5 not in core.known()
    assert core.statistics.denied == 0


def test_flood_of_chunks_that_are_gone_is_not_listened_to():
    limits = gossip.Limits(prefixes_per_s=10.0, burst_prefixes=20.0)
    core = gossip.Gossip((), limits)
    core.advertised("h1", list(range(1, 11)), 0.0)
    core.taken_back("h1", [99] * 10 + list(range(1, 11)), 0.0)
    assert len(core.known()) == 10
    assert core.statistics.ignored == 10
    core.taken_back("h1", list(range(1, 11)), 1.0)
    assert core.known() == []


def test_strangers_cannot_take_back_what_others_told():
    core = gossip.Gossip()
    core.advertised("h1", [5], 0.0)
    core.taken_back("h2", [5], 0.0)
    assert core.holders(5) == ["h1"]


def test_clock_that_jumps_ahead_by_years_or_back_does_no_harm():
    core = gossip.Gossip(["h1"])
    for now in (0.0, 1e9, 5.0, -1e9, 2e9):
        assert core.advertised("h2", [1, 2, 3], now) == [1, 2, 3]
        core.have(7, now)
        core.gone(7, now)
        core.denied("h2", 1, now)
        core.take_batches(now)
        core.take_gone(now)
    assert core.holders(2) == ["h2"]
    due = core.next_timeout()
    assert due is None or due <= 2e9 + DELAY_S


def test_chunk_that_is_gone_before_it_was_told_is_not_told():
    core = gossip.Gossip(["h1"])
    core.have(5, 0.0)
    core.have(6, 0.0)
    core.gone(5, 0.0)
    assert sent(core) == {"h1": [6]}
    assert core.take_gone(1e6) == []


def test_advertisements_share_a_frame_for_a_short_while():
    core = gossip.Gossip(["h1"])
    assert core.next_timeout() is None
    core.have(5, 10.0)
    core.have(6, 10.0 + DELAY_S / 2)
    assert core.next_timeout() == 10.0 + DELAY_S
    assert core.take_batches(10.0 + DELAY_S / 2) == []
    assert core.take_batches(core.next_timeout()) == [("h1", (5, 6))]
    assert core.next_timeout() is None


def test_full_frame_does_not_wait():
    core = gossip.Gossip(["h1"])
    for prefix in range(gossip.BATCH_PREFIXES):
        assert core.take_batches(10.0) == []
        core.have(prefix, 10.0)
    assert core.next_timeout() == 10.0
    assert core.take_batches(10.0) == [("h1", tuple(range(512)))]


def test_frames_have_512_prefixes_at_most():
    core = gossip.Gossip(["h1"])
    for prefix in range(1100):
        core.have(prefix, 0.0)
    assert [len(prefixes) for _, prefixes in core.take_batches(0.0)] == [512, 512, 76]
    assert core.statistics.sent == 1100


def test_full_queue_drops_the_oldest_and_counts_it():
    core = gossip.Gossip(["h1", "h2"], gossip.Limits(queue_prefixes=4))
    for prefix in range(6):
        core.have(prefix, 0.0)
    assert sent(core) == {"h1": [2, 3, 4, 5], "h2": [2, 3, 4, 5]}
    assert core.statistics.dropped == 4


def test_new_neighbour_is_told_what_is_here_and_an_old_one_nothing_twice():
    core = gossip.Gossip(["h1", "h2"], gossip.Limits(queue_prefixes=3))
    for prefix in range(5):
        core.have(prefix, 0.0)
    assert sent(core)
    core.have(9, 1.0)
    core.set_neighbours(["h2", "h3"], 1.0)
    assert sent(core) == {"h2": [9], "h3": [3, 4, 9]}


def test_nothing_waits_for_a_neighbour_that_is_lost():
    core = gossip.Gossip(["h1", "h2"])
    core.have(5, 0.0)
    core.lost("h1")
    assert sent(core) == {"h2": [5]}
    core.have(6, 0.0)
    assert sent(core) == {"h1": [6], "h2": [6]}


def test_memory_for_told_chunks_is_bounded():
    core = gossip.Gossip(["h1"], gossip.Limits(told_prefixes=3))
    for prefix in range(5):
        core.have(prefix, 0.0)
    assert sent(core) == {"h1": [0, 1, 2, 3, 4]}
    core.have(4, 0.0)
    core.have(0, 0.0)
    assert sent(core) == {"h1": [0]}


steps = st.one_of(
    st.tuples(st.just("told"), st.sampled_from(HOSTS), st.lists(st.integers(0, 20), max_size=9)),
    st.tuples(st.just("have"), st.sampled_from([None, *HOSTS]), st.integers(0, 20)),
    st.tuples(
        st.sampled_from(["denied", "asked", "back", "gone"]),
        st.sampled_from(HOSTS),
        st.integers(0, 20),
    ),
    st.tuples(st.sampled_from(["lost", "send"]), st.sampled_from(HOSTS), st.just(0)),
)


def take_off(core, what, host, prefix, now):
    if what == "denied":
        core.denied(host, prefix, now)
    else:
        core.taken_back(host, [prefix], now)


@given(st.lists(steps, max_size=80))
def test_whatever_happens_bounds_hold_and_hosts_are_asked_only_for_what_they_told(happenings):
    limits = gossip.Limits(table_prefixes=7, holders=2, queue_prefixes=3, told_prefixes=5)
    core, told, now = gossip.Gossip(HOSTS[:4], limits), set(), 0.0
    for what, host, value in happenings:
        now += 0.01
        if what == "told":
            told |= {(host, prefix) for prefix in core.advertised(host, value, now)}
        elif what == "have":
            core.have(value, now, host)
        elif what in ("denied", "back"):
            take_off(core, what, host, value, now)
            told.discard((host, value))
        elif what == "gone":
            core.gone(value, now)
        elif what == "asked":
            core.asked(host)
        elif what == "lost":
            core.lost(host)
            told = {(h, prefix) for h, prefix in told if h != host}
        else:
            for to, prefixes in [*core.take_batches(now), *core.take_gone(now)]:
                assert 1 <= len(prefixes) <= 3 and to in HOSTS[:4]
        assert len(core) <= 7
        for prefix in core.known():
            holders = core.holders(prefix)
            assert len(set(holders)) == len(holders) <= 2
            assert {(h, prefix) for h in holders} <= told


def test_memory_for_one_chunk_is_what_the_module_says():
    rng = random.Random(1)
    core = gossip.Gossip()
    tracemalloc.start()
    try:
        for batch in range(8):
            prefixes = [rng.getrandbits(64) for _ in range(512)]
            for host in rng.sample(HOSTS, rng.randrange(1, 5)):
                core.advertised(host, prefixes, 10.0 * batch)
        assert tracemalloc.get_traced_memory()[0] / len(core) < 250
    finally:
        tracemalloc.stop()
