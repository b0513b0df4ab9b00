# SPDX-License-Identifier: Apache-2.0
"""Verifies signatures of hosts' traces and of the decision service's requests."""

import logging
import time

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import replay_filter
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.util import token_buckets
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_common.wire import trace_message
from acstor_glance.client import trust_store

LOG = logging.getLogger(__name__)

TRACE_AGE_S = 86400.0
TRACE_BURST = 64
TRACE_INTERVAL_S = 10.0
MAX_HOSTS = 16384


class MessageVerifier:
    """Verifies messages with the current keys, ``trust``."""

    def __init__(self, clock: clocks.Clock = time, *, hosts: int = MAX_HOSTS) -> None:
        self._clock = clock
        self._fresh = replay_filter.ReplayFilter()
        rate = token_buckets.Rate(1.0 / TRACE_INTERVAL_S, TRACE_BURST)
        self._rates: token_buckets.TokenBuckets[str] = token_buckets.TokenBuckets(rate, hosts)

    def verify_trace(
        self, payload: object, trust: trust_store.TrustAnchors
    ) -> trace_message.BootTrace:
        """Return a host's trace of a boot of its own.

        :raises errors.NotAuthenticated: the signature or the host is not trusted
        :raises errors.RemoteProtocolError: the message is invalid, or one too many
        """
        signed = decision_messages.decode(payload, decision_messages.Signed)
        if not trust.ca:
            raise errors.NotAuthenticated("a boot trace", "no certificate authority is known yet")
        certificate, trace = signed_messages.verify_from_host(
            signed, signing.TRACE, trust.ca, trace_message.BootTrace
        )
        what, now_s = f"a boot trace of {certificate.host}", self._clock.time()
        if why := self._why_not(certificate, trust, trace, now_s):
            raise errors.NotAuthenticated(what, why)
        if not self._rates.try_take(certificate.host, 1.0, now_s):
            raise errors.RemoteProtocolError(
                certificate.host,
                f"more traces than {TRACE_BURST}, and one in {TRACE_INTERVAL_S:.0f} s after that",
            )
        return trace

    @staticmethod
    def _why_not(
        certificate: certificates.HostCertificate,
        trust: trust_store.TrustAnchors,
        trace: trace_message.BootTrace,
        now_s: float,
    ) -> str:
        if why := certificates.time_fault(certificate, now_s, certificates.GRACE_S):
            return f"its certificate is {why}"
        if certificates.is_revoked(certificate, trust.revoked):
            return "its certificate was revoked"
        if trace.host != certificate.host:
            return f"it states the host {trace.host}"
        if abs(now_s - trace.recorded_s) > TRACE_AGE_S:
            return f"it was recorded {now_s - trace.recorded_s:.0f} s ago by this host's clock"
        return ""

    def verify_request(
        self, payload: object, trust: trust_store.TrustAnchors
    ) -> decision_messages.ImageWanted:
        """Return a request of the decision service; raises as :meth:`verify_trace`."""
        signed = decision_messages.decode(payload, decision_messages.Signed)
        request = signed_messages.verify_from_service(
            signed, signing.IMAGE_WANTED, trust.signers, decision_messages.ImageWantedAt
        )
        wanted = request.wanted
        message = (request.request, wanted.image_id, wanted.is_forced, request.given_s)
        if why := self._fresh.check_and_remember(message, request.given_s, self._clock.time()):
            raise errors.NotAuthenticated(f"a request for image {wanted.image_id}", why)
        return wanted
