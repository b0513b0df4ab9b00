# SPDX-License-Identifier: Apache-2.0
"""The listener's verification of messages from the bus."""

import msgspec
import pytest

from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_common.wire import trace_message
from acstor_glance.client import trust_store
from acstor_glance.controller import message_verifier
from tests.fakes import cloud_keys
from tests.fakes import manual_clock

NOW_S = 1_800_000_000.0
DAY_S = 86_400
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
KEYS = cloud_keys.CloudKeys(NOW_S)
STRANGER = cloud_keys.CloudKeys(NOW_S)
H1 = KEYS.host("h1")
WANTED = decision_messages.ImageWanted(IMAGE, is_forced=True)


class Listener:
    def __init__(self):
        self.now_s = NOW_S
        self.trust = trust_store.parse_trust(KEYS.authority.certificate_pem, KEYS.signers, {})
        self.proofs = message_verifier.MessageVerifier(
            manual_clock.FunctionClock(lambda: self.now_s)
        )

    def verify_trace(self, payload):
        return self.proofs.verify_trace(payload, self.trust)

    def verify_request(self, payload):
        return self.proofs.verify_request(payload, self.trust)


@pytest.fixture
def listener():
    return Listener()


def trace(host="h1", recorded_s=NOW_S):
    return trace_message.BootTrace(
        host=host,
        image_id=IMAGE,
        size_bytes=10 * 65536,
        chunk_bytes=65536,
        trace=(3, 1),
        recorded_s=recorded_s,
    )


def sent(message, by=H1, purpose=signing.TRACE):
    return decision_messages.encode(
        signed_messages.sign_payload(message, purpose, by.key, by.certificate)
    )


def test_signed_trace_of_a_host_is_accepted(listener):
    assert listener.verify_trace(sent(trace())) == trace()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (sent(trace("h2")), "a boot trace of h1 is rejected: it states the host h2"),
        (sent(trace(), STRANGER.host("h1")), "none of the trusted authorities issued it"),
        (sent(trace(), H1._replace(key=KEYS.host("h1").key)), "none of the trusted keys"),
        (sent(trace(), purpose=signing.SAMPLE), "none of the trusted keys"),
        (sent(trace(), KEYS.host("h1", NOW_S - 9 * DAY_S)), "valid until"),
        (sent(trace(), KEYS.host("h1", NOW_S + DAY_S)), "one of the two clocks is wrong"),
        (sent(trace(recorded_s=NOW_S - 2 * DAY_S)), "172800 s ago"),
        (sent(trace(recorded_s=NOW_S + 2 * DAY_S)), "-172800 s ago"),
    ],
)
def test_unproven_trace_is_refused(listener, payload, why):
    with pytest.raises(errors.NotAuthenticated, match=why):
        listener.verify_trace(payload)


@pytest.mark.parametrize("payload", [None, 7, [], {}, {"trace": [1]}, {"payload": "{}"}])
def test_malformed_message_is_refused(listener, payload):
    for opened in (listener.verify_trace, listener.verify_request):
        with pytest.raises(errors.RemoteProtocolError):
            opened(payload)


def test_invalid_signed_trace_is_refused(listener):
    good = msgspec.to_builtins(trace())
    for wrong in ({"trace": ()}, {"trace": (99,)}, {"host": ""}, {"image_id": "../x"}):
        data = msgspec.json.encode(good | wrong)
        signature = signed_messages.signature_of(signing.TRACE, data, H1.key)
        signed = decision_messages.Signed(data.decode(), signature, H1.certificate.decode())
        with pytest.raises(errors.RemoteProtocolError, match="h1 broke the protocol"):
            listener.verify_trace(decision_messages.encode(signed))


def test_expired_certificate_is_accepted_within_its_grace_time(listener):
    listener.now_s = NOW_S + 7 * DAY_S
    late = trace(recorded_s=listener.now_s)
    assert listener.verify_trace(sent(late)) == late


def test_revoked_host_is_refused_until_it_has_a_new_certificate(listener):
    listener.trust = listener.trust._replace(revoked={"h1": int(NOW_S)})
    with pytest.raises(errors.NotAuthenticated, match="revoked"):
        listener.verify_trace(sent(trace()))
    again = KEYS.host("h1", NOW_S + 600)
    listener.now_s = NOW_S + 600
    assert listener.verify_trace(sent(trace(), again)) == trace()


def test_traces_are_rate_limited_for_each_host(listener):
    payload, other = sent(trace()), sent(trace("h2"), KEYS.host("h2"))
    for _ in range(message_verifier.TRACE_BURST):
        listener.verify_trace(payload)
    for _ in range(3):
        with pytest.raises(errors.RemoteProtocolError, match="h1 broke the protocol: more traces"):
            listener.verify_trace(payload)
    listener.verify_trace(other)
    listener.now_s += message_verifier.TRACE_INTERVAL_S
    listener.verify_trace(payload)
    with pytest.raises(errors.RemoteProtocolError):
        listener.verify_trace(payload)


def test_rates_of_hosts_take_bounded_memory(listener):
    verifier = message_verifier.MessageVerifier(
        manual_clock.FunctionClock(lambda: listener.now_s), hosts=3
    )
    for number in range(6):
        host = KEYS.host(f"h{number}")
        verifier.verify_trace(sent(trace(f"h{number}"), host), listener.trust)
    assert len(verifier._rates) == 3


def test_messages_are_refused_before_any_key_is_known(listener):
    listener.trust = trust_store.NO_TRUST
    with pytest.raises(errors.NotAuthenticated, match="no authority is known here yet"):
        listener.verify_trace(sent(trace()))
    with pytest.raises(errors.NotAuthenticated):
        listener.verify_request(decision_messages.encode(KEYS.wanted(WANTED, given_s=NOW_S)))


def test_request_of_the_decision_service_is_accepted_once(listener):
    payload = decision_messages.encode(KEYS.wanted(WANTED, given_s=NOW_S))
    assert listener.verify_request(payload) == WANTED
    with pytest.raises(errors.NotAuthenticated, match="it was accepted before"):
        listener.verify_request(payload)
    again = decision_messages.encode(KEYS.wanted(WANTED, request=2, given_s=NOW_S))
    assert listener.verify_request(again) == WANTED


@pytest.mark.parametrize(
    "signed",
    [
        STRANGER.wanted(WANTED, given_s=NOW_S),
        KEYS.wanted(WANTED, given_s=NOW_S - DAY_S),
        KEYS.wanted(WANTED, given_s=NOW_S + DAY_S),
        signed_messages.sign_payload(
            decision_messages.ImageWantedAt(wanted=WANTED, request=1, given_s=NOW_S),
            signing.IMAGE_WANTED,
            H1.key,
            H1.certificate,
        ),
        signed_messages.sign_payload(
            decision_messages.ImageWantedAt(wanted=WANTED, request=1, given_s=NOW_S),
            signing.TASK,
            KEYS.signing_key,
        ),
    ],
)
def test_unproven_request_is_refused(listener, signed):
    with pytest.raises(errors.NotAuthenticated):
        listener.verify_request(decision_messages.encode(signed))
