# SPDX-License-Identifier: Apache-2.0
"""Verifies bytes against their CID."""

from acstor_common import errors
from acstor_common.model import ids


def check_chunk(
    data: bytes | bytearray | memoryview, content: ids.Content, what: object, where: object
) -> None:
    """Verify bytes, or raise ChunkInvalid if ``data`` does not match ``content``."""
    if not content.matches_data(data):
        raise mismatch(data, content, what, where)


def mismatch(
    data: bytes | bytearray | memoryview, content: ids.Content, what: object, where: object
) -> errors.ChunkInvalid:
    """Return the error for bytes that do not match."""
    cid, keys = content
    if ids.is_keyed(cid) and not keys:
        why = f"the key of its CID {cid.hex()} is not known"
    else:
        actual = ids.cid_of(data, keys[0] if ids.is_keyed(cid) else None)
        why = f"the CID is {actual.hex()} instead of {cid.hex()} ({len(data)} bytes)"
    return errors.ChunkInvalid(str(what), str(where), why)
