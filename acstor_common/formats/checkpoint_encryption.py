# SPDX-License-Identifier: Apache-2.0
"""How chunks and manifests of a checkpoint are sealed, before they leave the host.

Whoever keeps them can neither read nor change them, and learns no more than how many
there are and how long.  All follows from the 32 random bytes that a disk's key is:
``doc/source/format/checkpoint.rst`` has every byte.

The one rule: no nonce stands for two plaintexts.  So it is not made of a chunk's name but of
the very bytes that are encrypted (a synthetic nonce, as in RFC 8452): the same chunk may
be compressed to other bytes by another version of zstd, and AES-GCM that encrypts two
plaintexts with one nonce gives away what they differ in, and the key of its tags.

A name is a keyed CID (:mod:`acstor_common.model.ids`) of a scope that the disk has for itself: the
same bytes of one disk travel once, and nobody without the key can tell what a name stands for.
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
_ALTERED: Final = "it was altered, or is another one's"
_SAID_BYTES: Final = 4  # of the head, which the tag covers beside the name; so does the nonce
_TAG_BYTES: Final = 16
SEAL_BYTES: Final = _HEAD.size + _TAG_BYTES
"""What a sealed thing is longer than what is in it."""
MAX_SEALED_BYTES: Final = geometry.MAX_CHUNK_BYTES + SEAL_BYTES
"""Of a chunk: one that zstd would make longer is sealed as it is."""
LEVEL: Final = 1
"""Of zstd: higher ones give 5 % for twice the time, of which a guest's host has little."""

_CONTEXT: Final = "acstor 2026-11 checkpoint: "
_MANIFEST: Final = b"manifest"
_ZEROS: Final = bytes(geometry.MAX_CHUNK_BYTES)
_PIECE_BYTES: Final = 1 << 20

Data = bytes | bytearray | memoryview


class _OfThread(threading.local):
    """A compressor for each thread: making one takes longer than a chunk."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdCompressor(level=LEVEL)


_of_thread = _OfThread()


class Seal:
    """Seals and opens what is kept of one disk; may be used by many threads.

    >>> seal = Seal(bytes(range(32)))
    >>> name = seal.name(b"bytes of a disk")
    >>> seal.open(name, seal.close(name, b"bytes of a disk"), 15, "a holder")
    b'bytes of a disk'

    :param key: of the disk, KEY_BYTES random bytes
    :raises ValueError: it is none
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES or not any(key):
            raise ValueError(f"a disk's key of {KEY_BYTES} random bytes is needed")
        self.scope_key = ids.ScopeKey(_derived(key, "names of chunks"))
        """What names are keyed with, for a chunk map that has them."""
        self._chunks = _Cipher(_derived(key, "chunks"), _derived(key, "nonces of chunks"))
        self._manifests = _Cipher(_derived(key, "manifests"), _derived(key, "nonces of manifests"))

    def chunk_name(self, plain: Data) -> ids.Cid:
        """Return the name of a chunk; ``ids.ZERO_CID``, which is never sealed, if it is zeros."""
        if _ZEROS.startswith(plain):
            return ids.ZERO_CID
        return ids.cid_of(plain, self.scope_key)

    def close(self, name: ids.Cid, plain: Data) -> bytes:
        """Return a chunk as others may keep it.

        :param name: what :meth:`chunk_name` returned for these bytes, which are not all zeros
        :param plain: at most 4 MiB
        """
        packed = _of_thread.zstd.compress(plain)
        if len(packed) < len(plain):
            return self._chunks.close(layout.Codec.ZSTD, name, packed)
        return self._chunks.close(layout.Codec.STORED, name, plain)

    def open(self, name: ids.Cid, sealed: Data, length: int, where: str) -> bytes:
        """Return the bytes of a chunk.

        :param length: that it has on the disk
        :param where: who kept it, for the error
        :raises errors.ChunkInvalid: it was altered or cut, or it is another chunk
        """
        what = f"chunk {name.hex()}"
        try:
            codec, stored = self._chunks.open(name, sealed, length)
            plain = codecs.decode(codec, stored, length)
        except (ValueError, codecs.CodecError) as e:
            raise errors.ChunkInvalid(what, where, str(e)) from e
        if not hmac.compare_digest(ids.cid_of(plain, self.scope_key), name):
            raise errors.ChunkInvalid(what, where, "its name is another one's")
        return bytes(plain)

    def close_manifest(self, plain: Data) -> bytearray:
        """Return a manifest as others may keep it; see :meth:`close_manifest_in_place`."""
        return self.close_manifest_in_place(bytearray(plain))

    def close_manifest_in_place(self, data: bytearray) -> bytearray:
        """Return a manifest as others may keep it, which takes its place: one may have 80 MiB.

        :func:`manifest_name` has its name.
        """
        self._manifests.close_in_place(layout.Codec.STORED, _MANIFEST, data)
        return data

    def open_manifest(self, sealed: Data, max_bytes: int) -> bytearray:
        """Return what was sealed as a manifest; see :meth:`open_manifest_in_place`."""
        return self.open_manifest_in_place(bytearray(sealed), max_bytes)

    def open_manifest_in_place(self, data: bytearray, max_bytes: int) -> bytearray:
        """Return what was sealed as a manifest, which takes its place: one may have 80 MiB.

        :param max_bytes: that it may have
        :raises errors.NotAuthenticated: it was altered or cut, or is of another disk
        """
        try:
            codec = self._manifests.open_in_place(_MANIFEST, data, max_bytes)
        except ValueError as e:
            raise errors.NotAuthenticated("a manifest", str(e)) from e
        if codec is not layout.Codec.STORED:
            raise errors.NotAuthenticated("a manifest", f"codec {codec} is not one of manifests")
        return data


