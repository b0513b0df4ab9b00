# SPDX-License-Identifier: Apache-2.0
"""What one host wants of another, or of the source: one chunk, and then its bytes."""

from typing import NamedTuple

from acstor_common import ids

Bytes = bytes | bytearray | memoryview


class Want(NamedTuple):
    """One chunk that is to be had: by place (to find it) and by content (to check it).

    :param keys: of the scopes of the image's chunk map; without them a keyed CID cannot be checked
    """

    image_id: ids.ImageId
    offset: int
    length: int
    cid: ids.Cid
    keys: tuple[ids.ScopeKey, ...] = ()

    @property
    def content(self) -> ids.Content:
        """What the bytes must be."""
        return ids.Content(self.cid, self.keys)

    def __str__(self) -> str:
        return f"chunk {self.cid.hex()[:12]} (image {self.image_id}, byte {self.offset})"
