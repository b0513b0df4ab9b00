# SPDX-License-Identifier: Apache-2.0
"""Issues grants: permissions of hosts to read an image that servers use.

Any enrolled host gets a grant for an image in use, because hosts read images on behalf of others.
Nova or an operator's request names the images in use; later a host that lacks bytes of one prolongs
that (:mod:`acstor_decision.db.grant_queries`).
"""

import enum
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Final

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import replay_filter
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.util import lru_table
from acstor_common.util import token_buckets
from acstor_common.wire import decision_messages
from acstor_common.wire import image_grants as messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import nova_client
from acstor_decision.db import database
from acstor_decision.identity import trust_state

LOG = logging.getLogger(__name__)

USED_S: Final = 60.0  # how long an image counts as in use without another look
UNUSED_S: Final = 2.0  # the same for one not in use; servers start meanwhile
MAX_KNOWN: Final = 16_384
RATE: Final = token_buckets.Rate(per_s=16.0, burst=512.0)  # requests of one host
MAX_FRESH: Final = 16_384  # remembered requests of one host: RATE for the age of a replay


class Reason(enum.StrEnum):
    """Why a request for a grant is refused."""

    NOT_AUTHENTIC = "not_authentic"
    NOT_IN_USE = "not_in_use"
    BUSY = "busy"  # the host requests too many, or Nova responds to too many
    NO_NOVA = "no_nova"
    NO_DATABASE = "no_database"


class NotInUse(errors.AcstorError):
    """No server uses the image."""

    text = "no server uses this image, and no operator requested it on hosts"


class ImageGrants:
    """Handles requests for grants; thread-safe; counts refused ones by reason."""

    def __init__(
        self,
        store: database.Database,
        nova: nova_client.NovaClient,
        trust: Callable[[], trust_state.TrustState],
        *,
        clock: clocks.Clock = time,
    ) -> None:
        self._store, self._nova, self._trust = store, nova, trust
        self._clock = clock
        self._lock = threading.Lock()
        self.refused: dict[str, int] = {reason.value: 0 for reason in Reason}
        self._rates: token_buckets.TokenBuckets[str] = token_buckets.TokenBuckets(
            RATE, hash_ring.MAX_HOSTS
        )
        self._fresh: dict[str, replay_filter.ReplayFilter] = {}  # by enrolled host
        # Whether an image is in use, and until when that counts.
        self._known: lru_table.LruTable[str, tuple[bool, float]] = lru_table.LruTable(MAX_KNOWN)
        self._warnings = message_bus.ThrottledWarnings(clock)

    def rpc_methods(self) -> Mapping[str, Callable[[object], dict[str, Any]]]:
        """Return the RPC handlers by method name."""
        return {messages.REQUEST_GRANT: self.request_grant}

    def request_grant(self, payload: object) -> dict[str, Any]:
        """Return a signed response to a host's request; called in threads of the message bus."""
        try:
            response = self._response(*self._checked(payload))
        except (errors.NotAuthenticated, errors.RemoteProtocolError) as e:
            self._count_refused(Reason.NOT_AUTHENTIC)
            self._warnings.log_line("grants: %s", e)
            response = messages.GrantResponse(host="", sent_s=0.0, why=str(e)[:1024])
        signed = signed_messages.sign_payload(
            response, signing.IMAGE_GRANT_ANSWER, self._trust().signer
        )
        return decision_messages.encode(signed)

    def _count_refused(self, reason: Reason) -> None:
        with self._lock:
            self.refused[reason] += 1

    def _checked(
        self, payload: object
    ) -> tuple[certificates.HostCertificate, messages.GrantRequest]:
        signed = decision_messages.decode(payload, decision_messages.Signed)
        trust, now_s = self._trust(), self._clock.time()
        certificate, request = signed_messages.verify_from_host(
            signed, signing.IMAGE_GRANT_WANTED, trust.ca, messages.GrantRequest
        )
        what = f"a request of {request.host} for a grant"
        if certificate.host != request.host:
            raise errors.NotAuthenticated(what, f"it is signed by {certificate.host}")
        if fault := trust.why_untrusted(certificate, now_s):
            raise errors.NotAuthenticated(what, fault)
        with self._lock:
            its = self._fresh.setdefault(request.host, replay_filter.ReplayFilter(MAX_FRESH))
            fault = its.check_and_remember(
                (request.image_id, request.sent_s), request.sent_s, now_s
            )
        if fault:
            raise errors.NotAuthenticated(what, fault)
        return certificate, request

    def _response(
        self, certificate: certificates.HostCertificate, request: messages.GrantRequest
    ) -> messages.GrantResponse:
        why, reason, grant = "", None, None
        try:
            self._check_rate(request.host)
            self._check_use(request)
            signer = self._trust().signer
            grant = messages.new_grant(request, certificate, signer, self._clock.time())
        except NotInUse as e:
            why, reason = str(e), Reason.NOT_IN_USE
            words = (request.host, request.image_id, why)
            self._warnings.log_line("%s is refused a grant for image %s: %s", *words)
        except nova_client.NovaBusy as e:  # not logged: a flood of requests would flood the log
            why, reason = str(e), Reason.BUSY
        except nova_client.NovaUnreachable as e:
            why = f"Nova did not report whether a server uses this image: {e.why}"
            reason = Reason.NO_NOVA
        except database.DatabaseError:  # its address is not for hosts
            why, reason = "the database is unreachable", Reason.NO_DATABASE
        if reason is not None:
            self._count_refused(reason)
        return messages.GrantResponse(
            host=request.host,
            sent_s=request.sent_s,
            grant=grant,
            why=why[:1024],
            is_transient=reason not in (None, Reason.NOT_IN_USE),
        )

    def _check_rate(self, host: str) -> None:
        with self._lock:
            may_ask = self._rates.try_take(host, 1.0, self._clock.monotonic())
        if not may_ask:
            raise nova_client.NovaBusy(
                f"{host} requests more than {RATE.per_s:.0f} grants a second"
            )

    def _check_use(self, request: messages.GrantRequest) -> None:
        """Raise NotInUse, or NovaUnreachable if that is unknown."""
        with self._lock:
            is_used, until_s = self._known.get_as_used(request.image_id) or (False, 0.0)
        if self._clock.monotonic() >= until_s:
            is_used = self._look(request)
            until_s = self._clock.monotonic() + (USED_S if is_used else UNUSED_S)
            with self._lock:
                self._known[request.image_id] = is_used, until_s
        elif not is_used:  # but an operator may have requested it meanwhile
            image_id = ids.parse_image_id(request.image_id)
            is_used = self._store.is_grantable(image_id, self._clock.time())
        if not is_used:
            raise NotInUse

    def _look(self, request: messages.GrantRequest) -> bool:
        image_id, now_s = ids.parse_image_id(request.image_id), self._clock.time()
        try:
            if self._nova.is_image_used(image_id, self._trust().is_enrolled, request.host):
                self._store.record_named_image(image_id, now_s)
                return True
        except nova_client.NovaUnreachable:
            if self._store.is_grantable(image_id, now_s):
                return True
            raise
        return self._store.is_grantable(image_id, now_s)
