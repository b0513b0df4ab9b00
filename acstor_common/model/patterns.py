# SPDX-License-Identifier: Apache-2.0
"""Regular expressions for text from untrusted input."""

from typing import Annotated

import msgspec


def full_match(pattern: str) -> msgspec.Meta:
    r"""Return a constraint that the pattern, without anchors, matches the whole text.

    ``$`` also matches before a final newline; JSON Schema's expressions (ECMA 262) lack ``\Z``.
    """
    return msgspec.Meta(pattern=rf"^(?:{pattern})$(?!\n)")


Hex64 = Annotated[str, full_match("[0-9a-f]{64}")]  # a BLAKE3 or SHA-256 hash, or a 32-byte key
OptionalHex64 = Annotated[str, full_match("([0-9a-f]{64})?")]  # the same, or empty
