# SPDX-License-Identifier: Apache-2.0
"""Samples that wait for the next round, in the order of receipt; replayed ones take no room."""

import collections
from typing import NamedTuple

from acstor_common.identity import certificates
from acstor_common.wire import decision_messages
from acstor_decision.core.membership import replay_filter

Identity = tuple[str, str]
"""Host and key fingerprint, so that a revoked key does not displace the next one."""
WAITING_SAMPLES = 100_000
WAITING_OF_A_HOST = 32


class Received(NamedTuple):
    """A sample whose signature was verified; ``received_s`` is on the monotonic clock."""

    received_s: float
    certificate: certificates.HostCertificate
    sample: decision_messages.Sample


class SampleInbox:
    """At most ``limit`` samples, WAITING_OF_A_HOST of each identity; the newest stay."""

    def __init__(self, silent_s: float, limit: int = WAITING_SAMPLES) -> None:
        self.refused: collections.Counter[replay_filter.Refusal] = collections.Counter()
        self.dropped = 0
        self._order = replay_filter.ReplayFilter[Identity](silent_s)
        self._waiting: collections.defaultdict[Identity, collections.deque[Received]] = (
            collections.defaultdict(collections.deque)
        )
        self._count, self._limit = 0, limit

    def __len__(self) -> int:
        return self._count

    def add_sample(self, received: Received, wall_s: float) -> replay_filter.Refusal | None:
        """Add a sample; when full, drop its sender's oldest; return why it is refused, or None."""
        received_s, certificate, sample = received
        sender = certificate.host, certificates.fingerprint(certificate.public_key)
        refusal = self._order.why_refused(sender, sample, received_s, wall_s)
        if refusal is not None:
            self.refused[refusal] += 1
            return refusal
        self._order.record_newest(sender, sample, received_s)
        waiting = self._waiting[sender]
        waiting.append(received)
        self._count += 1
        if len(waiting) > WAITING_OF_A_HOST or self._count > self._limit:
            waiting.popleft()
            self._count -= 1
            self.dropped += 1
        return None

    def drain_samples(self, now_s: float) -> list[Received]:
        """Remove and return all samples, in the order of receipt."""
        found = [received for waiting in self._waiting.values() for received in waiting]
        self._waiting.clear()
        self._count = 0
        self._order.forget_expired(now_s)
        return sorted(found, key=lambda received: received.received_s)
