# SPDX-License-Identifier: Apache-2.0
"""Refusals of a source, by image, for operators."""

from acstor_agent.core import health_issues
from acstor_common.model import ids
from acstor_common.util import lru_table

IMAGES = 64
KEPT_S = 600.0  # a refusal is reported for this long after it last occurred


class Refusals:
    """The refusals of one source; times are seconds of one clock, from the caller.

    >>> refusals, image = Refusals(), ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> refusals.record_refusal(image, "403", 10.0), refusals.record_refusal(image, "403", 20.0)
    (True, False)
    >>> refusals.last_refusal(30.0)
    HealthIssue(why='403', since_s=10.0)
    >>> refusals.last_refusal(1000.0)
    >>> refusals.clear_refusal(image)
    """

    def __init__(self) -> None:
        self._known = lru_table.LruTable[ids.ImageId, tuple[health_issues.HealthIssue, float]](
            IMAGES
        )

    def record_refusal(self, image_id: ids.ImageId, why: str, now_s: float) -> bool:
        """Record a refusal; return whether its reason is new for this source."""
        known = self._live(now_s)
        since_s = next((refusal.since_s for refusal in known if refusal.why == why), None)
        is_news = since_s is None
        self._known[image_id] = (
            health_issues.HealthIssue(why, now_s if since_s is None else since_s),
            now_s,
        )
        return is_news

    def clear_refusal(self, image_id: ids.ImageId) -> None:
        """Record a successful read of an image."""
        self._known.pop(image_id, None)

    def last_refusal(self, now_s: float) -> health_issues.HealthIssue | None:
        """Return the latest refusal; any thread may call it."""
        return next(reversed(self._live(now_s)), None)

    def _live(self, now_s: float) -> list[health_issues.HealthIssue]:
        return [
            refusal for refusal, seen_s in list(self._known.values()) if now_s < seen_s + KEPT_S
        ]
