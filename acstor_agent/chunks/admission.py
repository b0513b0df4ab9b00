# SPDX-License-Identifier: Apache-2.0
"""What peers may ask for: whole chunks that this host's own chunk map of the image names.

A Get is admitted only if the map that this host has of the image, or reads from the
source for this, names a chunk exactly there, and the Get proves that its sender
knows that chunk's CID.  All else is refused with the same word, whatever is wrong
with it, so a refusal tells nothing; what was wrong is in this host's log.

The one rule: nothing is looked for, read or answered before a Get was admitted.
"""

import hmac
import logging
import time
from collections.abc import Awaitable
from collections.abc import Callable
from typing import Protocol

from acstor_agent.chunks import unattached
from acstor_agent.chunks import want as want_
from acstor_agent.core import log_limit
from acstor_common import errors
from acstor_common import ids
from acstor_common import peer_wire

LOG = logging.getLogger(__name__)

WARN_EVERY_S = 10.0
"""A host's refused Gets are told in the log so often; their number is told, too."""
TRIES = 3


class Named(Protocol):
    """Says what an image that is attached here names."""

    def __call__(self, image_id: ids.ImageId, offset: int, length: int) -> ids.Content | None:
        """Return what lies there, ZERO_CID if nothing does; None if it is not known."""


class Admission:
    """Checks what peers ask this host for.

    :param here: id of this host
    :param named: what attached images name
    :param others: what all other images name
    :param open_attached: opens an image that is attached and not open, as after a start; says
        whether that was so
    """

    def __init__(
        self,
        here: ids.HostId,
        named: Named,
        others: unattached.UnattachedImages,
        clock: Callable[[], float] = time.monotonic,
        *,
        open_attached: Callable[[ids.ImageId], Awaitable[bool]],
    ) -> None:
        self.refused = 0
        self._here = here
        self._named = named
        self._others = others
        self._open_attached = open_attached
        self._clock = clock
        self._warned = log_limit.LogLimit(WARN_EVERY_S)

    @property
    def refused_looks(self) -> int:
        """Times that a Get was refused because its host made this one ask the source too often."""
        return self._others.refused

    def is_attached(self, want: want_.Want) -> bool:
        """Say whether a chunk is of an image that this host mirrors."""
        return self._named(want.image_id, want.offset, want.length) is not None

    def admit(self, host: ids.HostId, get: peer_wire.Get) -> want_.Want | None:
        """Return what a Get asks for; None if that must be looked up first.

        :raises errors.ChunkMissing: it is not to be answered
        """
        found = self._named(get.image_id, get.offset, get.length)
        if found is None:
            if not self._others.is_known(get.image_id, get.offset):
                return None
            found = self._others.content_at(get.image_id, get.offset, get.length)
        if found.cid == ids.ZERO_CID:
            raise self._refusal(host, get, "there is no chunk exactly there")
        proof = peer_wire.proof_of(found.cid, host, self._here)
        if not hmac.compare_digest(proof, get.proof):
            raise self._refusal(host, get, "it does not prove that it knows the CID")
        return want_.Want(get.image_id, get.offset, get.length, *found)

    async def look_up(self, host: ids.HostId, get: peer_wire.Get) -> want_.Want:
        """Return what a Get asks for, after a look at the source if it is not attached.

        :raises errors.ChunkMissing: it is not to be answered
        :raises errors.ChunkRefused: nor is it, since the source does not let this host read it
        :raises errors.SourceUnreachable: nobody can say whether it is
        """
        for _ in range(TRIES):  # what was learnt may be pushed out again by others at once
            want = self.admit(host, get)
            if want is not None:
                return want
            if await self._open_attached(get.image_id):
                continue
            try:
                await self._others.learn(host, get.image_id, get.offset)
            except errors.ChunkMissing as e:
                refusal = self._refusal(host, get, str(e))
                if isinstance(e, errors.ChunkRefused):
                    refusal = errors.ChunkRefused(refusal.what, refusal.where, refusal.why)
                raise refusal from e
        raise errors.SourceUnreachable(
            f"image {get.image_id}", self._here, "too many are asked for"
        )

    def _refusal(self, host: ids.HostId, get: peer_wire.Get, why: str) -> errors.ChunkMissing:
        self.refused += 1
        self._warn(host, get, why)
        what = f"{get.length} bytes of image {get.image_id} at {get.offset}"
        return errors.ChunkMissing(what, self._here, why)

    def _warn(self, host: ids.HostId, get: peer_wire.Get, why: str) -> None:
        untold = self._warned.left_out(host, self._clock())
        if untold is None:
            return
        LOG.warning(
            "%s asked for %d bytes of image %s at %d: refused, %s (and %d like it)",
            host,
            get.length,
            get.image_id,
            get.offset,
            why,
            untold,
        )
