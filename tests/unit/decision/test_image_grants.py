# SPDX-License-Identifier: Apache-2.0
"""Hosts get grants only for images that Nova names or an operator wants on hosts."""

import pytest

from acstor_common.identity import signing
from acstor_common.util import token_buckets
from acstor_common.wire import decision_messages
from acstor_common.wire import image_grants as messages
from acstor_common.wire import signed_messages
from acstor_decision import image_grants
from acstor_decision import nova_client
from acstor_decision.db import database
from acstor_decision.db import grant_queries
from tests.fakes import decision_databases
from tests.fakes import enrolled_hosts
from tests.fakes import manual_clock

NOW_S = 1_800_000_000.0
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
UNUSED = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
FILLING = decision_databases.FILLING
OWNED = decision_databases.OWNED

pytestmark = pytest.mark.allow_log("is refused a grant for image|^grants: ")


class Nova:
    """A Nova whose servers use some images; it raises ``fault`` if that is set."""

    def __init__(self):
        self.used, self.fault, self.asked = {IMAGE}, None, []

    def is_image_used(self, image_id, is_member, requester):
        self.asked.append(image_id)
        assert is_member("h1")
        assert not is_member("h9")
        assert requester == "h1"
        if self.fault:
            raise self.fault
        return image_id in self.used


class Service:
    """The decision service as hosts see it."""

    def __init__(self, conf, store):
        self.now_s = NOW_S
        self.hosts = enrolled_hosts.EnrolledHosts(conf, store, lambda: self.now_s)
        for host in ("h1", "h2"):
            self.hosts.identity(host)
        self.nova, self.store = Nova(), store
        self.grants = image_grants.ImageGrants(
            store,
            self.nova,
            self.hosts.keeper.load_trust_state,
            clock=manual_clock.FunctionClock(lambda: self.now_s),
        )

    def passes(self, seconds):
        self.now_s += seconds

    def send(self, request, by="h1", purpose=signing.IMAGE_GRANT_WANTED):
        signed = signed_messages.sign_payload(request, purpose, *self.hosts.identity(by))
        return self.answer(decision_messages.encode(signed))

    def answer(self, payload):
        trust = self.hosts.keeper.load_trust_state()
        signers = signing.read_public_keys(trust.signers)
        said = decision_messages.decode(
            self.grants.request_grant(payload), decision_messages.Signed
        )
        return signed_messages.verify_from_service(
            said, signing.IMAGE_GRANT_ANSWER, signers, messages.GrantResponse
        )

    def ask(self, image_id=IMAGE, host="h1", **by):
        self.passes(0.001)  # a request is accepted once
        return self.send(messages.GrantRequest(host, image_id, self.now_s), **by)


@pytest.fixture
def service(configure, store):
    return Service(configure(), store)


def test_host_gets_a_grant_for_an_image_that_a_server_uses(service):
    given = service.ask()
    assert (given.why, given.host) == ("", "h1")
    trust = service.hosts.keeper.load_trust_state()
    grant = signed_messages.verify_from_service(
        given.grant,
        signing.IMAGE_GRANT,
        signing.read_public_keys(trust.signers),
        messages.ImageGrant,
    )
    assert (grant.host, grant.image_id, grant.issued_s) == ("h1", IMAGE, service.now_s)
    key = signing.read_key(service.hosts.identity("h1")[0]).public_key()
    assert signing.read_public_keys(grant.host_key.encode()) == (key,)


@pytest.mark.expect_log("h1 is refused a grant for image .*: no server uses this image")
def test_unused_image_is_refused_until_a_server_uses_it(service):
    refused = service.ask(UNUSED)
    assert (refused.grant, refused.is_transient) == (None, False)
    assert "no server uses this image" in refused.why
    service.nova.used.add(UNUSED)
    assert service.ask(UNUSED).grant is None  # the lookup is cached
    service.passes(image_grants.UNUSED_S)
    assert service.ask(UNUSED).grant is not None


def test_nova_is_queried_once_a_minute_for_an_image(service):
    for _ in range(20):
        assert service.ask().grant is not None
    assert service.nova.asked == [IMAGE]
    service.passes(image_grants.USED_S)
    service.ask()
    assert service.nova.asked == [IMAGE] * 2


@pytest.mark.parametrize(
    "fault", [nova_client.NovaUnreachable("HTTP 503"), nova_client.NovaBusy("many")]
)
def test_grant_without_nova_is_given_for_recently_used_images_only(service, fault):
    assert service.ask().grant is not None
    service.nova.fault = fault
    service.passes(grant_queries.LINGER_S - 60)
    assert service.ask().grant is not None
    waits = service.ask(UNUSED)
    assert (waits.grant, waits.is_transient) == (None, True)
    service.passes(120)
    assert service.ask().is_transient


