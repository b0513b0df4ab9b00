# SPDX-License-Identifier: Apache-2.0
"""Lease messages to replica holders, and evaluation of their reports."""

import uuid

import pytest

from acstor_agent.core.images import replica_holders
from acstor_common.model import ids
from acstor_common.wire.peer import replica_messages

H2, H3 = ids.HostId("h2"), ids.HostId("h3")
OTHERS = [H2, H3]
KEPT, NO_ROOM = replica_messages.ShareState.KEPT, replica_messages.ShareState.NO_ROOM


def image(number: int) -> ids.ImageId:
    return ids.ImageId(str(uuid.UUID(int=number)))


X, Y = image(1), image(2)


def leases_in(reported) -> dict[str, dict[str, int]]:
    return {host: {one.image_id: one.lease_s for one in keep.leases} for host, keep in reported}


def kept(share_of=X, left=0, total=100, state=KEPT, epoch=7) -> replica_messages.ReplicaReport:
    return replica_messages.ReplicaReport(
        epoch, (replica_messages.ImageShare(share_of, state, total, left),)
    )


@pytest.fixture
def keepers():
    made = replica_holders.ReplicaHolders()
    made.set_images(OTHERS, [X], now_s=0.0)
    return made


def test_leases_are_sent_at_once_and_renewed_periodically(keepers):
    assert leases_in(keepers.take_due(0.0)) == {H2: {X: 86400}, H3: {X: 86400}}
    assert keepers.take_due(59.0) == []
    assert leases_in(keepers.take_due(60.0)).keys() == {H2, H3}
    keepers.shares_changed(61.0)
    assert leases_in(keepers.take_due(61.0)).keys() == {H2, H3}


def test_new_image_or_host_gets_leases_at_once_and_ended_ones_are_revoked(keepers):
    keepers.take_due(0.0)
    keepers.set_images(OTHERS, [Y], now_s=1.0)
    assert leases_in(keepers.take_due(1.0)) == {host: {X: 0, Y: 86400} for host in OTHERS}
    keepers.set_images([*OTHERS, ids.HostId("h4")], [Y], now_s=2.0)
    assert leases_in(keepers.take_due(2.0)) == {"h4": {Y: 86400}}
    keepers.set_images(OTHERS, [], now_s=3.0)
    assert leases_in(keepers.take_due(3.0)) == {host: {X: 0, Y: 0} for host in OTHERS}
    assert leases_in(keepers.take_due(100.0)) == {host: {X: 0, Y: 0} for host in OTHERS}
    assert leases_in(keepers.take_due(200.0)) == {host: {Y: 0} for host in OTHERS}
    assert keepers.take_due(1000.0) == []  # no image is in use


def test_lease_of_an_image_used_again_is_no_longer_revoked(keepers):
    keepers.take_due(0.0)
    keepers.set_images(OTHERS, [], now_s=1.0)
    keepers.take_due(1.0)
    keepers.set_images(OTHERS, [X], now_s=2.0)
    assert leases_in(keepers.take_due(2.0)) == {host: {X: 86400} for host in OTHERS}
    assert leases_in(keepers.take_due(100.0)) == {host: {X: 86400} for host in OTHERS}


def test_leases_to_many_hosts_are_sent_in_batches_and_less_often():
    keepers = replica_holders.ReplicaHolders()
    hosts = [ids.HostId(f"h{number}") for number in range(1000)]
    keepers.set_images(hosts, [X], now_s=0.0)
    reported = [host for _ in range(63) for host, _ in keepers.take_due(0.0)]
    assert len(reported) == 1000 == len(set(reported)) and keepers.every_s == 250


def test_leases_for_a_host_are_bounded():
    keepers = replica_holders.ReplicaHolders()
    keepers.set_images([H2], [image(number) for number in range(300)], now_s=0.0)
    [(_, keep)] = keepers.take_due(0.0)
    assert len(keep.leases) == 256 and keepers.take_due(1.0) == []
    keepers.set_images([H2], [image(number) for number in range(300, 500)], now_s=2.0)
    ended, begun = keepers.take_due(2.0)[0][1], keepers.take_due(2.0)[0][1]
    assert len(ended.leases) == 256 and not any(one.lease_s for one in ended.leases)
    assert len([one for one in begun.leases if one.lease_s]) == 200


