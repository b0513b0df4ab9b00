# SPDX-License-Identifier: Apache-2.0
"""Which images hosts need: they use them, and are not whole.

A host that fell silent needs what it needed for a day, so nobody takes an image for unneeded
because a host, or the message bus, is away.  A revoked one needs nothing.
"""

import msgspec

from acstor_decision.api import operation
from acstor_decision.db import held_images

MOST = 10_000
LATELY_S = 120.0
"""Who was not heard for so long is silent."""


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """Images that must not lose their bytes in the image store yet; times in seconds since 1970.

    :param images: ids of images that some host uses, and that are not whole there; 10,000 at most,
        those first that are of the hosts that are known longest
    :param is_complete: there are no others
    :param heard_s: when a host was heard last; null: there is none
    :param known_since_s: when the first of the hosts was heard first, after the database was made
    :param silent_hosts: hosts that were not heard for two minutes, but within a day: what they
        have come to need since is not among the images
    :param now_s: when this is said
    """

    images: list[str]
    is_complete: bool
    heard_s: float | None
    known_since_s: float | None
    silent_hosts: int
    now_s: float


def needed(call: operation.Call) -> Needed:
    """Answer with the images that hosts need."""
    now_s = call.wall()
    found = call.store.needed_images(now_s - held_images.KEPT_S, now_s - LATELY_S, MOST)
    return Needed(
        images=found.image_ids,
        is_complete=found.is_complete,
        heard_s=found.heard_s,
        known_since_s=found.known_since_s,
        silent_hosts=found.silent_hosts,
        now_s=now_s,
    )


OPERATIONS = (
    operation.Operation(
        "image:needed",
        "GET",
        "/v1/needed",
        "List the images that hosts use and that are not whole there",
        Needed,
        needed,
        # Not the agents' role: no compute host is to read what those of all tenants use.
        rule=f"role:acstor-prepare or role:service or {operation.READER}",
    ),
)
