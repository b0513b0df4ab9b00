# SPDX-License-Identifier: Apache-2.0
"""Estimates on which connection a request is answered first: idle, new, or behind other requests.

TCP doubles a connection's window each round trip (RFC 5681) and halves it for each RTO of
idleness (RFC 2861), so behind others (pipelining, RFC 9112, 9.3.2) a far server may answer sooner.
"""

import math
from typing import NamedTuple

INITIAL_WINDOW_BYTES = 10 * 1448  # RFC 6928
FAR_S = 0.002
"""Round-trip time from which on requests follow others; a near server gets connections at once."""
LEAST_RTO_S = 0.2  # Linux
LEAST_SAMPLE_S = 0.1
RATE_DECAY = 0.95  # of the highest rate with each sample
DELAY_GROWTH, DELAY_STEP_S = 1.25, 0.001  # of the least delay with each response


class Candidate(NamedTuple):
    """A connection that can take a request.

    >>> far = ServerTimes(rtt_s=0.2, bytes_s=12e6)
    >>> warm = Candidate(requests=7, unread_bytes=7 << 20, window_bytes=2 << 20)
    >>> [round(far.answer_s(one, 1 << 20), 1) for one in (Candidate(round_trips=1), warm)]
    [1.7, 1.2]
    """

    requests: int = 0  # unanswered
    unread_bytes: int = 0  # of their answers
    window_bytes: int = INITIAL_WINDOW_BYTES
    round_trips: int = 0  # of the handshakes before the request


class ServerTimes(NamedTuple):
    """What is known of a server."""

    rtt_s: float
    bytes_s: float = 0.0  # by all connections; 0: unknown
    delay_s: float = 0.0  # of an answer, beyond the round trip

    @property
    def is_far(self) -> bool:
        """Whether requests may follow others."""
        return self.rtt_s >= FAR_S

    def answer_s(self, candidate: Candidate, length: int, busy: int = 1) -> float:
        """Return the seconds until an answer of ``length`` bytes is complete.

        :param busy: connections with requests, which share the link
        """
        per_byte_s = (busy + (not candidate.requests)) / self.bytes_s if self.bytes_s else 0.0
        queue_s = candidate.unread_bytes * per_byte_s + candidate.requests * self.delay_s
        begin_s = max(queue_s, self.rtt_s * (1 + candidate.round_trips)) + self.delay_s
        rounds = math.log2(1 + (candidate.unread_bytes + length) / candidate.window_bytes)
        return begin_s + rounds * self.rtt_s + length * per_byte_s


def window_bytes(received_bytes: int, idle_s: float, rtt_s: float) -> int:
    """Return a connection's estimated window after ``received_bytes`` and an idle time.

    >>> [window_bytes(1 << 20, idle_s, rtt_s=0.2) for idle_s in (0.3, 0.9, 60.0)]
    [1063056, 265764, 14480]
    """
    halvings = min(int(idle_s / (rtt_s + LEAST_RTO_S)), 64)
    return max(INITIAL_WINDOW_BYTES, (INITIAL_WINDOW_BYTES + received_bytes) >> halvings)


class ServerMeter:
    """Measures rate and delay of a server's answers."""

    def __init__(self) -> None:
        self.bytes_s = self.delay_s = 0.0
        self._is_delay_known = False
        self._bytes, self._since_s = 0, 0.0

    def begin(self, now_s: float) -> None:
        """Record that a request follows a time without any."""
        self._bytes, self._since_s = 0, now_s

    def record_delay(self, seconds: float) -> None:
        """Record the time to a head, beyond round trip and earlier answers; the least counts."""
        grown_s = self.delay_s * DELAY_GROWTH + DELAY_STEP_S if self._is_delay_known else math.inf
        self.delay_s, self._is_delay_known = min(max(0.0, seconds), grown_s), True

    def record_answer(self, length: int, now_s: float, rtt_s: float) -> None:
        """Record the bytes of a complete answer; the highest rate counts, with decay."""
        self._bytes += length
        took_s = now_s - self._since_s
        if took_s >= max(LEAST_SAMPLE_S, 2 * rtt_s):
            self.bytes_s = max(self._bytes / took_s, RATE_DECAY * self.bytes_s)
            self.begin(now_s)
