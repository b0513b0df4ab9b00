# SPDX-License-Identifier: Apache-2.0
"""Encryption of frames between agents: AES-256-GCM (NIST SP 800-38D).

The nonce is the frame's number in its direction: lost, repeated or reordered frames fail.  Each
direction's key derives from secrets exchanged over TLS; TLS itself costs ten times the cipher.
"""

from collections.abc import Sequence
from typing import NamedTuple

import blake3
from cryptography import exceptions
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import modes

MAC_BYTES = 16
SECRET_BYTES = 32
_NONCE_BYTES = 12

LENGTH_BYTES = 4
REKEY_BYTES = 1 << 36  # bytes per key, plus a frame; RFC 8446 (5.5) allows TLS five times as many

_NEXT_CONTEXT = "acstor 2026-11 peer protocol 3: the next key of a direction"
_CLIENT_CONTEXT = "acstor 2026-11 peer protocol 3: frames of the client"
_SERVER_CONTEXT = "acstor 2026-11 peer protocol 3: frames of the server"

Buffer = bytes | bytearray | memoryview


class Encryption:
    """Encrypts or decrypts one direction's frames, in order, as records: length, frame, tag.

    >>> ours, theirs = Encryption(bytes(32)), Encryption(bytes(32))
    >>> record = ours.encrypt([b"a ", b"frame"])
    >>> len(record), bytes(theirs.decrypt(memoryview(record)))
    (27, b'a frame')
    """

    def __init__(self, key: bytes, rekey_bytes: int = REKEY_BYTES) -> None:
        self._key, self._aes = key, algorithms.AES(key)
        self._rekey_bytes = self._left_bytes = rekey_bytes
        self._number = 0

    def encrypt(self, parts: Sequence[Buffer]) -> bytearray:
        """Return the record of the frame that ``parts`` form."""
        length = sum(map(len, parts))
        record = bytearray(LENGTH_BYTES + length + MAC_BYTES)
        view, at = memoryview(record), LENGTH_BYTES
        record[:LENGTH_BYTES] = length.to_bytes(LENGTH_BYTES, "big")
        nonce = self._next_nonce(length)  # may change the key
        encryptor = ciphers.Cipher(self._aes, modes.GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(view[:LENGTH_BYTES])
        for part in parts:
            at += encryptor.update_into(part, view[at:])
        encryptor.finalize()
        view[at:] = encryptor.tag
        return record

    def decrypt(self, record: memoryview) -> memoryview:
        """Decrypt a record in place; ValueError if it is not the next one."""
        frame = record[LENGTH_BYTES:-MAC_BYTES]
        nonce, tag = self._next_nonce(len(frame)), bytes(record[-MAC_BYTES:])
        decryptor = ciphers.Cipher(self._aes, modes.GCM(nonce)).decryptor()
        decryptor.authenticate_additional_data(record[:LENGTH_BYTES])
        decryptor.update_into(frame, record[LENGTH_BYTES:])
        try:
            decryptor.finalize_with_tag(tag)
        except exceptions.InvalidTag:
            raise ValueError("a frame was changed on its way: its MAC is wrong") from None
        return frame

    def _next_nonce(self, length: int) -> bytes:
        """Return the next frame's nonce; derive the next key first if due."""
        if self._left_bytes <= 0:
            self._key = blake3.blake3(self._key, derive_key_context=_NEXT_CONTEXT).digest()
            self._aes, self._left_bytes = algorithms.AES(self._key), self._rekey_bytes
        self._left_bytes -= length
        nonce = self._number.to_bytes(_NONCE_BYTES, "big")
        self._number += 1
        return nonce


class Keys(NamedTuple):
    """The keys of a connection: of the frames that each side sends."""

    client: bytes
    server: bytes


def keys(client_secret: bytes, server_secret: bytes) -> Keys:
    """Derive the keys of a connection from the secrets of both sides."""
    material = client_secret + server_secret
    return Keys(
        *(
            blake3.blake3(material, derive_key_context=context).digest()
            for context in (_CLIENT_CONTEXT, _SERVER_CONTEXT)
        )
    )
