# SPDX-License-Identifier: Apache-2.0
"""Limits and order of samples that wait for a round."""

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_decision.core.membership import replay_filter
from acstor_decision.core.membership import sample_inbox
from tests.unit.decision.core import test_members

SILENT_S = 30.0


def certificate(host: str) -> certificates.HostCertificate:
    key = signing.read_key(signing.new_key()).public_key()
    return certificates.HostCertificate(ids.HostId(host), 0, 1, key, b"")


H1, H2 = certificate("h1"), certificate("h2")
OTHER_KEY = certificate("h1")


class Inbox(sample_inbox.SampleInbox):
    """An inbox that receives samples when they were sent."""

    def __init__(self, **limits: int) -> None:
        super().__init__(SILENT_S, **limits)

    def receive(self, number, sender=H1, now_s=None) -> replay_filter.Refusal | None:
        sample = test_members.sample(sender.host, number)
        now_s = number * test_members.COLLECTION_S if now_s is None else now_s
        received = sample_inbox.Received(now_s, sender, sample)
        return self.add_sample(received, test_members.WALL_S + now_s)

    def numbers(self, now_s=0.0) -> list[tuple[str, int]]:
        return [(one.certificate.host, one.sample.number) for one in self.drain_samples(now_s)]


def test_samples_are_drained_once_in_the_order_of_receipt():
    inbox = Inbox()
    for number, sender in ((1, H2), (2, H1), (3, H2), (4, H1)):
        assert inbox.receive(number, sender) is None
    assert len(inbox) == 4
    assert inbox.numbers() == [("h2", 1), ("h1", 2), ("h2", 3), ("h1", 4)]
    assert len(inbox) == 0 and inbox.numbers() == []


def test_replayed_sample_is_refused_counted_and_takes_no_room():
    inbox = Inbox()
    inbox.receive(1)
    inbox.receive(2)
    refusals = [inbox.receive(2), inbox.receive(2), inbox.receive(1)]
    expected = [replay_filter.Refusal.DOUBLED] * 2 + [replay_filter.Refusal.OUT_OF_ORDER]
    assert refusals == expected
    assert inbox.refused == {expected[0]: 2, expected[2]: 1}
    assert (len(inbox), inbox.dropped) == (2, 0)
    assert inbox.numbers() == [("h1", 1), ("h1", 2)]


def test_sample_that_was_drained_is_still_refused_until_it_is_too_old():
    inbox = Inbox()
    inbox.receive(1)
    inbox.drain_samples(5.0)
    assert inbox.receive(1, now_s=5.0) is replay_filter.Refusal.DOUBLED
    longest_s = SILENT_S + 2 * replay_filter.CLOCK_SLACK_S
    inbox.drain_samples(5.0 + longest_s)
    assert inbox.receive(1, now_s=5.0) is replay_filter.Refusal.DOUBLED
    inbox.drain_samples(5.1 + longest_s)
    assert inbox.receive(1, now_s=5.0) is None  # forgotten
    assert inbox.receive(1, now_s=5.1 + longest_s) is replay_filter.Refusal.LATE


def test_identity_keeps_its_newest_samples_and_displaces_no_other():
    inbox = Inbox()
    inbox.receive(1, H2)
    inbox.receive(1, OTHER_KEY)
    last = sample_inbox.WAITING_OF_A_HOST + 3
    for number in range(1, last + 1):
        assert inbox.receive(number) is None
    assert (len(inbox), inbox.dropped) == (sample_inbox.WAITING_OF_A_HOST + 2, 3)
    found = inbox.numbers()
    assert found[:2] == [("h2", 1), ("h1", 1)]
    assert found[2:] == [("h1", number) for number in range(4, last + 1)]


def test_full_inbox_drops_the_oldest_sample_of_the_sender():
    inbox = Inbox(limit=3)
    inbox.receive(1, H2)
    for number in (2, 3, 4, 5):
        assert inbox.receive(number) is None
    assert (len(inbox), inbox.dropped) == (3, 2)
    inbox.receive(6, H2)
    assert inbox.numbers() == [("h1", 4), ("h1", 5), ("h2", 6)]
    assert inbox.dropped == 3
