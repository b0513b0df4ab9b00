# SPDX-License-Identifier: Apache-2.0
"""Grants of this host for images (``wire/image_grants``), requested when a source needs them.

A grant is renewed after half of its life. Without a response the former one is used to its end.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from acstor_agent.runtime import keyed_locks
from acstor_agent.sources import blocking_threads
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import lru_table
from acstor_common.wire import decision_messages
from acstor_common.wire import image_grants

WHERE = "the decision service"
MAX_HELD = 4096
THREADS = 4  # requests at a time
REQUEST_S, RENEWAL_S = 10.0, 1.0
"""Timeout of a request, and of the wait for a certificate; reads with a valid grant wait less."""
CERTIFICATE_TICK_S = 0.25  # between looks for this host's first certificate
RETRY_S = 30.0  # after a failed renewal
RENEW_AFTER_S = image_grants.LIFETIME_S / 2
LEAST_AGE_S = 10.0  # a younger grant is not replaced because the gateway refused it

RequestGrant = Callable[[ids.ImageId], decision_messages.Signed]
"""Requests a grant; blocks. Raises errors.ChunkUnavailable."""


class _Held(NamedTuple):
    grant: decision_messages.Signed
    certificate: bytes  # PEM; the grant is for its key
    got_s: float
    renew_s: float


class HostGrants:
    """The grants that this host holds."""

    def __init__(
        self,
        request: RequestGrant,
        files: identity_files.IdentityFiles,
        clock: clocks.Clock = time,
    ) -> None:
        self._request, self._files, self._clock = request, files, clock
        self._held = lru_table.LruTable[ids.ImageId, _Held](MAX_HELD)
        self._has_waited = False  # for the first certificate, until the timeout
        self._locks = keyed_locks.KeyedLocks[ids.ImageId]()
        self._threads = blocking_threads.BlockingThreads(WHERE, THREADS)

    async def headers_of(self, what: str, image_id: ids.ImageId, target: str) -> dict[str, str]:
        """Return headers for a ``target`` (image_grants.target_of), or raise ChunkUnavailable."""
        identity, certificate = await self._wait_certified(what)
        async with self._locks.hold(image_id):
            held = await self._current(what, image_id, certificate.pem)
        return image_grants.headers_of(held.grant, target, identity.key, self._clock.time())

    async def _wait_certified(
        self, what: str
    ) -> tuple[identity_files.Identity, certificates.HostCertificate]:
        until_s = trio.current_time() + REQUEST_S  # after the start it may lack a certificate
        while True:
            identity = self._files.current_credentials()
            if identity.certificate is not None:
                return identity, identity.certificate
            if self._has_waited or trio.current_time() >= until_s:
                self._has_waited = True
                raise errors.SourceUnreachable(what, WHERE, "this host has no certificate yet")
            await trio.sleep(CERTIFICATE_TICK_S)

    def forget_refused(self, image_id: ids.ImageId) -> None:
        """Request another grant next time, because the gateway refused this one."""
        held = self._held.get(image_id)
        if held is not None and trio.current_time() >= held.got_s + LEAST_AGE_S:
            del self._held[image_id]

    async def _current(self, what: str, image_id: ids.ImageId, pem: bytes) -> _Held:
        now_s, held = trio.current_time(), self._held.get_as_used(image_id)
        if held is not None and held.certificate != pem:
            held = None
        if held is not None and now_s < held.renew_s:
            return held
        is_valid = held is not None and now_s < held.got_s + image_grants.LIFETIME_S
        try:
            with trio.fail_after(RENEWAL_S if is_valid else REQUEST_S):
                grant = await self._threads.run(what, image_id, lambda: self._request(image_id))
        except (errors.ChunkUnavailable, trio.TooSlowError) as error:
            if held is None or not is_valid:
                raise _failure(what, error) from error
            self._held[image_id] = held = held._replace(renew_s=now_s + RETRY_S)
            return held
        held = _Held(grant, pem, now_s, now_s + RENEW_AFTER_S)
        self._held[image_id] = held
        return held


def _failure(what: str, error: Exception) -> errors.ChunkUnavailable:
    if isinstance(error, errors.ChunkUnavailable):
        return error
    return errors.SourceUnreachable(what, WHERE, f"it issued no grant within {REQUEST_S:.0f} s")
