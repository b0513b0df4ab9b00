# SPDX-License-Identifier: Apache-2.0
"""Policy for hosts that read an image in lockstep; ``acstor_policies`` has the variant ``ring``."""

from collections.abc import Callable
from typing import Any
from typing import ClassVar

from acstor_agent.engine import requester
from acstor_agent.engine import transfer
from acstor_common.model import ids


class Lockstep:
    """The default, which gives no host a predecessor: all ask homes and holders."""

    learns_ring: ClassVar[bool] = False  # whether hosts in lockstep pass chunks along a ring

    def __init__(self, context: Any) -> None:
        self._context = context  # fetch.context.Context

    def __len__(self) -> int:
        return 0

    def predecessor(self, image_id: ids.ImageId, home: ids.HostId) -> ids.HostId | None:
        """Return the host to ask instead of the home, or None."""
        return None

    def peer_named(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Record that a peer referred this host to one other host."""

    def chunk_received(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Record that a host gave a chunk."""

    def peer_failed(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Record that a host did not give a chunk."""

    def guest_read(self, image_id: ids.ImageId, offset: int) -> None:
        """Record the position of a guest read."""

    def refer(
        self, pending: requester.PendingRequest, is_named: Callable[[ids.HostId], bool]
    ) -> tuple[ids.HostId, ...] | None:
        """Return hosts to refer a peer to, all allowed by ``is_named``; None: those of the tree."""
        return None

    def wait_s(
        self, pending: requester.PendingRequest, transfer: transfer.Transfer | None
    ) -> float:
        """Return how many seconds a peer waits for a chunk that is not in flight here."""
        return 0.0
