# SPDX-License-Identifier: Apache-2.0
"""A grant permits one image to one host for some minutes; the host signs each request."""

import base64

import msgspec
import pytest

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import image_grants
from acstor_common.wire import signed_messages
from tests.fakes import cloud_keys

NOW_S = 1_800_000_000.0
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
KEYS, OTHER_CLOUD = cloud_keys.CloudKeys(NOW_S), cloud_keys.CloudKeys(NOW_S)
SIGNERS = signing.read_public_keys(KEYS.signers)
HOST, OTHER_HOST = KEYS.host("h1"), KEYS.host("h2")
CERTIFICATE = certificates.read_host_certificate(HOST.certificate, HOST.ca)
TARGET = image_grants.target_of(f"/v1/images/{IMAGE}/file", "bytes=0-9")


def grant(signer=KEYS.signing_key, now_s=NOW_S):
    request = image_grants.GrantRequest("h1", IMAGE, now_s)
    return image_grants.new_grant(request, CERTIFICATE, signer, now_s)


def verify(headers, target=TARGET, revoked=None, now_s=NOW_S):
    return image_grants.verify_use(headers, target, SIGNERS, revoked or {}, now_s)


def headers(given=None, target=TARGET, key=HOST.key, now_s=NOW_S):
    return image_grants.headers_of(given or grant(), target, key, now_s)


def test_host_may_use_its_grant_until_it_expires():
    found = verify(headers())
    assert (found.host, found.image_id) == ("h1", IMAGE)
    assert found.expires_s - found.issued_s == image_grants.LIFETIME_S
    late_s = NOW_S + image_grants.LIFETIME_S + image_grants.SKEW_S
    assert verify(headers(now_s=late_s), now_s=late_s) == found


@pytest.mark.parametrize(
    ("after_s", "words"),
    [
        (image_grants.LIFETIME_S + image_grants.SKEW_S + 2, "expired 662 s ago"),
        (-image_grants.SKEW_S - 2, "begins 62 s from now"),
    ],
)
def test_grant_is_refused_outside_its_lifetime(after_s, words):
    at_s = NOW_S + after_s
    with pytest.raises(errors.NotAuthenticated, match=words.replace("662", "62")):
        verify(headers(now_s=at_s), now_s=at_s)


def test_grant_lifetime_is_bounded_even_if_a_grant_claims_more():
    taken = signed_messages.verify_from_service(
        grant(), signing.IMAGE_GRANT, SIGNERS, image_grants.ImageGrant
    )
    long = msgspec.structs.replace(taken, expires_s=NOW_S + 1e6)
    signed = signed_messages.sign_payload(long, signing.IMAGE_GRANT, KEYS.signing_key)
    at_s = NOW_S + 3600
    with pytest.raises(errors.NotAuthenticated, match="expired"):
        verify(headers(signed, now_s=at_s), now_s=at_s)


@pytest.mark.parametrize("purpose", [signing.TASK, signing.IMAGE_GRANT_ANSWER, signing.SAMPLE])
def test_grant_needs_the_services_signature_for_its_purpose(purpose):
    taken = signed_messages.verify_from_service(
        grant(), signing.IMAGE_GRANT, SIGNERS, image_grants.ImageGrant
    )
    other = signed_messages.sign_payload(taken, purpose, KEYS.signing_key)
    for forged in (grant(OTHER_CLOUD.signing_key), grant(HOST.key), other):
        with pytest.raises(errors.NotAuthenticated, match="none of the trusted keys"):
            verify(headers(forged))


def test_changed_grant_is_refused():
    given = grant()
    for old, new in ((IMAGE, IMAGE.replace("7", "8")), ('"h1"', '"h2"')):
        changed = msgspec.structs.replace(given, payload=given.payload.replace(old, new))
        assert changed != given
        with pytest.raises(errors.NotAuthenticated, match="none of the trusted keys"):
            verify(headers(changed))


def test_grant_of_another_host_is_refused():
    with pytest.raises(errors.NotAuthenticated, match="none of the trusted keys"):
        verify(headers(key=OTHER_HOST.key))
    without = headers()
    del without[image_grants.PROOF_HEADER]
    with pytest.raises(errors.NotAuthenticated, match="no proof"):
        verify(without)


def test_proof_covers_one_request_at_one_time():
    for other in (TARGET.replace("0-9", "0-99"), TARGET.replace(IMAGE, IMAGE.replace("7", "8"))):
        with pytest.raises(errors.NotAuthenticated, match="none of the trusted keys"):
            verify(headers(), target=other)
    for at_s in (NOW_S + image_grants.PROOF_AGE_S + 1, NOW_S - image_grants.PROOF_AGE_S - 1):
        with pytest.raises(errors.NotAuthenticated, match="its proof is"):
            verify(headers(now_s=at_s))
    ours = headers()
    moved = ours[image_grants.PROOF_HEADER].replace(f"{NOW_S:.0f}", f"{NOW_S + 1:.0f}")
    with pytest.raises(errors.NotAuthenticated, match="none of the trusted keys"):
        verify({**ours, image_grants.PROOF_HEADER: moved})


def test_revoked_host_is_refused_until_it_enrols_again():
    revoked = {"h1": certificates.refused_before(NOW_S), "h2": 1 << 40}
    with pytest.raises(errors.NotAuthenticated, match="revoked"):
        verify(headers(), revoked=revoked)
    later_s = NOW_S + 2
    again = headers(grant(now_s=later_s), now_s=later_s)
    assert verify(again, revoked=revoked, now_s=later_s).host == "h1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ä",
        "!",
        "AAA",
        base64.urlsafe_b64encode(b"[" * 1000).decode(),
        base64.urlsafe_b64encode(b"{}").decode(),
        base64.urlsafe_b64encode(b'{"payload":"\\ud800","signature":""}').decode(),
        "A" * (image_grants.MAX_HEADER + 1),
    ],
)
def test_malformed_grant_is_refused(text):
    with pytest.raises(errors.RemoteProtocolError, match="its grant"):
        verify({**headers(), image_grants.GRANT_HEADER: text})


@pytest.mark.parametrize("text", ["", "x", "1 ", "-1 " + "A" * 86 + "==", "9" * 400 + " x"])
def test_malformed_proof_is_refused(text):
    with pytest.raises(errors.NotAuthenticated, match="no proof"):
        verify({**headers(), image_grants.PROOF_HEADER: text})


def test_headers_fit_for_the_longest_host_name():
    name = ".".join(["a" * 63] * 3 + ["b" * 61])
    made = KEYS.host(name)
    certificate = certificates.read_host_certificate(made.certificate, made.ca)
    request = image_grants.GrantRequest(ids.HostId(name), IMAGE, NOW_S)
    given = image_grants.new_grant(request, certificate, KEYS.signing_key, NOW_S)
    assert verify(headers(given, key=made.key)).host == name
