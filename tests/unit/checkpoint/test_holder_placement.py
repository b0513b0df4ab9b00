# SPDX-License-Identifier: Apache-2.0
"""Placement of checkpoint copies: other hosts and racks, stable over time."""

import uuid

import hypothesis
from hypothesis import strategies

from acstor_checkpoint.holders import holder_placement
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.ring import vnode

DISK = ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
H = [ids.HostId(f"h{number}") for number in range(9)]


def ring_of(hosts: int = 9, racks: int = 3, without: tuple[int, ...] = ()) -> hash_ring.Ring:
    return hash_ring.Ring(
        1,
        tuple(
            hash_ring.RingHost(H[n], f"10.0.0.{n + 1}:7201", 100, f"site/rack{n % racks}")
            for n in range(hosts)
            if n not in without
        ),
    )


def test_copies_are_in_other_racks_than_the_owner_and_each_other() -> None:
    for number in range(50):
        disk = ids.ImageId(str(uuid.UUID(int=number)))
        chosen = holder_placement.choose_holders(ring_of(), H[0], disk, 2)
        assert len({int(host[1:]) % 3 for host in (H[0], *chosen)}) == 3


def test_copies_share_racks_when_racks_are_few() -> None:
    chosen = holder_placement.choose_holders(ring_of(racks=2), H[0], DISK, 4)
    assert len(set(chosen)) == 4 and H[0] not in chosen
    assert int(chosen[0][1:]) % 2 == 1


def test_small_cloud_gives_as_many_holders_as_it_has() -> None:
    assert set(holder_placement.choose_holders(ring_of(3), H[0], DISK, 5)) == {H[1], H[2]}
    assert holder_placement.choose_holders(ring_of(1), H[0], DISK, 2) == ()
    assert holder_placement.choose_holders(hash_ring.Ring(0, ()), H[0], DISK, 2) == ()


def test_holders_stay_when_the_cloud_grows() -> None:
    before = holder_placement.choose_holders(ring_of(6), H[0], DISK, 2)
    assert holder_placement.choose_holders(ring_of(9), H[0], DISK, 2, before) == before
    assert holder_placement.choose_holders(ring_of(9), H[0], DISK, 1, before) == before[:1]


def test_only_missing_holders_are_replaced() -> None:
    before = holder_placement.choose_holders(ring_of(), H[0], DISK, 2)
    gone = int(before[0][1:])
    after = holder_placement.choose_holders(ring_of(without=(gone,)), H[0], DISK, 2, before)
    assert after[0] == before[1] and after[1] not in before
    refused = holder_placement.choose_holders(
        ring_of(), H[0], DISK, 2, before, lambda host: host != before[1]
    )
    assert refused[0] == before[0] and refused[1] not in before


def test_drained_host_is_no_holder() -> None:
    drained = hash_ring.named_host(H[1], "10.0.0.2:7201", frozenset[vnode.VNode]())
    others = [hash_ring.RingHost(H[n], f"10.0.0.{n + 1}:7201", 100) for n in (0, 2)]
    ring = hash_ring.Ring(1, (drained, *others))
    assert holder_placement.choose_holders(ring, H[0], DISK, 2, [H[1]]) == (H[2],)


@hypothesis.given(
    strategies.lists(strategies.sampled_from(H), max_size=6),
    strategies.integers(0, 6),
    strategies.sets(strategies.sampled_from(H)),
)
def test_holders_are_distinct_usable_and_not_the_owner(
    current: list[ids.HostId], copies: int, bad: set[ids.HostId]
) -> None:
    ring = ring_of()
    chosen = holder_placement.choose_holders(
        ring, H[0], DISK, copies, current, lambda host: host not in bad
    )
    assert len(chosen) == len(set(chosen)) == min(copies, len({*H[1:]} - bad))
    assert not {*chosen} & ({H[0]} | bad)
