# SPDX-License-Identifier: Apache-2.0
"""Encryption of checkpoints' chunks and manifests (``doc/source/format/checkpoint.rst``).

Holders can neither read nor change them; they learn their number and lengths.  All keys derive from
the disk's key of 32 random bytes.  A chunk's name is a CID keyed for the disk: equal chunks are
sent once, and the name reveals nothing without the key.

AES-GCM must not encrypt two plaintexts with one nonce, and another version of zstd may compress a
chunk to other bytes: the nonce derives from these (a synthetic nonce, RFC 8452), not from the name.
"""

import hmac
import struct
import threading
from typing import Final

import blake3
import zstandard
from cryptography import exceptions
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import aead
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import modes

from acstor_common import errors
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids

KEY_BYTES: Final = 32
VERSION: Final = 1
_HEAD: Final = struct.Struct("<BB2x12s")  # version, codec, reserved, nonce
_ALTERED: Final = "it was altered, or belongs to another object"
_ASSOCIATED_BYTES: Final = 4  # of the head, authenticated with the name
_TAG_BYTES: Final = 16
SEAL_BYTES: Final = _HEAD.size + _TAG_BYTES  # overhead of sealing
MAX_SEALED_BYTES: Final = geometry.MAX_CHUNK_BYTES + SEAL_BYTES
"""Of a chunk: incompressible chunks are stored uncompressed."""
LEVEL: Final = 1  # of zstd: higher levels save 5 % for twice the CPU time

_CONTEXT: Final = "acstor 2026-11 checkpoint: "
_MANIFEST: Final = b"manifest"
_ZEROS: Final = bytes(geometry.MAX_CHUNK_BYTES)
_PIECE_BYTES: Final = 1 << 20

Data = bytes | bytearray | memoryview


class _ThreadState(threading.local):
    """A compressor per thread: creating one takes longer than compressing a chunk."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdCompressor(level=LEVEL)


_thread_state = _ThreadState()


class Seal:
    """Encrypts and decrypts checkpoint data of one disk; thread-safe.  ValueError: a bad key.

    >>> seal = Seal(bytes(range(32)))
    >>> name = seal.chunk_name(b"bytes of a disk")
    >>> seal.open(name, seal.close(name, b"bytes of a disk"), 15, "a holder")
    b'bytes of a disk'
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES or not any(key):
            raise ValueError(f"a disk's key of {KEY_BYTES} random bytes is needed")
        self.scope_key = ids.ScopeKey(_derive_key(key, "names of chunks"))
        """Key of chunk names, for chunk maps."""
        self._chunks = _Cipher(_derive_key(key, "chunks"), _derive_key(key, "nonces of chunks"))
        self._manifests = _Cipher(
            _derive_key(key, "manifests"), _derive_key(key, "nonces of manifests")
        )

    def chunk_name(self, plain: Data) -> ids.Cid:
        """Return the name of a chunk; ``ids.ZERO_CID``, which is never sealed, for zeros."""
        if _ZEROS.startswith(plain):
            return ids.ZERO_CID
        return ids.cid_of(plain, self.scope_key)

    def close(self, name: ids.Cid, plain: Data) -> bytes:
        """Seal a chunk of at most 4 MiB under its :meth:`chunk_name`, which is not ZERO_CID."""
        packed = _thread_state.zstd.compress(plain)
        if len(packed) < len(plain):
            return self._chunks.close(layout.Codec.ZSTD, name, packed)
        return self._chunks.close(layout.Codec.STORED, name, plain)

    def open(self, name: ids.Cid, sealed: Data, length: int, where: str) -> bytes:
        """Decrypt and decompress a chunk of ``length`` bytes on the disk, from holder ``where``.

        :raises errors.ChunkInvalid: altered, cut, or another chunk
        """
        what = f"chunk {name.hex()}"
        try:
            codec, stored = self._chunks.open(name, sealed, length)
            plain = codecs.decode(codec, stored, length)
        except (ValueError, codecs.CodecError) as e:
            raise errors.ChunkInvalid(what, where, str(e)) from e
        if not hmac.compare_digest(ids.cid_of(plain, self.scope_key), name):
            raise errors.ChunkInvalid(what, where, "its name does not match its data")
        return bytes(plain)

    def close_manifest(self, data: bytearray) -> bytearray:
        """Seal a manifest in place, as one may have 80 MiB, and return it."""
        self._manifests.close_in_place(layout.Codec.STORED, _MANIFEST, data)
        return data

    def open_manifest(self, sealed: Data, max_bytes: int) -> bytearray:
        """Return a decrypted copy of a manifest; see :meth:`open_manifest_in_place`."""
        return self.open_manifest_in_place(bytearray(sealed), max_bytes)

    def open_manifest_in_place(self, data: bytearray, max_bytes: int) -> bytearray:
        """Decrypt a manifest in place; NotAuthenticated: altered, of another disk, or too long."""
        try:
            codec = self._manifests.open_in_place(_MANIFEST, data, max_bytes)
        except ValueError as e:
            raise errors.NotAuthenticated("a manifest", str(e)) from e
        if codec is not layout.Codec.STORED:
            raise errors.NotAuthenticated(
                "a manifest", f"codec {codec} is not allowed in manifests"
            )
        return data