def manifest_name(sealed: Data) -> bytes:
    """Return what a sealed manifest is called: BLAKE3 of its bytes, which everybody can check."""
    return blake3.blake3(sealed, max_threads=1).digest()


class _Cipher:
    """AES-256-GCM with a synthetic nonce."""

    def __init__(self, key: bytes, nonce_key: bytes) -> None:
        self._aead, self._nonce_key = aead.AESGCM(key), nonce_key
        self._aes = algorithms.AES256(key)

    def close(self, codec: layout.Codec, name: bytes, stored: Data) -> bytes:
        head, nonce = self._head(codec, name, stored)
        return head + self._aead.encrypt(nonce, stored, head[:_SAID_BYTES] + name)

    def close_in_place(self, codec: layout.Codec, name: bytes, data: bytearray) -> None:
        """Seal bytes where they lie."""
        head, nonce = self._head(codec, name, data)
        cipher = ciphers.Cipher(self._aes, modes.GCM(nonce)).encryptor()
        cipher.authenticate_additional_data(head[:_SAID_BYTES] + name)
        _in_place(cipher, data)
        cipher.finalize()
        data[:0] = head
        data += cipher.tag

    def _head(self, codec: layout.Codec, name: bytes, stored: Data) -> tuple[bytes, bytes]:
        digest = blake3.blake3(name, key=self._nonce_key)
        nonce = digest.update(bytes([codec])).update(stored).digest(12)
        return _HEAD.pack(VERSION, codec, nonce), nonce

    def open(self, name: bytes, sealed: Data, max_bytes: int) -> tuple[layout.Codec, bytes]:
        """Return what was sealed under ``name``, and its codec.

        :raises ValueError: it is not to be believed, or longer than ``max_bytes``
        """
        codec, nonce = _opened_head(sealed, max_bytes)
        said = bytes(sealed[:_SAID_BYTES]) + name
        try:
            stored = self._aead.decrypt(nonce, memoryview(sealed)[_HEAD.size :], said)
        except exceptions.InvalidTag:
            raise ValueError(_ALTERED) from None
        return layout.Codec(codec), stored

    def open_in_place(self, name: bytes, data: bytearray, max_bytes: int) -> layout.Codec:
        """Open bytes where they lie; return their codec.

        :raises ValueError: as of :meth:`open`; the bytes are of no use then
        """
        codec, nonce = _opened_head(data, max_bytes)
        said, tag = bytes(data[:_SAID_BYTES]) + name, bytes(data[-_TAG_BYTES:])
        cipher = ciphers.Cipher(self._aes, modes.GCM(nonce, tag)).decryptor()
        cipher.authenticate_additional_data(said)
        del data[: _HEAD.size], data[-_TAG_BYTES:]
        _in_place(cipher, data)
        try:
            cipher.finalize()
        except exceptions.InvalidTag:
            raise ValueError(_ALTERED) from None
        return layout.Codec(codec)


def _opened_head(sealed: Data, max_bytes: int) -> tuple[int, bytes]:
    """Return codec and nonce.

    :raises ValueError: it has another length or version
    """
    if not SEAL_BYTES <= len(sealed) <= max_bytes + SEAL_BYTES:
        raise ValueError(f"{len(sealed)} bytes are not its length")
    version, codec, nonce = _HEAD.unpack_from(sealed)
    if version != VERSION:
        raise ValueError(f"format version {version} is not known (only {VERSION} is)")
    return codec, nonce


def _in_place(cipher: ciphers.CipherContext, data: bytearray) -> None:
    with memoryview(data) as view:
        for at in range(0, len(view), _PIECE_BYTES):
            piece = view[at : at + _PIECE_BYTES]
            piece[:] = cipher.update(piece)


def _derived(key: bytes, what: str) -> bytes:
    return blake3.blake3(key, derive_key_context=_CONTEXT + what).digest()