def test_revocations_are_repeated_while_leases_are_at_the_limit():
    keepers, reported = replica_holders.ReplicaHolders(), []
    for number in range(20):
        used = [image(one) for one in range(number, number + 256)]
        keepers.set_images([H2], used, now_s=100.0 * number)
        while due := keepers.take_due(100.0 * number):
            reported += [one.image_id for _, keep in due for one in keep.leases if not one.lease_s]
            assert all(len(keep.leases) <= replica_messages.MAX_REQUESTS for _, keep in due)
    assert reported.count(image(0)) == reported.count(image(10)) == replica_holders.TAKEN_BACK_TIMES
    assert len(keepers._requested[H2]) <= 256 + replica_holders.TAKEN_BACK_TIMES


def test_every_host_gets_its_turn_while_images_keep_changing():
    keepers, hosts = (
        replica_holders.ReplicaHolders(),
        [ids.HostId(f"h{number}") for number in range(40)],
    )
    reported = set()
    for number in range(3):
        keepers.set_images(hosts, [image(number)], now_s=float(number))
        reported.update(host for host, _ in keepers.take_due(float(number)))
    assert reported == set(hosts)


def test_image_beyond_the_lease_limit_is_reported_as_crowded():
    keepers = replica_holders.ReplicaHolders()
    keepers.set_images([H2], [image(number) for number in range(257)], now_s=0.0)
    report = keepers.report_shares(image(256), [H2], 7, 1.0)
    assert report.state is replica_messages.ShareState.CROWDED
    assert report.why.startswith("more than 256 images are used here")
    assert keepers.report_shares(image(255), [H2], 7, 1.0).why == "h2 has not answered"


def test_only_recent_reports_by_the_current_table_count(keepers):
    keepers.record_report(H2, kept(), now_s=10.0)
    keepers.record_report(H3, kept(left=40), now_s=10.0)
    assert keepers.report_shares(X, OTHERS, 7, 20.0) == (2, 1, 200, 160, KEPT, "")
    assert keepers.report_shares(X, OTHERS, 8, 20.0)[1:4] == (0, 0, 0)
    assert "another v-node table" in keepers.report_shares(X, OTHERS, 8, 20.0).why
    keepers.record_report(H3, kept(), now_s=100.0)
    late = keepers.report_shares(X, OTHERS, 7, 200.0)
    assert late.confirmed == 1 and late.why == "h2 has not answered"


def test_report_names_the_host_that_cannot_keep_its_share(keepers):
    keepers.record_report(H3, kept(state=NO_ROOM, total=0), now_s=1.0)
    report = keepers.report_shares(X, OTHERS, 7, 2.0)
    assert report.state is NO_ROOM and report.why.startswith("h3: its cache has no space")


def test_unsolicited_reports_are_ignored(keepers):
    keepers.record_report(H2, kept(Y), now_s=1.0)
    keepers.record_report(ids.HostId("h9"), kept(), now_s=1.0)
    assert not keepers._answers
    keepers.record_report(H2, kept(), now_s=1.0)
    keepers.set_images([H3], [X], now_s=2.0)
    keepers.set_images(OTHERS, [X], now_s=3.0)  # h2 is back, but has not answered yet
    assert keepers.report_shares(X, OTHERS, 7, 3.0).confirmed == 0


@pytest.mark.parametrize(
    ("answers", "own_left", "is_whole", "left"),
    [
        ({H2: 0, H3: 0}, 0, True, 0),
        ({H2: 0, H3: 1}, 0, False, 1),
        ({H2: 0, H3: 0}, 5, False, 5),
        ({H2: 0}, 0, False, 100),
        ({H2: 0, H3: 0}, None, False, None),
    ],
)
def test_image_is_fully_cached_when_all_shares_are_present(
    keepers, answers, own_left, is_whole, left
):
    for host, left_bytes in answers.items():
        keepers.record_report(host, kept(left=left_bytes), now_s=1.0)
    report = keepers.report_shares(X, OTHERS, 7, 2.0)
    cloud = replica_holders.cloud_progress(report, 2, 150, 100, own_left)
    assert (cloud.total_bytes, cloud.left_bytes, cloud.is_whole) == (300, left, is_whole)


def test_shares_smaller_than_the_image_do_not_count_as_fully_cached(keepers):
    for host in OTHERS:
        keepers.record_report(host, kept(total=10), now_s=1.0)
    cloud = replica_holders.cloud_progress(keepers.report_shares(X, OTHERS, 7, 2.0), 2, 150, 100, 0)
    assert not cloud.is_whole and "do not cover the image" in cloud.why


def test_single_copy_is_reported():
    alone = replica_holders.ReplicaHolders().report_shares(X, [], 7, 2.0)
    cloud = replica_holders.cloud_progress(alone, 1, 150, 150, 0)
    assert cloud.is_whole and "one copy" in cloud.why
