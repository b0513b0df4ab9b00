# SPDX-License-Identifier: Apache-2.0
"""Whom the listener believes: hosts of the cloud about themselves, the decision service about all.

Nothing that came over the message bus is looked into before its signature was
checked.  Whoever may publish there can waste the time that a look at a signature
takes, and a host that was taken over can send traces in its own name, so many and
no more.
"""

import collections
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ed25519

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import replay_filter
from acstor_common.identity import signing
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)

TRACE_AGE_S = 86400.0
BURST = 64
PACE_S = 10.0
"""Traces of one host: so many at once, then one in so many seconds."""
MAX_HOSTS = 16384


class TrustAnchors(NamedTuple):
    """Whom to believe.

    :param ca: PEM of the authorities that issue hosts' certificates; empty: no host is believed
    :param signers: public keys of the decision service; without any it is not believed
    :param revoked: by host: certificates that begin before are refused, wall clock
    """

    ca: bytes
    signers: tuple[ed25519.Ed25519PublicKey, ...]
    revoked: dict[str, int]


NO_TRUST = TrustAnchors(b"", (), {})


class MessageVerifier:
    """Opens what the message bus brings; each method raises what :class:`Endpoint` logs.

    :param trust: returns whom to believe now
    """

    def __init__(
        self, trust: Callable[[], TrustAnchors], clock: Callable[[], float] = time.time
    ) -> None:
        self._trust, self._clock = trust, clock
        self._fresh = replay_filter.ReplayFilter()
        self._paces: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def verify_trace(self, payload: object) -> trace_message.BootTrace:
        """Return the trace that a host sent of a boot of its own.

        :raises errors.NotAuthenticated: nobody who may say so did
        :raises errors.RemoteProtocolError: it makes no sense
        """
        signed, trust = decision_messages.decode(payload, decision_messages.Signed), self._trust()
        if not trust.ca:
            raise errors.NotAuthenticated("a boot trace", "no authority is known here yet")
        certificate, trace = signed_messages.verify_from_host(
            signed, signing.TRACE, trust.ca, trace_message.BootTrace
        )
        what, now_s = f"a boot trace of {certificate.host}", self._clock()
        if why := self._why_not(certificate, trust, trace, now_s):
            raise errors.NotAuthenticated(what, why)
        if not self._has_turn(certificate.host, now_s):
            raise errors.RemoteProtocolError(
                certificate.host, f"more traces than {BURST}, and one in {PACE_S:.0f} s after that"
            )
        return trace

    @staticmethod
    def _why_not(
        certificate: certificates.HostCertificate,
        trust: TrustAnchors,
        trace: trace_message.BootTrace,
        now_s: float,
    ) -> str:
        if why := certificates.time_fault(certificate, now_s, certificates.GRACE_S):
            return f"its certificate is {why}"
        if certificates.is_revoked(certificate, trust.revoked):
            return "its certificate was revoked"
        if trace.host != certificate.host:
            return f"it says to be of {trace.host}"
        if abs(now_s - trace.recorded_s) > TRACE_AGE_S:
            return f"it was recorded {now_s - trace.recorded_s:.0f} s ago by this host's clock"
        return ""

    def _has_turn(self, host: str, now_s: float) -> bool:
        """Count a trace of a host; say whether it may send one now (a token bucket)."""
        left, at_s = self._paces.pop(host, (float(BURST), now_s))
        left = min(float(BURST), left + max(0.0, now_s - at_s) / PACE_S)
        has_turn = left >= 1.0
        self._paces[host] = (left - has_turn, now_s)
        if len(self._paces) > MAX_HOSTS:
            self._paces.popitem(last=False)
        return has_turn

    def verify_request(self, payload: object) -> decision_messages.ImageWanted:
        """Return what the decision service asks for.

        :raises errors.NotAuthenticated: it did not, or not now
        :raises errors.RemoteProtocolError: it makes no sense
        """
        signed, trust = decision_messages.decode(payload, decision_messages.Signed), self._trust()
        asked = signed_messages.verify_from_service(
            signed, signing.IMAGE_WANTED, trust.signers, decision_messages.ImageWantedAt
        )
        wanted = asked.wanted
        message = (asked.request, wanted.image_id, wanted.is_forced, asked.given_s)
        if why := self._fresh.why_not(message, asked.given_s, self._clock()):
            raise errors.NotAuthenticated(f"a request for image {wanted.image_id}", why)
        return wanted
