# SPDX-License-Identifier: Apache-2.0
"""Signatures of messages on the bus: Ed25519 (RFC 8032), bound to a purpose.

The signed bytes include the purpose, so a message of one kind is invalid as another kind.  Keys are
PEM (PKCS 8 and SubjectPublicKeyInfo); any of a file's public keys may have signed.
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
IMAGE_GRANT: Final = "image grant"
IMAGE_GRANT_WANTED: Final = "image grant wanted"
IMAGE_GRANT_ANSWER: Final = "image grant answer"
IMAGE_GRANT_USE: Final = "image grant use"
RENEWAL: Final = "renewal"
"""A certificate request, signed with the key of the host's current certificate."""

PublicKey = ed25519.Ed25519PublicKey  # alias for modules that must not import cryptography
MAX_PUBLIC_KEYS = 64
_BEGIN = b"-----BEGIN PUBLIC KEY-----"
_END = b"-----END PUBLIC KEY-----"


def new_key() -> bytes:
    """Return a new Ed25519 key: PEM, PKCS 8, not encrypted."""
    return ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(key_pem: bytes) -> ed25519.Ed25519PrivateKey:
    """Return the key of a PEM file, or raise NotAuthenticated."""
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as e:
        raise errors.NotAuthenticated("a key", "it is not a PEM key without a password") from e
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise errors.NotAuthenticated("a key", "it is not an Ed25519 key")
    return key


def public_pem(key_pem: bytes) -> bytes:
    """Return the public key of a private key as PEM, or raise NotAuthenticated."""
    return pem_of(read_key(key_pem).public_key()).encode()


def pem_of(key: PublicKey) -> str:
    """Return a public key as PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def read_public_keys(bundle_pem: bytes) -> tuple[ed25519.Ed25519PublicKey, ...]:
    """Return the public keys of a file (``signers.pem``), or raise NotAuthenticated."""
    parts = bundle_pem.split(_BEGIN)[1:]
    if not 1 <= len(parts) <= MAX_PUBLIC_KEYS:
        raise errors.NotAuthenticated(
            "public keys", f"{len(parts)}; 1 to {MAX_PUBLIC_KEYS} are allowed"
        )
    return tuple(_public_key(_BEGIN + part) for part in parts)


def _public_key(pem: bytes) -> ed25519.Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(pem.partition(_END)[0] + _END + b"\n")
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as e:
        raise errors.NotAuthenticated("a public key", "it is not a PEM public key") from e
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise errors.NotAuthenticated("a public key", "it is not an Ed25519 key")
    return key


def sign(key_pem: bytes, purpose: str, payload: bytes) -> bytes:
    """Return the signature (64 bytes) of ``payload`` for a purpose, or raise NotAuthenticated."""
    return read_key(key_pem).sign(_signed_bytes(purpose, payload))


def verify(
    public_keys: Iterable[ed25519.Ed25519PublicKey], purpose: str, payload: bytes, signature: bytes
) -> None:
    """Verify a signature of ``payload`` for a purpose under any key, or raise NotAuthenticated.

    >>> key = new_key()
    >>> verify(read_public_keys(public_pem(key)), TABLE, b"{}", sign(key, TABLE, b"{}"))
    """
    for key in public_keys:
        try:
            return key.verify(signature, _signed_bytes(purpose, payload))
        except exceptions.InvalidSignature:
            continue
    raise errors.NotAuthenticated(f"a signature ({purpose})", "none of the trusted keys made it")


def _signed_bytes(purpose: str, payload: bytes) -> bytes:
    return b"acstor " + purpose.encode() + b"\0" + payload
