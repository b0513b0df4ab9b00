# SPDX-License-Identifier: Apache-2.0
"""Images that must stay in the image store: used by hosts and not fully cached.

The needs of a silent host count for a day, so that an outage makes no image look unneeded. A
revoked host needs nothing.
"""

import msgspec

from acstor_decision.api import operation
from acstor_decision.db import image_queries

MOST = 10_000
LATELY_S = 120.0
"""A host without a sample for this time is silent."""


class NeededImages(msgspec.Struct, frozen=True, kw_only=True):
    """Images whose data must stay in the image store; times in seconds since 1970.

    :param images: ids of images that a host uses and has not fully cached; at most 10,000, those of
        the hosts that are known longest first
    :param is_complete: the list has all such images
    :param last_sample_s: time of the last sample of any host; null: there is none
    :param first_sample_s: time of the first sample that the database knows; null: there is none
    :param silent_hosts: number of hosts whose last sample is older than two minutes and younger
        than a day; the list lacks images that they began to use since
    :param now_s: time of this answer
    """

    images: list[str]
    is_complete: bool
    last_sample_s: float | None
    first_sample_s: float | None
    silent_hosts: int
    now_s: float


def needed(call: operation.Call) -> NeededImages:
    """Return the images that hosts still need."""
    now_s = call.wall()
    found = call.store.needed_images(now_s - image_queries.KEPT_S, now_s - LATELY_S, MOST)
    return NeededImages(
        images=found.image_ids,
        is_complete=found.is_complete,
        last_sample_s=found.heard_s,
        first_sample_s=found.known_since_s,
        silent_hosts=found.silent_hosts,
        now_s=now_s,
    )


OPERATIONS = (
    operation.Operation(
        "image:needed",
        "GET",
        "/v1/needed-images",
        "List the images that hosts use and have not fully cached",
        NeededImages,
        needed,
        # not the agents' role: a compute host must not see images of other tenants
        rule=f"role:acstor-prepare or role:service or {operation.READER}",
    ),
)
