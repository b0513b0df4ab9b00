# SPDX-License-Identifier: Apache-2.0
"""Signatures over what crosses the message bus: Ed25519 (RFC 8032), bound to a purpose.

The one rule: a signature says what it is for.  The purpose is part of what is
signed, so that a host's signed sample can never be shown as its boot trace, nor a
signed task as a v-node table.

Keys and public keys are PEM (PKCS 8 and SubjectPublicKeyInfo), as they lie in
files; a file may hold several public keys, of which any may have signed.
"""

from collections.abc import Iterable
from typing import Final

from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from acstor_common import errors

TABLE: Final = "table"
TASK: Final = "task"
IMAGE_WANTED: Final = "image wanted"
SAMPLE: Final = "sample"
TRACE: Final = "trace"
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_KEY: Final = "checkpoint key"
CHECKPOINT_ANSWER: Final = "checkpoint answer"
CHECKPOINT_INTERVALS: Final = "checkpoint intervals"
CHECKPOINT_OWNERS: Final = "checkpoint owners"
CHECKPOINT_WANTED: Final = "checkpoint wanted"
CHECKPOINT_HEARD: Final = "checkpoint heard"
RENEWAL: Final = "renewal"
"""A certificate request, signed with the key of the certificate that the host holds."""

PublicKey = ed25519.Ed25519PublicKey
"""For those who name its type without needing the library."""
MAX_PUBLIC_KEYS = 64
_BEGIN = b"-----BEGIN PUBLIC KEY-----"
_END = b"-----END PUBLIC KEY-----"


def new_key() -> bytes:
    """Return a new Ed25519 key, made of the system's randomness: PEM, PKCS 8, not encrypted."""
    return ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_key(key_pem: bytes) -> ed25519.Ed25519PrivateKey:
    """Return the key of a PEM file.

    :raises errors.NotAuthenticated: it is no Ed25519 key that can be used without a password
    """
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as e:
        raise errors.NotAuthenticated("a key", "it is no PEM key without a password") from e
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise errors.NotAuthenticated("a key", "it is not an Ed25519 key")
    return key


def public_pem(key_pem: bytes) -> bytes:
    """Return the public half of a key: PEM, SubjectPublicKeyInfo.

    :raises errors.NotAuthenticated: see :func:`read_key`
    """
    return pem_of(read_key(key_pem).public_key()).encode()


def pem_of(key: PublicKey) -> str:
    """Return a public key as PEM, SubjectPublicKeyInfo."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def read_public_keys(bundle_pem: bytes) -> tuple[ed25519.Ed25519PublicKey, ...]:
    """Return the public keys of a file (``signers.pem``), in its order; what lies between is text.

    :raises errors.NotAuthenticated: one of them is no Ed25519 public key, there are none, or more
        than MAX_PUBLIC_KEYS
    """
    parts = bundle_pem.split(_BEGIN)[1:]
    if not 1 <= len(parts) <= MAX_PUBLIC_KEYS:
        raise errors.NotAuthenticated("public keys", f"{len(parts)}; 1 to {MAX_PUBLIC_KEYS} may be")
    return tuple(_public_key(_BEGIN + part) for part in parts)


def _public_key(pem: bytes) -> ed25519.Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(pem.partition(_END)[0] + _END + b"\n")
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as e:
        raise errors.NotAuthenticated("a public key", "it is no PEM public key") from e
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise errors.NotAuthenticated("a public key", "it is not an Ed25519 key")
    return key


def sign(key_pem: bytes, purpose: str, payload: bytes) -> bytes:
    """Return the signature (64 bytes) of ``payload`` for one purpose, a constant of this module.

    :raises errors.NotAuthenticated: see :func:`read_key`
    """
    return read_key(key_pem).sign(_signed_bytes(purpose, payload))


def verify(
    public_keys: Iterable[ed25519.Ed25519PublicKey],
    purpose: str,
    payload: bytes,
    signature: bytes,
) -> None:
    """Return if one of the keys made this signature over ``payload`` for this purpose.

    >>> key = new_key()
    >>> verify(read_public_keys(public_pem(key)), TABLE, b"{}", sign(key, TABLE, b"{}"))

    :raises errors.NotAuthenticated: none of them did
    """
    for key in public_keys:
        try:
            return key.verify(signature, _signed_bytes(purpose, payload))
        except exceptions.InvalidSignature:
            continue
    raise errors.NotAuthenticated(f"a signature ({purpose})", "none of the keys known here made it")


def _signed_bytes(purpose: str, payload: bytes) -> bytes:
    return b"acstor " + purpose.encode() + b"\0" + payload
