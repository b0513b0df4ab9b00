# SPDX-License-Identifier: Apache-2.0
"""Encryption of messages to the decision service over the message bus.

X25519 with an ephemeral key per message, BLAKE3 as key derivation function, AES-256-GCM.  Senders
must first verify the service's signature of its public key, which derives from its signing key.
"""

from typing import Final

import blake3
from cryptography import exceptions
from cryptography.hazmat.primitives.asymmetric import x25519
from cryptography.hazmat.primitives.ciphers import aead

from acstor_common import errors
from acstor_common.identity import signing

PUBLIC_BYTES: Final = 32
_CONTEXT: Final = "acstor 2026-11 concealed messages: "
_NONCE: Final = bytes(12)  # each key encrypts one message


def public_key(secret_pem: bytes) -> bytes:
    """Return the public encryption key of a signing key, or raise NotAuthenticated."""
    return _key_of(secret_pem).public_key().public_bytes_raw()


def encrypt(public: bytes, data: bytes, associated_data: bytes) -> bytes:
    """Encrypt ``data`` to the service; the result is 48 bytes longer.

    >>> secret = signing.new_key()
    >>> decrypt(secret, encrypt(public_key(secret), b"a key", b"h1"), b"h1")
    b'a key'

    :raises errors.NotAuthenticated: ``public`` is no key
    """
    own = x25519.X25519PrivateKey.generate()
    own_public = own.public_key().public_bytes_raw()
    try:
        shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError as e:
        raise errors.NotAuthenticated("the decision service's key", str(e)) from e
    return own_public + _cipher(shared, own_public, public).encrypt(_NONCE, data, associated_data)


def decrypt(secret_pem: bytes, encrypted: bytes, associated_data: bytes) -> bytes:
    """Decrypt a message, or raise NotAuthenticated."""
    key, sender_public = _key_of(secret_pem), encrypted[:PUBLIC_BYTES]
    try:
        shared = key.exchange(x25519.X25519PublicKey.from_public_bytes(sender_public))
        cipher = _cipher(shared, sender_public, key.public_key().public_bytes_raw())
        return cipher.decrypt(_NONCE, encrypted[PUBLIC_BYTES:], associated_data)
    except (ValueError, exceptions.InvalidTag) as e:
        why = "it cannot be decrypted with the current key"
        raise errors.NotAuthenticated("an encrypted message", why) from e


def _key_of(secret_pem: bytes) -> x25519.X25519PrivateKey:
    seed = signing.read_key(secret_pem).private_bytes_raw()
    return x25519.X25519PrivateKey.from_private_bytes(_derived(seed, "the service's key"))


def _cipher(shared: bytes, own_public: bytes, public: bytes) -> aead.AESGCM:
    return aead.AESGCM(_derived(shared + own_public + public, "the key of a message"))


def _derived(data: bytes, what: str) -> bytes:
    return blake3.blake3(data, derive_key_context=_CONTEXT + what).digest()
