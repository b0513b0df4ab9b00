# SPDX-License-Identifier: Apache-2.0
import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.exchange import copies
from acstor_common import ids

OIDS = [ids.Oid(n) for n in range(1, 3001)]
HOSTS = [ids.HostId(f"h{n}") for n in range(2000)]


def test_holder_that_asked_longest_ago_is_told_and_the_others_are_left_alone():
    core = copies.Copies(2)
    for host in ("h1", "h2", "h1", "h3"):
        core.gave(OIDS[0], host)
    assert core.take() == [copies.Hint("h2", (OIDS[0],))]
    assert core.take() == []
    core.gave(OIDS[0], "h2")  # it came back for it: now h1 is the one
    assert core.take() == [copies.Hint("h1", (OIDS[0],))]


def test_host_that_asks_again_before_it_was_told_is_not_told():
    core = copies.Copies(1)
    core.gave(OIDS[0], "h1")
    core.gave(OIDS[0], "h2")
    core.gave(OIDS[0], "h1")
    assert core.take() == [copies.Hint("h2", (OIDS[0],))]


def test_limit_0_remembers_nothing():
    core = copies.Copies(0)
    for host in HOSTS[:50]:
        core.gave(OIDS[0], host)
    assert (len(core), core.take()) == (0, [])


def test_hints_share_messages_and_few_hosts_are_told_at_a_time():
    core = copies.Copies(1)
    for oid in OIDS[:1000]:
        core.gave(oid, "h1")
        core.gave(oid, "h2")
    told = [core.take() for _ in range(4)]
    assert [[len(hint.oids) for hint in hints] for hints in told] == [[512], [488], [], []]
    assert core.told == 1000
    for number, host in enumerate(HOSTS[:200]):
        core.gave(OIDS[2000 + number], host)
        core.gave(OIDS[2000 + number], "x")
    assert [len(core.take()) for _ in range(5)] == [64, 64, 64, 8, 0]


def test_memory_is_bounded_whoever_asks_for_whatever():
    core = copies.Copies(1)
    for number in range(20_000):
        oid = ids.Oid(number)
        core.gave(oid, HOSTS[number % 2000])
        core.gave(oid, HOSTS[(number * 7 + 1) % 2000])
    assert len(core) == copies.CHUNKS
    assert len(core._waiting) <= copies.QUEUE_HOSTS
    for number in range(3000):
        core._hint(HOSTS[0], OIDS[number])
    assert len(core._waiting[HOSTS[0]]) == copies.QUEUE_OIDS


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=60), st.integers(1, 4))
def test_those_who_asked_last_are_never_told(asked, limit):
    core, last = copies.Copies(limit), {}
    for oid_no, host_no in asked:
        core.gave(OIDS[oid_no], HOSTS[host_no])
        recent = last.setdefault(OIDS[oid_no], [])
        recent[:] = [h for h in recent if h != HOSTS[host_no]] + [HOSTS[host_no]]
    for host, oids in core.take():
        for oid in oids:
            assert host not in last[oid][-limit:]


def test_memory_for_one_chunk_is_what_the_module_says():
    core, rng = copies.Copies(16), random.Random(1)
    oids = [ids.Oid(rng.randrange(1, 1 << 64)) for _ in range(4096)]
    tracemalloc.start()
    try:
        for oid in oids:
            for host in HOSTS[:16]:
                core.gave(oid, host)
        assert tracemalloc.get_traced_memory()[0] / len(core) < 1000
        print(tracemalloc.get_traced_memory()[0] / len(core))
    finally:
        tracemalloc.stop()
