# SPDX-License-Identifier: Apache-2.0
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from acstor_common import errors
from acstor_common.identity import signing

KEY = signing.new_key()
OTHER_KEY = signing.new_key()
PUBLIC = signing.read_public_keys(signing.public_pem(KEY))
PAYLOAD = b'{"epoch": 7}'
SIGNATURE = signing.sign(KEY, signing.TABLE, PAYLOAD)


def test_signature_is_over_the_purpose_and_the_payload_as_documented():
    PUBLIC[0].verify(SIGNATURE, b"acstor table\0" + PAYLOAD)
    signing.verify(PUBLIC, signing.TABLE, PAYLOAD, SIGNATURE)


@pytest.mark.parametrize(
    ("purpose", "payload", "signature"),
    [
        (signing.TASK, PAYLOAD, SIGNATURE),
        (signing.TABLE, PAYLOAD + b" ", SIGNATURE),
        (signing.TABLE, PAYLOAD, SIGNATURE[:-1]),
        (signing.TABLE, PAYLOAD, SIGNATURE[:-1] + bytes([SIGNATURE[-1] ^ 1])),
        (signing.TABLE, PAYLOAD, b""),
        (signing.TABLE, PAYLOAD, signing.sign(OTHER_KEY, signing.TABLE, PAYLOAD)),
    ],
    ids=["purpose", "payload", "cut", "changed", "none", "key"],  # stable in every process
)
def test_signature_of_another_purpose_payload_or_key_is_refused(purpose, payload, signature):
    with pytest.raises(errors.NotAuthenticated, match=purpose):
        signing.verify(PUBLIC, purpose, payload, signature)


def test_signature_without_known_keys_is_refused():
    with pytest.raises(errors.NotAuthenticated):
        signing.verify((), signing.TABLE, PAYLOAD, SIGNATURE)


def test_public_key_file_may_hold_several_keys_and_comments():
    bundle = b"# new\n" + signing.public_pem(OTHER_KEY) + b"# former\n" + signing.public_pem(KEY)
    keys = signing.read_public_keys(bundle)
    signing.verify(keys, signing.TABLE, PAYLOAD, SIGNATURE)
    assert len(keys) == 2


def test_key_of_another_type_is_refused():
    other = rsa.generate_private_key(65537, 2048)
    private = other.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(errors.NotAuthenticated, match="not an Ed25519 key"):
        signing.public_pem(private)
    with pytest.raises(errors.NotAuthenticated, match="not an Ed25519 key"):
        signing.read_public_keys(public)


def test_too_many_public_keys_are_refused():
    with pytest.raises(errors.NotAuthenticated, match="65; 1 to 64"):
        signing.read_public_keys(signing.public_pem(KEY) * 65)


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_no_key_or_signature(garbage, is_pem):
    if is_pem:
        garbage = b"-----BEGIN PUBLIC KEY-----\n" + garbage + b"\n-----END PUBLIC KEY-----\n"
    with pytest.raises(errors.NotAuthenticated):
        signing.read_public_keys(garbage)
    with pytest.raises(errors.NotAuthenticated):
        signing.sign(garbage, signing.TABLE, PAYLOAD)
    with pytest.raises(errors.NotAuthenticated):
        signing.verify(PUBLIC, signing.TABLE, PAYLOAD, garbage)
