# SPDX-License-Identifier: Apache-2.0
"""Of what form a text from outside has to be."""

from typing import Annotated

import msgspec


def full_match(pattern: str) -> msgspec.Meta:
    r"""Let a text pass that is of the pattern from its beginning to its end.

    A dollar matches before a newline at the end, too. ``\Z`` does not, yet JSON Schema, in
    which the interfaces are published, has ECMA 262's expressions, and those have none.

    :param pattern: a regular expression that Python and ECMA 262 read alike, without anchors
    """
    return msgspec.Meta(pattern=rf"^(?:{pattern})$(?!\n)")


Hex64 = Annotated[str, full_match("[0-9a-f]{64}")]
"""A BLAKE3 or SHA-256, or a key of 32 bytes."""
OptionalHex64 = Annotated[str, full_match("([0-9a-f]{64})?")]
"""The same, or the empty text where there is none."""
