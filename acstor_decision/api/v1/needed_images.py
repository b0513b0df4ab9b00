# SPDX-License-Identifier: Apache-2.0
"""Images that must stay in the image store: used by hosts and not fully cached.

A silent host counts for a day, so that an outage makes no image look unneeded.
"""

from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_decision.api import operation
from acstor_decision.db import image_queries
from acstor_decision.db import json_columns

MAX_IMAGES = 10_000
SILENT_AFTER_S = 120.0  # a host without a sample for this time is silent


def needed(call: operation.Call) -> decision_messages.NeededImages:
    """Return the images that hosts still need."""
    now_s = call.wall()
    found = call.store.needed_images(
        now_s - image_queries.KEPT_S, now_s - SILENT_AFTER_S, MAX_IMAGES
    )
    known = [image_id for image_id in found.image_ids if _is_id(image_id)]
    return decision_messages.NeededImages(
        images=known,
        is_complete=found.is_complete and len(known) == len(found.image_ids),
        last_sample_s=found.last_sample_s,
        first_sample_s=found.known_since_s,
        silent_hosts=found.silent_hosts,
        now_s=now_s,
    )


def _is_id(text: str) -> bool:
    try:
        return bool(ids.parse_image_id(text))
    except ValueError as e:  # until the host reports again, some image may be missing
        json_columns.log_damage(f"held_images.image_id of {text!r}", e)
        return False


OPERATIONS = (
    operation.Operation(
        "image:needed",
        "GET",
        "/v1/needed-images",
        "List the images that hosts use and have not fully cached",
        decision_messages.NeededImages,
        needed,
        # not the agents' role: a compute host must not see images of other tenants
        rule=f"role:acstor-prepare or role:service or {operation.READER}",
    ),
)
