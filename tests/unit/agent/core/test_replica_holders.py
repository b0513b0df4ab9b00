# SPDX-License-Identifier: Apache-2.0
"""What other hosts are told, and what of their answers counts."""

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


def leases_in(told) -> dict[str, dict[str, int]]:
    return {host: {one.image_id: one.lease_s for one in keep.leases} for host, keep in told}


def kept(share_of=X, left=0, total=100, state=KEPT, epoch=7) -> replica_messages.ReplicaReport:
    return replica_messages.ReplicaReport(
        epoch, (replica_messages.ImageShare(share_of, state, total, left),)
    )


@pytest.fixture
def keepers():
    made = replica_holders.ReplicaHolders()
    made.set_images(OTHERS, [X], now_s=0.0)
    return made


def test_hosts_are_told_at_once_then_again_and_again(keepers):
    assert leases_in(keepers.take_due(0.0)) == {H2: {X: 86400}, H3: {X: 86400}}
    assert keepers.take_due(59.0) == []
    assert leases_in(keepers.take_due(60.0)).keys() == {H2, H3}
    keepers.shares_changed(61.0)
    assert leases_in(keepers.take_due(61.0)).keys() == {H2, H3}


def test_new_image_and_new_host_are_told_at_once_and_what_ended_is_taken_back(keepers):
    keepers.take_due(0.0)
    keepers.set_images(OTHERS, [Y], now_s=1.0)
    assert leases_in(keepers.take_due(1.0)) == {host: {X: 0, Y: 86400} for host in OTHERS}
    keepers.set_images([*OTHERS, ids.HostId("h4")], [Y], now_s=2.0)
    assert leases_in(keepers.take_due(2.0)) == {"h4": {Y: 86400}}
    keepers.set_images(OTHERS, [], now_s=3.0)
    assert leases_in(keepers.take_due(3.0)) == {host: {X: 0, Y: 0} for host in OTHERS}
    assert leases_in(keepers.take_due(100.0)) == {host: {X: 0, Y: 0} for host in OTHERS}
    assert leases_in(keepers.take_due(200.0)) == {host: {Y: 0} for host in OTHERS}
    assert keepers.take_due(1000.0) == []  # nothing is used


def test_image_that_is_used_again_is_not_taken_back_any_more(keepers):
    keepers.take_due(0.0)
    keepers.set_images(OTHERS, [], now_s=1.0)
    keepers.take_due(1.0)
    keepers.set_images(OTHERS, [X], now_s=2.0)
    assert leases_in(keepers.take_due(2.0)) == {host: {X: 86400} for host in OTHERS}
    assert leases_in(keepers.take_due(100.0)) == {host: {X: 86400} for host in OTHERS}


def test_many_hosts_are_told_a_few_at_a_time_and_more_rarely():
    keepers = replica_holders.ReplicaHolders()
    hosts = [ids.HostId(f"h{number}") for number in range(1000)]
    keepers.set_images(hosts, [X], now_s=0.0)
    told = [host for _ in range(63) for host, _ in keepers.take_due(0.0)]
    assert len(told) == 1000 == len(set(told)) and keepers.every_s == 250


def test_no_more_images_are_told_than_a_host_may_ask_for():
    keepers = replica_holders.ReplicaHolders()
    keepers.set_images([H2], [image(number) for number in range(300)], now_s=0.0)
    [(_, keep)] = keepers.take_due(0.0)
    assert len(keep.leases) == 256 and keepers.take_due(1.0) == []
    keepers.set_images([H2], [image(number) for number in range(300, 500)], now_s=2.0)
    ended, begun = keepers.take_due(2.0)[0][1], keepers.take_due(2.0)[0][1]
    assert len(ended.leases) == 256 and not any(one.lease_s for one in ended.leases)
    assert len([one for one in begun.leases if one.lease_s]) == 200


