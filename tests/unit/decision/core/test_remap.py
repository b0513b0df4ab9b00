# SPDX-License-Identifier: Apache-2.0
import itertools

from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import ids
from acstor_common.ring import vnode
from acstor_decision.core import remap

HOSTS = [ids.HostId(f"h{n}") for n in range(6)]
COUNTS = st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 30), min_size=1)


def alike(one: ids.HostId, other: ids.HostId) -> float:
    """Return a similarity that falls with the difference of the hosts' numbers."""
    return 1 / (1 + abs(int(one[1:]) - int(other[1:])))


def own(**counts: int) -> remap.Owners:
    return {ids.HostId(host): vnode.first_vnodes(ids.HostId(host), n) for host, n in counts.items()}


def run(start: remap.Owners, *steps: dict[ids.HostId, int]) -> remap.Owners:
    for wanted in steps:
        start = remap.remap_vnodes(start, wanted, alike)
    return start


def numbers(owners: remap.Owners) -> dict[ids.HostId, int]:
    return {host: len(names) for host, names in owners.items()}


def test_v_nodes_move_to_the_most_similar_host():
    after = run(own(h1=10, h2=10, h5=10), dict(zip(("h1", "h2", "h5"), (4, 14, 12), strict=True)))
    assert len({name for name in after["h2"] if name.made_for == "h1"}) == 4
    assert len({name for name in after["h5"] if name.made_for == "h1"}) == 2


def test_v_nodes_return_to_their_first_owner_before_others_move():
    there = run(own(h1=10, h2=10), {"h1": 5, "h2": 15})
    back = run(there, {"h1": 10, "h2": 10})
    assert back == own(h1=10, h2=10)


def test_adopted_v_nodes_move_on_first_and_are_removed_last():
    there = run(own(h1=10, h2=10), {"h1": 5, "h2": 15})
    moved = run(there, {"h1": 5, "h2": 12, "h5": 3})
    assert {name.made_for for name in moved["h5"]} == {"h1"}
    removed = run(there, {"h1": 5, "h2": 12})
    assert len({name for name in removed["h2"] if name.made_for == "h1"}) == 5


def test_of_equally_similar_hosts_the_one_that_needs_most_comes_first():
    owners = {**own(h3=10), **own(h2=8, h4=6)}
    after = run(owners, {"h3": 6, "h2": 10, "h4": 12})
    assert [len({n for n in after[h] if n.made_for == "h3"}) for h in ("h2", "h4")] == [0, 4]


def test_most_similar_host_comes_first_though_another_needs_more():
    after = run(own(h1=10, h2=10, h5=10), {"h1": 8, "h2": 12, "h5": 30})
    assert len({name for name in after["h2"] if name.made_for == "h1"}) == 2


def test_leaving_host_moves_no_v_nodes_of_others():
    before = own(h1=10, h2=10, h3=10)
    after = run(before, {"h1": 10, "h2": 10})
    assert after == own(h1=10, h2=10)
    assert run(after, {"h1": 10, "h2": 10, "h3": 10}) == before


def test_returning_host_gets_no_v_node_owned_by_another():
    given_away = run(own(h1=10, h2=10), {"h1": 4, "h2": 16})
    without = run(given_away, {"h2": 16})
    back = run(without, {"h1": 10, "h2": 16})
    assert numbers(back) == {"h1": 10, "h2": 16}
    assert not back["h1"] & back["h2"]


@given(COUNTS, st.lists(COUNTS, min_size=1, max_size=4))
def test_only_necessary_v_nodes_move(start, steps):
    before = {host: vnode.first_vnodes(host, count) for host, count in start.items()}
    for wanted in steps:
        after = run(before, wanted)
        assert numbers(after) == wanted
        everything = list(itertools.chain(*after.values()))
        assert len(everything) == len(set(everything)), "a v-node has two owners"
        for host in wanted.keys() & before.keys():
            kept = len(before[host] & after[host])
            assert kept == min(len(before[host]), wanted[host])
        assert run(after, wanted) == after
        before = after


@given(COUNTS, COUNTS)
def test_remap_does_not_depend_on_the_order_of_hosts(start, wanted):
    before = {host: vnode.first_vnodes(host, count) for host, count in start.items()}
    backwards = dict(reversed(before.items()))
    assert run(before, wanted) == run(backwards, dict(reversed(wanted.items())))


def test_moves_are_counted_once_each():
    before = own(h1=10, h2=10)
    assert remap.count_moved(before, before) == 0
    assert remap.count_moved(before, run(before, {"h1": 7, "h2": 13})) == 3
    assert remap.count_moved(before, own(h1=10)) == 10
    assert remap.count_moved(own(h1=10), before) == 10
