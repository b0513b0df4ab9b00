# SPDX-License-Identifier: Apache-2.0
"""Priorities: why a chunk is fetched."""

import enum


class Priority(enum.IntEnum):
    """The priorities, most urgent first.

    >>> Priority.GUEST < Priority.SOON, Priority.GUEST.at_peer, Priority.WHOLE.at_peer
    (True, <Priority.PEER: 1>, <Priority.LATER: 7>)
    """

    GUEST = 0  # a guest of this host waits
    PEER = 1  # a guest of another host waits
    SOON = 2  # a guest of any host is about to read it
    SEED = 3  # an operator pre-seeds the image
    FLATTEN = 4  # a disk is flattened
    ADVERTISED = 5  # a neighbour announced it, so guests here may read it
    WHOLE = 6  # an image in use is hydrated
    LATER = 7  # another host prefetches it

    @property
    def at_peer(self) -> "Priority":
        """The priority that a request to a peer shows: PEER, SOON or LATER."""
        return _AT_PEER[self]

    @property
    def is_urgent(self) -> bool:
        """Whether a guest waits, on any host."""
        return self <= Priority.PEER

    @property
    def is_for_this_host(self) -> bool:
        """Whether the chunk must be cached here, whichever other host has it."""
        return self in _HERE

    @property
    def asks_holders_only(self) -> bool:
        """Whether only holders are asked, never the home or the source."""
        return self is Priority.ADVERTISED


_P = Priority
_HERE = _P.SEED, _P.FLATTEN, _P.WHOLE
_AT_PEER = (_P.PEER, _P.PEER, _P.SOON, *5 * [_P.LATER])
