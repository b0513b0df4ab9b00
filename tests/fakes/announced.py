# SPDX-License-Identifier: Apache-2.0
"""Chunks in the form of announcements, one chunk per segment."""

from acstor_common.model import ids
from acstor_common.model import segments


def alone(*oids: int) -> tuple[segments.Chunks, ...]:
    """Return chunks, each as a segment of its own."""
    return tuple([(ids.Oid(oid), 1) for oid in oids])
