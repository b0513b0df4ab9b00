# SPDX-License-Identifier: Apache-2.0
"""Common beginning of the file formats: magic, version, fields, and their checksum."""

import struct
from typing import Any
from typing import Final

import blake3

from acstor_common import errors

Buffer = bytes | bytearray | memoryview
DIGEST_BYTES: Final = 32
AT_VERSION: Final = 8  # offset of the version: a magic has eight bytes


class FileHeader:
    """Layout of a header, little-endian.

    :param kind: noun with its article, for errors: ``a chunk map``
    :param fields: ``struct`` format of the fields behind magic and version
    :param has_checksum: BLAKE3 of all before it ends the header
    """

    def __init__(
        self,
        kind: str,
        magic: bytes,
        version: int,
        fields: str,
        error: type[errors.FormatError],
        *,
        has_checksum: bool = True,
    ) -> None:
        self._kind, self._magic, self._version, self._error = kind, magic, version, error
        self._struct = struct.Struct(f"<8sH{fields}")
        self.struct_bytes = self._struct.size  # without the checksum
        self.size_bytes = self.struct_bytes + DIGEST_BYTES * has_checksum

    def pack(self, *fields: Any) -> bytes:
        """Return a header."""
        packed = self._struct.pack(self._magic, self._version, *fields)
        return packed + self._checksum(packed)

    def unpack(self, buffer: Buffer, what: str) -> tuple[Any, ...]:
        """Return the fields at the start of ``buffer``; ``what`` names it in errors.

        :raises errors.FormatError: of the class ``error``: another format or version, cut, damaged
        """
        magic, size_bytes = self._magic, len(buffer)
        if not size_bytes or buffer[: len(magic)] != magic[:size_bytes]:
            raise self._error(what, 0, f"not {self._kind}")
        if size_bytes < self.size_bytes:
            raise self._error(what, size_bytes, "truncated in the header")
        _, version, *fields = self._struct.unpack_from(buffer)
        if version != self._version:
            why = f"format version {version} is not known (only {self._version} is)"
            raise self._error(what, AT_VERSION, why)
        if buffer[self.struct_bytes : self.size_bytes] != self._checksum(buffer):
            raise self._error(what, self.struct_bytes, "the header's checksum does not match")
        return tuple(fields)

    def _checksum(self, buffer: Buffer) -> bytes:
        if self.size_bytes == self.struct_bytes:
            return b""
        return blake3.blake3(buffer[: self.struct_bytes]).digest()
