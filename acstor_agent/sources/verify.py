# SPDX-License-Identifier: Apache-2.0
"""Checks bytes against their CID: what does not match is never passed on.

The check is one function, because bytes from peers go through it as well.
"""

from acstor_agent.sources import base
from acstor_common import errors
from acstor_common import ids


def check_chunk(
    data: bytes | bytearray | memoryview, cid: ids.Cid, what: object, where: object
) -> None:
    """Refuse bytes that are not the chunk they should be.

    :param what: the chunk; its words are made only for the error
    :param where: the place that gave the bytes, likewise
    :raises errors.ChunkInvalid: ``data`` does not hash to ``cid``
    """
    actual = ids.cid_of(data)
    if actual != cid:
        raise errors.ChunkInvalid(
            str(what),
            str(where),
            f"the CID is {actual.hex()} instead of {cid.hex()} ({len(data)} bytes)",
        )


class VerifySource(base.Wrapper):
    """Verifies every read that says what its bytes must hash to; the others pass unseen.

    A chunk is hashed in the trio thread: 64 KiB take about 15 us, less than a thread costs.
    """

    async def read(
        self, blob: base.Blob, offset: int, length: int, cid: ids.Cid | None = None
    ) -> bytes:
        """Read, and raise ChunkInvalid if the bytes do not hash to ``cid``."""
        data = await self._inner.read(blob, offset, length, cid)
        if cid is not None:
            check_chunk(data, cid, blob.part(offset, length), self.where)
        return data
