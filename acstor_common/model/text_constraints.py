# SPDX-License-Identifier: Apache-2.0
"""Regular expressions for text from untrusted input."""

from typing import Annotated

import msgspec

from acstor_common.model import ids


def full_match(pattern: str) -> msgspec.Meta:
    r"""Return a constraint that the pattern, without anchors, matches the whole text.

    ``$`` also matches before a final newline; JSON Schema's expressions (ECMA 262) lack ``\Z``.
    """
    return msgspec.Meta(pattern=rf"^(?:{pattern})$(?!\n)")


def text_without_nul(max_length: int) -> msgspec.Meta:
    """Return a constraint on text that every database takes: no zero character."""
    return msgspec.Meta(pattern=r"^[^\x00]*$", max_length=max_length)


_UUID = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
Uuid = Annotated[str, full_match(_UUID)]
OptionalUuid = Annotated[str, full_match(f"({_UUID})?")]
HostName = Annotated[str, full_match(ids.HOST_ID.pattern)]
Hex64 = Annotated[str, full_match("[0-9a-f]{64}")]  # a BLAKE3 or SHA-256 hash, or a 32-byte key
OptionalHex32 = Annotated[str, full_match("([0-9a-f]{32})?")]  # 16 bytes, or empty
OptionalHex64 = Annotated[str, full_match("([0-9a-f]{64})?")]  # a Hex64, or empty
