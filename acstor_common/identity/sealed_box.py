# SPDX-License-Identifier: Apache-2.0
"""Messages that cross the message bus and that only the decision service can read.

X25519 with a key that the sender makes for one message, BLAKE3 to derive a key of both, and
AES-256-GCM.  The service's key follows from the one that it signs with, so that there is none
more to keep and to renew, and the derived one gives nothing of that away.

Who sends has seen the service's signature under the public key, else he would
conceal it from anybody but who gave him another one.
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
_NONCE: Final = bytes(12)  # each key is of one message


def public_key(secret_pem: bytes) -> bytes:
    """Return what messages to the service are concealed with.

    :param secret_pem: the key that it signs with
    :raises errors.NotAuthenticated: see :func:`signing.read_key`
    """
    return _key_of(secret_pem).public_key().public_bytes_raw()


def encrypt(public: bytes, data: bytes, said: bytes) -> bytes:
    """Return ``data`` as only the service can read it, longer by 48 bytes.

    >>> secret = signing.new_key()
    >>> decrypt(secret, encrypt(public_key(secret), b"a key", b"h1"), b"h1")
    b'a key'

    :param public: see :func:`public_key`
    :param said: what the reader knows anyhow, and is to be the same
    :raises errors.NotAuthenticated: ``public`` is no key
    """
    own = x25519.X25519PrivateKey.generate()
    own_public = own.public_key().public_bytes_raw()
    try:
        shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError as e:
        raise errors.NotAuthenticated("the decision service's key", str(e)) from e
    return own_public + _cipher(shared, own_public, public).encrypt(_NONCE, data, said)


def decrypt(secret_pem: bytes, concealed: bytes, said: bytes) -> bytes:
    """Return what was concealed.

    :raises errors.NotAuthenticated: it was not, for this service, or was altered
    """
    key, theirs = _key_of(secret_pem), concealed[:PUBLIC_BYTES]
    try:
        shared = key.exchange(x25519.X25519PublicKey.from_public_bytes(theirs))
        cipher = _cipher(shared, theirs, key.public_key().public_bytes_raw())
        return cipher.decrypt(_NONCE, concealed[PUBLIC_BYTES:], said)
    except (ValueError, exceptions.InvalidTag) as e:
        why = "it cannot be read with the key of now"
        raise errors.NotAuthenticated("a concealed message", why) from e


def _key_of(secret_pem: bytes) -> x25519.X25519PrivateKey:
    seed = signing.read_key(secret_pem).private_bytes_raw()
    return x25519.X25519PrivateKey.from_private_bytes(_derived(seed, "the service's key"))


def _cipher(shared: bytes, own_public: bytes, public: bytes) -> aead.AESGCM:
    return aead.AESGCM(_derived(shared + own_public + public, "the key of a message"))


def _derived(data: bytes, what: str) -> bytes:
    return blake3.blake3(data, derive_key_context=_CONTEXT + what).digest()
