# SPDX-License-Identifier: Apache-2.0
"""References to chunks: by content, to check the bytes, and by place, to find them."""

from typing import NamedTuple

from acstor_agent.engine import priority as priority_
from acstor_common import ids
from acstor_common import peer_request

Key = tuple[ids.Cid, ids.Oid, int, tuple[ids.ScopeKey, ...]]


class ChunkRef(NamedTuple):
    """A chunk that is to be had.

    :param oid: its name among hosts (``engine.identity``)
    :param keys: of the scopes of the image; without them a keyed CID cannot be checked
    """

    cid: ids.Cid
    oid: ids.Oid
    image_id: ids.ImageId
    offset: int
    length: int
    keys: tuple[ids.ScopeKey, ...] = ()

    @property
    def key(self) -> "Key":
        """What is one and the same for all who want it: else one's keys would judge another's."""
        return self[0], self[1], self[4], self[5]

    @property
    def content(self) -> ids.Content:
        """What the bytes must be."""
        return ids.Content(self.cid, self.keys)


class Request(NamedTuple):
    """What a peer asks for: nothing of it is believed before ``authorization`` has authorized it.

    :param number: of the request on its connection
    :param proof: that the peer knows the CID (``peer_request.proof_of``)
    :param timeout_s: so long the peer waits
    """

    number: int
    image_id: ids.ImageId
    offset: int
    length: int
    proof: bytes
    mode: peer_request.Mode
    priority: priority_.Priority
    timeout_s: float
