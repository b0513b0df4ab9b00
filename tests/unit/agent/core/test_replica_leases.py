# SPDX-License-Identifier: Apache-2.0
"""Expiry of leases, and limits of the lease table."""

import collections
import math
import random
import uuid

from acstor_agent.core.images import replica_leases
from acstor_common.model import ids

H2, H3 = ids.HostId("h2"), ids.HostId("h3")


def image(number: int) -> ids.ImageId:
    return ids.ImageId(str(uuid.UUID(int=number)))


def test_lease_expires_unless_renewed():
    leases = replica_leases.Leases()
    assert leases.grant_lease(H2, image(1), 100, now_s=0)
    assert leases.grant_lease(H3, image(1), 50, now_s=0)
    leases.grant_lease(H2, image(1), 100, now_s=60)
    leases.end_expired(now_s=101)
    assert leases.hosts_of(image(1)) == [H2] and leases.expires_s(image(1)) == 160
    leases.end_expired(now_s=160)
    assert image(1) not in leases and not leases.hosts_of(image(1))


def test_no_lease_is_longer_than_a_day():
    leases = replica_leases.Leases()
    leases.grant_lease(H2, image(1), 10**18, now_s=5)
    assert leases.expires_s(image(1)) == 5 + 24 * 3600


def test_leases_of_one_host_are_bounded():
    leases = replica_leases.Leases()
    reported = [leases.grant_lease(H2, image(number), 100, 0) for number in range(300)]
    assert reported.count(True) == replica_leases.MAX_IMAGES_PER_HOST == len(leases)
    assert leases.grant_lease(H3, image(299), 100, 0)  # other hosts may still ask
    assert leases.grant_lease(H2, image(0), 100, 1)  # the host may still renew its leases
    assert leases.grant_lease(H2, image(0), 0, 2) and leases.grant_lease(H2, image(298), 100, 3)


def test_leases_of_all_hosts_are_bounded():
    leases = replica_leases.Leases()
    for number in range(5 * replica_leases.MAX_IMAGES):
        leases.grant_lease(ids.HostId(f"h{number % 50}"), image(number), 100, 0)
    assert len(leases) == replica_leases.MAX_IMAGES
    leases.end_expired(now_s=100)
    assert len(leases) == 0 and leases.grant_lease(H2, image(1), 1, 100)


def test_thousand_hosts_may_lease_the_same_images():
    leases = replica_leases.Leases()
    for host in range(1000):
        for number in range(17):
            assert leases.grant_lease(ids.HostId(f"h{host}"), image(number), 100, 0)
    assert len(leases.hosts_of(image(0))) == 1000


