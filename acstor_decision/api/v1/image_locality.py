# SPDX-License-Identifier: Apache-2.0
"""Locality of images: how much of an image each host has, for Nova's scheduler."""

from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_decision.api import operation
from acstor_decision.db import image_queries


def locality(call: operation.Call) -> decision_messages.ImageLocality:
    """Return the hosts that have data of an image; none if no host has any."""
    image_id = operation.image_id(call.path["image_id"])
    found = call.store.image_locality(
        image_id, operation.up_since_s(call), decision_messages.MAX_LOCALITY_HOSTS
    )
    hosts = [_host_locality(row) for row in found if ids.HOST_ID.fullmatch(row.host)]
    return decision_messages.ImageLocality(image_id, sorted(hosts, key=lambda one: one.host))


def _host_locality(row: image_queries.Locality) -> decision_messages.HostLocality:
    busier_bytes_s = max(row.received_bytes_s, row.sent_bytes_s)
    is_complete = row.missing_bytes == 0
    boot_set = 1.0 if is_complete else _share(row.boot_set_cached_bytes, row.boot_set_bytes)
    image_bytes = (row.cached_bytes or 0) + (row.missing_bytes or 0)
    return decision_messages.HostLocality(
        row.host,
        boot_set,
        _share(row.cached_bytes, image_bytes) or 0.0,
        _share(busier_bytes_s, row.link_bytes_s) or 0.0,
    )


def _share(part: float | None, of: float | None) -> float | None:
    return None if part is None or not of else round(min(max(part / of, 0.0), 1.0), 3)


OPERATIONS = (
    operation.Operation(
        "image:locality",
        "GET",
        "/v1/images/{image_id}/locality",
        "Show how much of an image each host has cached",
        decision_messages.ImageLocality,
        locality,
        # Nova's user, not the agents' role: a compute host must not see images of other tenants
        rule=f"role:service or {operation.READER}",
    ),
)
