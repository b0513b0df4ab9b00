# SPDX-License-Identifier: Apache-2.0
"""Encoded lists of names, as vault clients send them."""

from collections.abc import Iterable


def pack_names(names: Iterable[bytes]) -> bytes:
    """Return names as an encoded list."""
    return b"".join(sorted(set(names)))
