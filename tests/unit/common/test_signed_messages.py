# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages

NOW_S = 1_800_000_000.0
HOST = ids.HostId("h1")
CA = certificates.Authority.create("test", NOW_S, 86400)
KEY = certificates.new_key()
CERT = CA.issue_certificate(certificates.request(HOST, KEY), HOST, NOW_S, 3600)
SERVICE_KEY = signing.new_key()
SIGNERS = signing.read_public_keys(signing.public_pem(SERVICE_KEY))
WANTED = decision_messages.ImageWanted("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
TASK = decision_messages.TaskForHosts(
    task=decision_messages.ImageTask(
        request=7, kind=decision_messages.TaskKind.PRE_SEED, image_id=WANTED.image_id
    ),
    hosts=("h1",),
    given_s=NOW_S,
)


def over_the_bus(message: decision_messages.Signed) -> decision_messages.Signed:
    carried = msgspec.json.decode(msgspec.json.encode(decision_messages.encode(message)))
    return decision_messages.decode(carried, decision_messages.Signed)


def test_message_of_the_service_is_verified_with_its_key():
    sent = over_the_bus(signed_messages.sign_payload(TASK, signing.TASK, SERVICE_KEY))
    kind = decision_messages.TaskForHosts
    assert signed_messages.verify_from_service(sent, signing.TASK, SIGNERS, kind) == TASK
    assert sent.certificate == ""


def test_message_of_a_host_identifies_the_host():
    sent = over_the_bus(signed_messages.sign_payload(WANTED, signing.SAMPLE, KEY, CERT))
    certificate, payload = signed_messages.verify_from_host(
        sent, signing.SAMPLE, CA.certificate_pem, decision_messages.ImageWanted
    )
    assert (certificate.host, payload) == ("h1", WANTED)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "{}"},
        {"signature": "A" * 86 + "=="},
        {"certificate": ""},
        {"certificate": CA.certificate_pem.decode()},
    ],
)
def test_changed_message_is_refused(change):
    sent = msgspec.structs.replace(
        signed_messages.sign_payload(WANTED, signing.SAMPLE, KEY, CERT), **change
    )
    with pytest.raises(errors.NotAuthenticated):
        signed_messages.verify_from_host(
            sent, signing.SAMPLE, CA.certificate_pem, decision_messages.ImageWanted
        )


def test_message_for_another_purpose_is_refused():
    sent = signed_messages.sign_payload(WANTED, signing.TRACE, KEY, CERT)
    with pytest.raises(errors.NotAuthenticated):
        signed_messages.verify_from_host(
            sent, signing.SAMPLE, CA.certificate_pem, decision_messages.ImageWanted
        )
    with pytest.raises(errors.NotAuthenticated):
        signed_messages.verify_from_service(
            sent, signing.TRACE, SIGNERS, decision_messages.ImageWanted
        )


def test_signed_malformed_payload_is_a_protocol_error_of_its_signer():
    sent = signed_messages.sign_payload(TASK, signing.SAMPLE, KEY, CERT)
    with pytest.raises(errors.RemoteProtocolError, match="h1"):
        signed_messages.verify_from_host(
            sent, signing.SAMPLE, CA.certificate_pem, decision_messages.Sample
        )
    deep = decision_messages.Signed(
        "[" * 100_000, signed_messages.signature_of(signing.TASK, b"[" * 100_000, SERVICE_KEY)
    )
    with pytest.raises(errors.RemoteProtocolError, match="the decision service"):
        signed_messages.verify_from_service(
            deep, signing.TASK, SIGNERS, decision_messages.TaskForHosts
        )


@pytest.mark.parametrize("signature", ["", "A" * 88, "A" * 87 + "=", "é" * 86 + "=="])
def test_signature_that_is_not_base64_of_64_bytes_is_refused(signature):
    payload = {"payload": "{}", "signature": signature}
    with pytest.raises(errors.RemoteProtocolError):
        decision_messages.decode(payload, decision_messages.Signed)
    with pytest.raises(errors.NotAuthenticated):
        signed_messages.check_signature(SIGNERS, signing.TABLE, b"{}", signature)
