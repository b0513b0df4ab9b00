# SPDX-License-Identifier: Apache-2.0
"""What the engine asks a policy for hosts that read an image in lock-step; the default has none.

``acstor_policies`` has one, the variant ``ring``, which is faster over few hops only.
"""

from collections.abc import Callable
from typing import Any
from typing import ClassVar

from acstor_agent.engine import requester
from acstor_agent.engine import transfer
from acstor_common.model import ids


class Lockstep:
    """No host has a predecessor: all ask homes and holders.

    :param context: the state of the engine (:class:`fetch.context.Context`)
    :cvar learns_ring: hosts in lock-step give each other what they read, round a ring
    """

    learns_ring: ClassVar[bool] = False

    def __init__(self, context: Any) -> None:
        self._context = context

    def __len__(self) -> int:
        """Return how many images this host has a predecessor for."""
        return 0

    def predecessor(self, image_id: ids.ImageId, home: ids.HostId) -> ids.HostId | None:
        """Return whom to ask for a chunk instead of its home; None: nobody."""
        return None

    def named(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Note that a peer has named a host alone."""

    def gave(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Note that a host gave a chunk of an image."""

    def failed(self, image_id: ids.ImageId, host: ids.HostId) -> None:
        """Note that a host did not give a chunk of an image."""

    def read_here(self, image_id: ids.ImageId, offset: int) -> None:
        """Note where guests of this host read."""

    def refer(
        self, asker: requester.PendingRequest, is_named: Callable[[ids.HostId], bool]
    ) -> tuple[ids.HostId, ...] | None:
        """Return whom a peer is to ask instead; None: whom the tree names.

        :param is_named: says whether others may be sent to a host
        """
        return None

    def wait_s(self, asker: requester.PendingRequest, transfer: transfer.Transfer | None) -> float:
        """Return how long a peer waits for what is not under way here, in seconds."""
        return 0.0
