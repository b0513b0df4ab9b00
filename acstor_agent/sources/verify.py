# SPDX-License-Identifier: Apache-2.0
"""Checks bytes against their CID: what does not match is never passed on.

The check is one function, because bytes from peers go through it as well.
"""

from acstor_agent.sources import base
from acstor_common import errors
from acstor_common import ids


def check_chunk(
    data: bytes | bytearray | memoryview, content: ids.Content, what: object, where: object
) -> None:
    """Refuse bytes that are not the chunk they should be.

    :param what: the chunk; its words are made only for the error
    :param where: the place that gave the bytes, likewise
    :raises errors.ChunkInvalid: ``data`` does not match ``content``
    """
    if content.matches(data):
        return
    cid, keys = content
    if ids.is_keyed(cid) and not keys:
        raise errors.ChunkInvalid(
            str(what), str(where), f"the key of its CID {cid.hex()} is not known"
        )
    actual = ids.cid_of(data, keys[0] if ids.is_keyed(cid) else None)
    why = f"the CID is {actual.hex()} instead of {cid.hex()} ({len(data)} bytes)"
    raise errors.ChunkInvalid(str(what), str(where), why)


class VerifySource(base.Wrapper):
    """Verifies every read that says what its bytes must hash to; the others pass unseen.

    A chunk is hashed in the trio thread: 64 KiB take about 15 us, less than a thread costs.
    """

    async def read(
        self, blob: base.Blob, offset: int, length: int, content: ids.Content | None = None
    ) -> bytes:
        """Read, and raise ChunkInvalid if the bytes are not ``content``."""
        data = await self._inner.read(blob, offset, length, content)
        if content is not None:
            check_chunk(data, content, blob.part(offset, length), self.where)
        return data
