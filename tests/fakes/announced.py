# SPDX-License-Identifier: Apache-2.0
"""Chunks as announcements name them, where each chunk is a segment."""

from acstor_common.model import ids
from acstor_common.model import segments


def alone(*oids: int) -> tuple[segments.Chunks, ...]:
    """Return chunks of which each is a segment."""
    return tuple([(ids.Oid(oid), 1) for oid in oids])