def manifest_name(sealed: Data) -> bytes:
    """Return the name of a sealed manifest: BLAKE3 of its bytes."""
    return blake3.blake3(sealed, max_threads=1).digest()


class _Cipher:
    """AES-256-GCM with a synthetic nonce."""

    def __init__(self, key: bytes, nonce_key: bytes) -> None:
        self._aead, self._nonce_key = aead.AESGCM(key), nonce_key
        self._aes = algorithms.AES256(key)

    def close(self, codec: layout.Codec, name: bytes, stored: Data) -> bytes:
        head, nonce = self._head(codec, name, stored)
        return head + self._aead.encrypt(nonce, stored, head[:_ASSOCIATED_BYTES] + name)

    def close_in_place(self, codec: layout.Codec, name: bytes, data: bytearray) -> None:
        head, nonce = self._head(codec, name, data)
        cipher = ciphers.Cipher(self._aes, modes.GCM(nonce)).encryptor()
        cipher.authenticate_additional_data(head[:_ASSOCIATED_BYTES] + name)
        _in_place(cipher, data)
        cipher.finalize()
        data[:0] = head
        data += cipher.tag

    def _head(self, codec: layout.Codec, name: bytes, stored: Data) -> tuple[bytes, bytes]:
        digest = blake3.blake3(name, key=self._nonce_key)
        nonce = digest.update(bytes([codec])).update(stored).digest(12)
        return _HEAD.pack(VERSION, codec, nonce), nonce

    def open(self, name: bytes, sealed: Data, max_bytes: int) -> tuple[layout.Codec, bytes]:
        """Return codec and plaintext; ValueError if altered or longer than ``max_bytes``."""
        codec, nonce = _opened_head(sealed, max_bytes)
        associated_data = bytes(sealed[:_ASSOCIATED_BYTES]) + name
        try:
            stored = self._aead.decrypt(nonce, memoryview(sealed)[_HEAD.size :], associated_data)
        except exceptions.InvalidTag:
            raise ValueError(_ALTERED) from None
        return layout.Codec(codec), stored

    def open_in_place(self, name: bytes, data: bytearray, max_bytes: int) -> layout.Codec:
        """Decrypt in place; as :meth:`open`.  On error the bytes are garbage."""
        codec, nonce = _opened_head(data, max_bytes)
        associated_data, tag = bytes(data[:_ASSOCIATED_BYTES]) + name, bytes(data[-_TAG_BYTES:])
        cipher = ciphers.Cipher(self._aes, modes.GCM(nonce, tag)).decryptor()
        cipher.authenticate_additional_data(associated_data)
        del data[: _HEAD.size], data[-_TAG_BYTES:]
        _in_place(cipher, data)
        try:
            cipher.finalize()
        except exceptions.InvalidTag:
            raise ValueError(_ALTERED) from None
        return layout.Codec(codec)


def _opened_head(sealed: Data, max_bytes: int) -> tuple[int, bytes]:
    if not SEAL_BYTES <= len(sealed) <= max_bytes + SEAL_BYTES:
        raise ValueError(f"a length of {len(sealed)} bytes is invalid")
    version, codec, nonce = _HEAD.unpack_from(sealed)
    if version != VERSION:
        raise ValueError(f"format version {version} is not known (only {VERSION} is)")
    return codec, nonce


def _in_place(cipher: ciphers.CipherContext, data: bytearray) -> None:
    with memoryview(data) as view:
        for at in range(0, len(view), _PIECE_BYTES):
            piece = view[at : at + _PIECE_BYTES]
            piece[:] = cipher.update(piece)


def _derive_key(key: bytes, what: str) -> bytes:
    return blake3.blake3(key, derive_key_context=_CONTEXT + what).digest()
