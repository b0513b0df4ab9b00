# SPDX-License-Identifier: Apache-2.0
"""All targets, by name."""

from tests.security.fuzz import checkpoints
from tests.security.fuzz import compressed_clusters
from tests.security.fuzz import deltas
from tests.security.fuzz import formats
from tests.security.fuzz import nbd_answers
from tests.security.fuzz import signed_messages
from tests.security.fuzz import trust
from tests.security.fuzz import wire_messages

_FAMILIES = (
    *(formats, deltas, compressed_clusters, wire_messages),
    *(trust, signed_messages, checkpoints, nbd_answers),
)
BY_NAME = {target.name: target for family in _FAMILIES for target in family.ALL}
