# SPDX-License-Identifier: Apache-2.0
"""Priorities: why a chunk is fetched."""

import enum


class Priority(enum.IntEnum):
    """The priorities, most urgent first.

    >>> Priority.GUEST < Priority.READAHEAD, Priority.GUEST.at_peer, Priority.HYDRATE.at_peer
    (True, <Priority.PEER: 1>, <Priority.PREFETCH: 7>)
    """

    GUEST = 0  # a guest of this host waits
    PEER = 1  # a guest of another host waits
    READAHEAD = 2  # a guest of any host is about to read it
    PRE_SEED = 3  # an operator pre-seeds the image
    FLATTEN = 4  # a disk is flattened
    ADVERTISED = 5  # a neighbour announced it, so guests here may read it
    HYDRATE = 6  # an image in use is hydrated
    PREFETCH = 7  # another host prefetches it

    @property
    def at_peer(self) -> "Priority":
        """The priority that a request to a peer shows: PEER, READAHEAD or PREFETCH."""
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
_HERE = _P.PRE_SEED, _P.FLATTEN, _P.HYDRATE
_AT_PEER = (_P.PEER, _P.PEER, _P.READAHEAD, *5 * [_P.PREFETCH])
