# SPDX-License-Identifier: Apache-2.0
"""Permits requests of hosts by grants, also for an image's artefacts (``wire/image_grants``).

The gateway's own credentials carry them out: a host's user may read no image in Glance.
"""

import contextlib
import http
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.wire import image_grants
from acstor_glance.client import trust_store
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import ttl_cache

RETRY_AFTER = {"Retry-After": "1"}
_OWN_FAULTS = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})


class Request(NamedTuple):
    """A request with a grant; ``image_id`` is the image or an artefact of it."""

    image_id: ids.ImageId
    target: str  # see image_grants.target_of
    headers: Mapping[str, str]  # with those that the token check set


class GrantCheck:
    """Checks grants; thread-safe."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        lookup: image_lookup.ImageLookup,
        trust: trust_store.TrustStore,
        clock: clocks.Clock = time,
    ) -> None:
        self._lookup, self._trust, self._clock = lookup, trust, clock
        self._starting, self._is_started = threading.Lock(), False
        # Artefacts that were found to be of an image, as (image, artefact).
        self._artefacts: ttl_cache.TtlCache[bool] = ttl_cache.TtlCache(
            conf.acstor_gateway.auth_cache_s, image_lookup.MAX_CACHED
        )

    @contextlib.contextmanager
    def permit(self, request: Request) -> Iterator[image_lookup.Caller]:
        """Yield the gateway's own credentials if a request is permitted; raises HttpError."""
        grant = self._verified(request)
        if request.image_id != grant.image_id:
            self._check_artefact(ids.parse_image_id(grant.image_id), request.image_id)
        with self._own_rights() as own:
            yield own

    @contextlib.contextmanager
    def _own_rights(self) -> Iterator[image_lookup.Caller]:
        """Yield the gateway's own credentials; their refusal is no fault of the host."""
        try:
            yield self._lookup.own_caller()
        except http_errors.HttpError as error:
            if error.status not in _OWN_FAULTS:
                raise
            self._lookup.forget_own_token()  # Keystone may have revoked it
            words = f"the gateway's user is refused: {error.message}"
            raise http_errors.HttpError(http.HTTPStatus.BAD_GATEWAY, words) from error

    def _verified(self, request: Request) -> image_grants.ImageGrant:
        roles = request.headers.get("X-Roles", "").split(",")
        if image_grants.HOST_ROLE not in roles:
            words = f"grants need a token with the role {image_grants.HOST_ROLE}"
            raise http_errors.HttpError(http.HTTPStatus.FORBIDDEN, words)
        self._start()
        trust = self._trust.trust_anchors()
        if not trust.signers:
            words = "the gateway has no keys of the decision service yet; its log says why"
            raise http_errors.HttpError(http.HTTPStatus.SERVICE_UNAVAILABLE, words, RETRY_AFTER)
        try:
            return image_grants.verify_use(
                request.headers, request.target, trust.signers, trust.revoked, self._clock.time()
            )
        except (errors.NotAuthenticated, errors.RemoteProtocolError) as error:
            raise http_errors.HttpError(http.HTTPStatus.FORBIDDEN, str(error)) from error

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self._trust.start()
                self._is_started = True

    def _check_artefact(self, image_id: ids.ImageId, artefact_id: ids.ImageId) -> None:
        """Raise HttpError unless acstor made ``artefact_id`` of the image."""
        key = image_id, artefact_id
        if self._artefacts.get(key):
            return
        with self._own_rights() as own:
            record = self._lookup.fetch_record(artefact_id, own)
        is_made = artefacts.is_artefact(record, self._lookup.own_project_id())
        is_its = record.text(artefacts.OF_IMAGE) == image_id
        if not (is_made and is_its and artefacts.kind_of(record)):
            words = f"the grant is for image {image_id}, and {artefact_id} is not its artefact"
            raise http_errors.HttpError(http.HTTPStatus.FORBIDDEN, words)
        self._artefacts.put(key, True)