def report(service, fill, host="h2", task=None):
    held = {IMAGE: decision_messages.HeldImage(fill=fill, task=task)}
    sample = decision_databases.sample(host, service.now_s, images=held)
    service.store.record_samples({host: (sample, 0)})


def test_once_used_image_is_granted_while_a_host_lacks_bytes(service):
    """Nova names the image of an unshelved server only while the server starts."""
    report(service, FILLING)
    service.nova.used.clear()
    assert service.ask().grant is None  # the host's claim alone is not enough
    service.nova.used.add(IMAGE)
    service.passes(60)
    assert service.ask().grant is not None
    service.nova.used.clear()
    service.passes(2 * grant_queries.LINGER_S)
    report(service, FILLING)
    service.store.delete_stale(service.now_s)
    assert service.ask().grant is not None
    report(service, OWNED)
    service.passes(image_grants.USED_S)
    assert service.ask().grant is None
    service.store.delete_stale(service.now_s)
    report(service, FILLING)  # the claim comes too late
    service.passes(image_grants.UNUSED_S)
    assert service.ask().grant is None


def test_needs_of_revoked_or_silent_hosts_are_ignored(service):
    assert service.ask().grant is not None
    service.nova.used.clear()
    service.passes(2 * grant_queries.LINGER_S)
    assert service.ask().grant is None
    report(service, FILLING)
    service.passes(image_grants.UNUSED_S)
    assert service.ask().grant is not None
    service.hosts.keeper.revoke_host("h2")
    service.passes(image_grants.USED_S)
    assert service.ask().grant is None


@pytest.mark.expect_log("h1 is refused a grant for image .*: no server uses this image")
def test_image_that_an_operator_named_overrides_a_cached_refusal(service):
    assert service.ask(UNUSED).grant is None
    service.store.record_named_image(UNUSED, service.now_s)
    assert service.ask(UNUSED).grant is not None
    assert service.nova.asked == [UNUSED]


def test_request_signed_by_another_host_is_refused(service):
    refused = service.ask(host="h2", by="h1")
    assert refused.grant is None
    assert "it is signed by h1" in refused.why
    assert "none of the trusted keys" in service.ask(purpose=signing.SAMPLE).why


def test_replayed_or_untimely_request_is_refused(service):
    request = messages.GrantRequest("h1", IMAGE, service.now_s)
    assert service.send(request).grant is not None
    assert "accepted before" in service.send(request).why
    for sent_s in (service.now_s - 1000, service.now_s + 1000):
        assert service.send(messages.GrantRequest("h1", IMAGE, sent_s)).grant is None


def test_revoked_host_gets_no_grant(service):
    service.hosts.keeper.revoke_host("h1")
    refused = service.ask()
    assert (refused.grant, refused.why.count("revoked")) == (None, 1)


@pytest.mark.parametrize("payload", [None, 5, {}, {"payload": "{}", "signature": "A"}])
def test_malformed_request_is_refused(service, payload):
    assert service.answer(payload).grant is None
    assert service.nova.asked == []


def test_rate_limit_delays_one_host_and_not_the_others(configure, store, monkeypatch):
    monkeypatch.setattr(image_grants, "RATE", token_buckets.Rate(per_s=1.0, burst=5.0))
    service = Service(configure(), store)
    answers = [service.ask() for _ in range(8)]
    assert [said.why for said in answers[:5]] == [""] * 5
    assert answers[-1].is_transient and "grants a second" in answers[-1].why
    assert service.ask(host="h2", by="h2").grant is not None


def test_host_may_retry_without_a_database(service, monkeypatch):
    def fail(*_arguments):
        raise database.DatabaseError("db.example", "gone")

    service.nova.used.clear()
    monkeypatch.setattr(service.store, "is_grantable", fail)
    waits = service.ask()
    assert (waits.grant, waits.is_transient) == (None, True)
    assert "example" not in waits.why


def test_refused_requests_are_counted_by_reason(service, monkeypatch):
    def fail(*_arguments):
        raise database.DatabaseError("db.example", "gone")

    def counted():
        return {reason: times for reason, times in service.grants.refused.items() if times}

    assert service.ask().grant is not None
    assert counted() == {}
    service.answer({})
    service.ask(host="h2", by="h1")
    service.ask(UNUSED)
    expected = {"not_authentic": 2, "not_in_use": 1}
    assert counted() == expected
    for fault, reason in (
        (nova_client.NovaUnreachable("HTTP 503"), "no_nova"),
        (nova_client.NovaBusy("many"), "busy"),
    ):
        service.nova.fault = fault
        service.passes(image_grants.UNUSED_S)
        service.ask(UNUSED)
        expected[reason] = 1
        assert counted() == expected
    monkeypatch.setattr(service.store, "is_grantable", fail)
    service.ask(UNUSED)
    assert counted() == {**expected, "no_database": 1}
