# SPDX-License-Identifier: Apache-2.0
"""Why a chunk is fetched: that decides who is asked, on which connection, and who goes first."""

import enum

from acstor_agent.core.disk_scheduling import request as requests
from acstor_common import peer_wire


class Errand(enum.IntEnum):
    """The reasons, most urgent first.

    >>> Errand.GUEST_WAITS < Errand.READ_AHEAD
    True
    """

    GUEST_WAITS = 0
    READ_AHEAD = 1  # a sequential reader is about to want it
    PRE_SEED = 2  # an operator wants the image here; no guest does yet
    HYDRATE = 3  # a disk is to depend on nobody
    ADVERTISED = 4  # a neighbour has it, so guests here may want it
    WHOLE = 5  # an image that is used here becomes whole

    @property
    def klass(self) -> peer_wire.Klass:
        """The class of the connection on which peers are asked."""
        return peer_wire.Klass.DEMAND if self is Errand.GUEST_WAITS else peer_wire.Klass.BULK

    @property
    def stream(self) -> requests.Stream | None:
        """Whose the disk I/O is that comes of it; None if it is that of whoever waits."""
        return _STREAMS.get(self)

    @property
    def asks_holders_only(self) -> bool:
        """Only those who advertised it are asked: it is not worth a read of the source."""
        return self is Errand.ADVERTISED


_STREAMS = {
    Errand.READ_AHEAD: requests.Stream(requests.Klass.PREFETCH, "read-ahead"),
    Errand.PRE_SEED: requests.Stream(requests.Klass.FILL, "pre-seed"),
    Errand.HYDRATE: requests.Stream(requests.Klass.FILL, "hydrate"),
    Errand.ADVERTISED: requests.Stream(requests.Klass.PREFETCH, "advertised"),
    Errand.WHOLE: requests.Stream(requests.Klass.FILL, "whole"),
}
