# SPDX-License-Identifier: Apache-2.0
"""Requests grants for images on the message bus; the decision service signs its responses."""

import time
from collections.abc import Mapping
from typing import Any
from typing import Protocol

from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import image_grants
from acstor_common.wire import signed_messages

WHERE = "the decision service"
TIMEOUT_S = 8.0


class Bus(Protocol):
    """The message bus (:class:`acstor_agent.cloud.bus.Bus`)."""

    def call_method(
        self, topic: str, method: str, payload: Mapping[str, Any], timeout_s: float
    ) -> object:
        """Send a request and return the response; raise DecisionUnreachable without one."""


class GrantClient:
    """Requests for grants of one host."""

    def __init__(
        self,
        host: ids.HostId,
        bus: Bus,
        files: identity_files.IdentityFiles,
        clock: clocks.Clock = time,
    ) -> None:
        self._host, self._bus, self._files, self._clock = host, bus, files, clock

    def request(self, image_id: ids.ImageId) -> decision_messages.Signed:
        """Return a grant; blocks, in a thread.

        :raises errors.SourceUnreachable: no response, host not authenticated, or no grant yet
        :raises errors.ChunkRefused: no server uses the image
        """
        what = f"a grant for image {image_id}"
        try:
            return self._checked(what, image_id, self._response(image_id))
        except (
            errors.DecisionUnreachable,
            errors.NotAuthenticated,
            errors.RemoteProtocolError,
        ) as e:
            raise errors.SourceUnreachable(what, WHERE, str(e)) from e

    def _response(self, image_id: ids.ImageId) -> image_grants.GrantResponse:
        identity = self._files.current_credentials()
        if identity.certificate is None:
            raise errors.NotAuthenticated("this host", "it has no certificate")
        asked = image_grants.GrantRequest(self._host, image_id, self._clock.time())
        signed = signed_messages.sign_payload(
            asked, signing.IMAGE_GRANT_WANTED, identity.key, identity.certificate.pem
        )
        reply = self._bus.call_method(
            decision_messages.TOPIC,
            image_grants.REQUEST_GRANT,
            decision_messages.encode(signed),
            TIMEOUT_S,
        )
        response = signed_messages.verify_from_service(
            decision_messages.decode(reply, decision_messages.Signed),
            signing.IMAGE_GRANT_ANSWER,
            self._files.signer_keys(),
            image_grants.GrantResponse,
        )
        if (response.host, response.sent_s) != (asked.host, asked.sent_s):
            # Any client of the bus can repeat a former refusal.
            why = response.why or "the response is to another request"
            raise errors.NotAuthenticated("a grant", why)
        return response

    def _checked(
        self, what: str, image_id: ids.ImageId, response: image_grants.GrantResponse
    ) -> decision_messages.Signed:
        if response.grant is None:
            refusal = errors.SourceUnreachable if response.is_transient else errors.ChunkRefused
            raise refusal(what, WHERE, response.why)
        grant = signed_messages.verify_from_service(
            response.grant,
            signing.IMAGE_GRANT,
            self._files.signer_keys(),
            image_grants.ImageGrant,
        )
        if (grant.host, grant.image_id) != (self._host, image_id):
            raise errors.NotAuthenticated(what, f"it is for {grant.host}, image {grant.image_id}")
        return response.grant
