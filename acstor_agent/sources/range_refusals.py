# SPDX-License-Identifier: Apache-2.0
"""Blobs of which Glance serves no ranges, because of the store that holds them."""

from typing import NamedTuple

import trio

from acstor_agent.sources import base
from acstor_agent.sources.http_client import http_range
from acstor_common.util import lru_table

RETRY_S = 300.0  # until reads ask again for ranges that Glance did not serve
BLOBS_LIMIT = 4096
NO_RANGES = (
    "the store that holds the image does no range reads (Glance answered {status}): only file and "
    "cinder stores do. Where acstor-glance-gateway runs name the source gateway as well; or let "
    "Glance copy the image to a file store (import method copy-image)"
)


class _Refusal(NamedTuple):
    until_s: float  # until then reads do not ask
    why: str


class RangeRefusals:
    """The blobs whose last range Glance refused."""

    def __init__(self, retry_s: float = RETRY_S) -> None:
        self._retry_s = retry_s
        self._refused = lru_table.LruTable[base.Blob, _Refusal](BLOBS_LIMIT)

    def __contains__(self, blob: base.Blob) -> bool:
        return blob in self._refused

    def why_not_asked(self, blob: base.Blob) -> str:
        """Return why reads do not ask for a range of a blob now; empty: they ask."""
        known = self._refused.get(blob)
        return known.why if known is not None and trio.current_time() < known.until_s else ""

    def record_refusal(
        self, blob: base.Blob, size_bytes: int, error: http_range.RangeRefused
    ) -> str:
        """Record a refusal of ranges, and return its meaning; empty: the error is another one."""
        is_inside = error.range_request.offset + error.range_request.length <= size_bytes
        if error.status not in (200, 400) and not (error.status == 416 and is_inside):
            return ""
        why = NO_RANGES.format(status=error.status)
        self._refused[blob] = _Refusal(trio.current_time() + self._retry_s, why)
        return why

    def clear_refusal(self, blob: base.Blob) -> None:
        """Record that Glance served a range of a blob."""
        self._refused.pop(blob, None)
