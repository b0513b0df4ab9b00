# SPDX-License-Identifier: Apache-2.0
"""Which images hosts need: they use them, and are not whole.

The one rule: a host that fell silent needs what it needed for a day, so nobody takes
an image for unneeded because a host, or the message bus, is away.
"""

import msgspec

from acstor_decision.api import operation
from acstor_decision.db import held_images

MOST = 10_000


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """Images that must not lose their bytes in the image store yet; times in seconds since 1970.

    :param images: ids of images that some host uses, and that are not whole there; 10,000 at most
    :param heard_s: when a host was heard last; null: there is none
    :param known_since_s: when the first of the hosts was heard first, after the database was made
    :param now_s: when this is said
    """

    images: list[str]
    heard_s: float | None
    known_since_s: float | None
    now_s: float


def needed(call: operation.Call) -> Needed:
    """Answer with the images that hosts need."""
    now_s = call.wall()
    found = call.store.needed_images(now_s - held_images.KEPT_S, MOST)
    return Needed(
        images=found.image_ids,
        heard_s=found.heard_s,
        known_since_s=found.known_since_s,
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
        rule=f"{operation.SERVICE} or {operation.READER}",
    ),
)
