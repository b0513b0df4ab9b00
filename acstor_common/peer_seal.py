# SPDX-License-Identifier: Apache-2.0
"""Message authentication codes of frames between agents whose bytes are not encrypted.

The one rule: a code covers all of a frame and the frame's number, so what was
changed, left out, doubled or moved on its way is found out by the next code.

GMAC with AES-256 (NIST SP 800-38D), whose nonce is the frame's number: of 64 KiB it
takes a third of the time of BLAKE3 in its keyed mode.  A key for each direction is
derived from the secrets that both sides sent each other inside TLS.
"""

from typing import NamedTuple

import blake3
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import aead
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import modes

MAC_BYTES = 16
SECRET_BYTES = 32
_NONCE_BYTES = 12

_CLIENT_CONTEXT = "acstor 2026-11 peer protocol 3: frames of the client"
_SERVER_CONTEXT = "acstor 2026-11 peer protocol 3: frames of the server"

Buffer = bytes | bytearray | memoryview


class Seal:
    """Computes the codes of one direction of a connection, frame after frame.

    >>> ours, theirs = Seal(bytes(32)), Seal(bytes(32))
    >>> ours.next(b"frame") == theirs.next(b"frame")
    True
    >>> ours.next(b"frame") == theirs.next(b"other")
    False

    :param key: 32 bytes that nobody but the two sides knows
    """

    def __init__(self, key: bytes) -> None:
        self._whole = aead.AESGCM(key)
        self._in_parts = algorithms.AES(key)
        self._number = 0

    def next(self, *parts: Buffer) -> bytes:
        """Return the code of the next frame, which consists of ``parts``."""
        nonce = self._number.to_bytes(_NONCE_BYTES, "big")
        self._number += 1
        if len(parts) == 1:
            return self._whole.encrypt(nonce, b"", parts[0])
        encryptor = ciphers.Cipher(self._in_parts, modes.GCM(nonce)).encryptor()
        for part in parts:  # a chunk is not copied to stand behind its header
            encryptor.authenticate_additional_data(part)
        encryptor.finalize()
        return encryptor.tag


class Keys(NamedTuple):
    """Keys of a connection's two directions."""

    client: bytes
    server: bytes


def keys(client_secret: bytes, server_secret: bytes) -> Keys:
    """Return the keys that follow from what both sides have sent each other in secret.

    >>> made = keys(bytes(32), bytes(32))
    >>> len(made.client), made.client == made.server
    (32, False)
    """
    material = client_secret + server_secret
    return Keys(
        *(
            blake3.blake3(material, derive_key_context=context).digest()
            for context in (_CLIENT_CONTEXT, _SERVER_CONTEXT)
        )
    )