def test_what_has_ended_is_told_again_though_as_many_are_used_as_a_host_may_ask_for():
    keepers, told = replica_holders.ReplicaHolders(), []
    for number in range(20):
        used = [image(one) for one in range(number, number + 256)]
        keepers.set_images([H2], used, now_s=100.0 * number)
        while due := keepers.take_due(100.0 * number):
            told += [one.image_id for _, keep in due for one in keep.leases if not one.lease_s]
            assert all(len(keep.leases) <= replica_messages.MAX_REQUESTS for _, keep in due)
    assert told.count(image(0)) == told.count(image(10)) == replica_holders.TAKEN_BACK_TIMES
    assert len(keepers._requested[H2]) <= 256 + replica_holders.TAKEN_BACK_TIMES


def test_each_host_has_its_turn_though_the_images_change_all_the_time():
    keepers, hosts = (
        replica_holders.ReplicaHolders(),
        [ids.HostId(f"h{number}") for number in range(40)],
    )
    told = set()
    for number in range(3):
        keepers.set_images(hosts, [image(number)], now_s=float(number))
        told.update(host for host, _ in keepers.take_due(float(number)))
    assert told == set(hosts)


def test_image_that_others_are_not_asked_for_is_said():
    keepers = replica_holders.ReplicaHolders()
    keepers.set_images([H2], [image(number) for number in range(257)], now_s=0.0)
    report = keepers.report_shares(image(256), [H2], 7, 1.0)
    assert report.state is replica_messages.ShareState.CROWDED
    assert report.why.startswith("more than 256 images are used here")
    assert keepers.report_shares(image(255), [H2], 7, 1.0).why == "h2 has not answered"


def test_only_new_answers_by_the_table_in_force_count(keepers):
    keepers.record_report(H2, kept(), now_s=10.0)
    keepers.record_report(H3, kept(left=40), now_s=10.0)
    assert keepers.report_shares(X, OTHERS, 7, 20.0) == (2, 1, 200, 160, KEPT, "")
    assert keepers.report_shares(X, OTHERS, 8, 20.0)[1:4] == (0, 0, 0)
    assert "another v-node table" in keepers.report_shares(X, OTHERS, 8, 20.0).why
    keepers.record_report(H3, kept(), now_s=100.0)
    late = keepers.report_shares(X, OTHERS, 7, 200.0)
    assert late.confirmed == 1 and late.why == "h2 has not answered"


def test_host_that_cannot_keep_it_is_named(keepers):
    keepers.record_report(H3, kept(state=NO_ROOM, total=0), now_s=1.0)
    report = keepers.report_shares(X, OTHERS, 7, 2.0)
    assert report.state is NO_ROOM and report.why.startswith("h3: its cache lacks room")


def test_what_was_not_asked_for_and_who_was_not_asked_is_ignored(keepers):
    keepers.record_report(H2, kept(Y), now_s=1.0)
    keepers.record_report(ids.HostId("h9"), kept(), now_s=1.0)
    assert not keepers._answers
    keepers.record_report(H2, kept(), now_s=1.0)
    keepers.set_images([H3], [X], now_s=2.0)
    keepers.set_images(OTHERS, [X], now_s=3.0)  # h2 is back, and has yet to answer
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
def test_image_is_whole_when_all_shares_are_there(keepers, answers, own_left, is_whole, left):
    for host, left_bytes in answers.items():
        keepers.record_report(host, kept(left=left_bytes), now_s=1.0)
    report = keepers.report_shares(X, OTHERS, 7, 2.0)
    cloud = replica_holders.cloud_progress(report, 2, 150, 100, own_left)
    assert (cloud.total_bytes, cloud.left_bytes, cloud.is_whole) == (300, left, is_whole)


def test_shares_that_are_less_than_the_image_are_not_the_whole(keepers):
    for host in OTHERS:
        keepers.record_report(host, kept(total=10), now_s=1.0)
    cloud = replica_holders.cloud_progress(keepers.report_shares(X, OTHERS, 7, 2.0), 2, 150, 100, 0)
    assert not cloud.is_whole and "less than the image" in cloud.why


def test_one_copy_is_said():
    alone = replica_holders.ReplicaHolders().report_shares(X, [], 7, 2.0)
    cloud = replica_holders.cloud_progress(alone, 1, 150, 150, 0)
    assert cloud.is_whole and "one copy" in cloud.why