def test_hosts_that_fill_the_lease_table_are_displaced_by_others():
    leases, bad = replica_leases.Leases(), [ids.HostId(f"bad{number}") for number in range(8)]
    for number in range(replica_leases.MAX_IMAGES):
        for host in (bad[number // 256], bad[4 + number // 256]):  # two hosts for each image
            assert leases.grant_lease(host, image(number), 1000, 0)
    honest = [ids.HostId(f"h{number}") for number in range(100)]
    for number, host in enumerate(honest):
        assert leases.grant_lease(host, image(5000 + number), 1000, 1)
    assert len(leases) == replica_leases.MAX_IMAGES
    for number in range(300):  # the displaced hosts ask again
        leases.grant_lease(bad[0], image(9000 + number), 1000, 2)
    assert all(leases.has_lease(host, image(5000 + at)) for at, host in enumerate(honest))
    leases.end_expired(now_s=2000)
    assert not leases._charges and not leases._charged_to and not leases._counts


def test_refusal_does_not_search_the_hosts_that_images_are_charged_to():
    leases = replica_leases.Leases()
    for number in range(replica_leases.MAX_IMAGES):
        assert leases.grant_lease(ids.HostId(f"h{number % 512}"), image(number), 100, 0)
    assert leases.grant_lease(ids.HostId("greedy"), image(5000), 100, 1)

    class Unsearchable(collections.Counter):
        def __iter__(self):
            raise AssertionError("searched")

    leases._charges = Unsearchable(leases._charges)
    assert not leases.grant_lease(ids.HostId("greedy"), image(5001), 100, 1)


def test_highest_charge_is_that_of_the_host_with_the_most_images():
    leases, rng = replica_leases.Leases(max_images=40), random.Random(1)
    for now_s in range(3000):
        lease_s = rng.choice((0, 0, 5, 50))
        leases.grant_lease(
            ids.HostId(f"h{rng.randrange(9)}"), image(rng.randrange(60)), lease_s, now_s
        )
        leases.end_expired(now_s)
        assert leases._highest_charge == max(leases._charges.values(), default=0)


def test_image_without_a_lease_is_leased_by_no_host():
    leases = replica_leases.Leases()
    assert not leases.has_lease(H2, image(1)) and leases.expires_s(image(1)) == -math.inf
    leases.grant_lease(H2, image(1), 1000, 2)
    assert leases.has_lease(H2, image(1)) and not leases.has_lease(H3, image(1))


def test_restored_lease_is_charged_to_the_host_that_renews_it():
    leases = replica_leases.Leases()
    for number in range(replica_leases.MAX_IMAGES):
        assert leases.grant_lease(replica_leases.FORMER_HOSTS, image(number), 1000, 0)
    assert leases.grant_lease(H2, image(replica_leases.MAX_IMAGES - 1), 1000, 1)
    for number in range(2000, 2300):
        leases.grant_lease(H3, image(number), 1000, 2)
    assert (
        leases.has_lease(H2, image(replica_leases.MAX_IMAGES - 1))
        and len(leases) == replica_leases.MAX_IMAGES
    )


def test_ended_lease_passes_its_image_to_the_host_with_the_fewest():
    leases, h4 = replica_leases.Leases(), ids.HostId("h4")
    for host, numbers in ((H2, (1, 2, 3)), (H3, (4, 1)), (h4, (1,))):
        for number in numbers:
            leases.grant_lease(host, image(number), 100, 0)
    assert leases._charges == {H2: 2, H3: 1, h4: 1}
    leases.grant_lease(H2, image(1), 0, 1)  # it is charged to another host
    assert leases._charges == {H2: 2, H3: 1, h4: 1} and leases._total == 5
    leases.grant_lease(H2, image(1), 100, 2)
    leases.grant_lease(h4, image(1), 0, 3)
    assert leases._charges == {H2: 2, H3: 2}
    assert leases.leased_images() == [image(number) for number in (1, 2, 3, 4)]


def test_image_of_the_largest_host_is_first_charged_to_another_that_leases_it():
    leases, h4, h5 = replica_leases.Leases(max_images=7), ids.HostId("h4"), ids.HostId("h5")
    for host, numbers in ((H3, (10, 11, 12)), (H2, (1, 2, 3, 4)), (H3, (4,))):
        for number in numbers:
            leases.grant_lease(host, image(number), 100, 0)
    for number in (10, 11, 12):
        leases.grant_lease(H3, image(number), 0, 1)
        leases.grant_lease(h4, image(number + 10), 100, 1)
    assert leases._charges == {H2: 4, h4: 3} and len(leases) == 7
    assert leases.grant_lease(h5, image(30), 100, 2)
    assert leases.hosts_of(image(4)) == [H2, H3] and image(3) not in leases
    assert leases._charges == {H2: 2, H3: 1, h4: 3, h5: 1}


def test_number_of_all_leases_is_bounded():
    leases = replica_leases.Leases(max_leases=3)
    for number in range(3):
        assert leases.grant_lease(H2, image(number), 100, 0)
    assert not leases.grant_lease(H3, image(0), 100, 0)
    assert leases.grant_lease(H2, image(0), 0, 1) and leases.grant_lease(H3, image(0), 100, 1)


def test_lease_can_be_revoked_only_by_its_host():
    leases = replica_leases.Leases()
    leases.grant_lease(H2, image(1), 100, 0)
    leases.grant_lease(H3, image(1), 0, 0)
    leases.grant_lease(H3, image(2), 0, 0)
    assert leases.hosts_of(image(1)) == [H2] and len(leases) == 1
