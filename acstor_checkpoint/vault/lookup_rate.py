# SPDX-License-Identifier: Apache-2.0
"""Rate limit of lookups, reads and small pieces in a vault: a token bucket per host."""

import threading
import time
from collections.abc import Callable
from typing import Final

from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import token_buckets

OF_HOST: Final = token_buckets.Rate(per_s=65536.0, burst=4 * 65536.0)
"""A sixth of a CPU per host; the burst is a disk of 16 GiB."""
OF_REQUEST: Final = 64  # names that a request counts as: it may sync the file system
BYTES: Final = 4096
"""Bytes read that count as a name.

With OF_REQUEST, a host that reads chunks of 64 KiB takes two fifths of a CPU, and gets 51 MiB/s
after the first 200 MiB."""
OF_PIECE: Final = 16  # names that a small piece of a request counts as
PIECE_BYTES: Final = 1024  # average size of pieces from which on they are free
FREE_PIECES: Final = 16  # of each request, whatever their size
_HOSTS: Final = 16384
_SHORTEST_S: Final = 0.001


class LookupRate:
    """Delays lookups of hosts that exceed their rate; thread-safe."""

    def __init__(
        self,
        clock: clocks.Clock = time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.waited_s = 0.0
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self._buckets: token_buckets.TokenBuckets[ids.HostId] = token_buckets.TokenBuckets(
            OF_HOST, _HOSTS
        )

    def spend_lookups(self, host: ids.HostId, count: int) -> None:
        """Wait until a host may look up ``count`` names, at most a burst."""
        while wait_s := self._take(host, count):
            self._sleep(wait_s)

    def _take(self, host: ids.HostId, count: int) -> float:
        with self._lock:
            now_s = self._clock.monotonic()
            lacking = count - self._buckets.tokens_left(host, now_s)
            if lacking <= 0:
                self._buckets.charge_tokens(host, count, now_s)
                return 0.0
            wait_s = max(_SHORTEST_S, lacking / OF_HOST.per_s)
            self.waited_s += wait_s
            return wait_s


class PieceRate:
    """Charges a connection for small pieces: each TLS record takes time."""

    def __init__(self, rate: LookupRate, host: ids.HostId) -> None:
        self._rate, self._host = rate, host
        self._pieces = self._size_bytes = 0

    def begin_request(self) -> None:
        """Reset the count of free pieces."""
        self._pieces = self._size_bytes = 0

    def note_piece(self, size_bytes: int) -> None:
        """Charge a received piece, if it and those before are small."""
        self._pieces, self._size_bytes = self._pieces + 1, self._size_bytes + size_bytes
        if self._pieces > FREE_PIECES + self._size_bytes // PIECE_BYTES:
            self._rate.spend_lookups(self._host, OF_PIECE)
