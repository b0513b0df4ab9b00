# SPDX-License-Identifier: Apache-2.0
"""Priorities: why a chunk is fetched.  They order requests, choose places and limit transfers."""

import enum


class Priority(enum.IntEnum):
    """The reasons, most urgent first.

    >>> Priority.GUEST < Priority.SOON, Priority.GUEST.at_peer, Priority.WHOLE.at_peer
    (True, <Priority.PEER: 1>, <Priority.LATER: 7>)
    """

    GUEST = 0  # a guest of this host waits
    PEER = 1  # a guest of another host waits
    SOON = 2  # a guest, here or on another host, is about to read it
    SEED = 3  # an operator wants the image here; no guest does yet
    FLATTEN = 4  # a disk takes over what it reads from its image
    ADVERTISED = 5  # a neighbour has it, so guests here may want it
    WHOLE = 6  # an image that is used here becomes whole
    LATER = 7  # another host wants it, and nobody waits there

    @property
    def at_peer(self) -> "Priority":
        """What it is for a peer that is asked: a host's own reasons are nobody else's business."""
        return _AT_PEER[self]

    @property
    def is_urgent(self) -> bool:
        """Say whether somebody waits for it, here or elsewhere."""
        return self <= Priority.PEER

    @property
    def is_for_this_host(self) -> bool:
        """Say whether the reason is that it is to be here, whoever else has it."""
        return self in _HERE

    @property
    def asks_holders_only(self) -> bool:
        """Say whether only those who advertised it are asked: it is not worth a source's read."""
        return self is Priority.ADVERTISED


_P = Priority
_HERE = _P.SEED, _P.FLATTEN, _P.WHOLE
_AT_PEER = (_P.PEER, _P.PEER, _P.SOON, *5 * [_P.LATER])
