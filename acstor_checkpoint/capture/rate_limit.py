# SPDX-License-Identifier: Apache-2.0
"""Rate limit shared by all reads of disks for checkpoints."""

import math
import threading
import time

from acstor_common import errors
from acstor_common.model import clocks
from acstor_common.util import rate_limiter


class RateLimit:
    """Limits the rate of all readers together (0: no limit); thread-safe."""

    def __init__(
        self,
        rate_bytes_s: int,
        ended: threading.Event,
        clock: clocks.Clock = time,
    ) -> None:
        self._limiter = rate_limiter.RateLimiter(rate_bytes_s or math.inf, clock.monotonic)
        self._ended = ended
        self._lock = threading.Lock()

    def spend_bytes(self, count_bytes: int) -> None:
        """Wait until the bytes may be read; Unusable if the daemon stops."""
        with self._lock:
            wait_s = self._limiter.wait_s(count_bytes)
        if self._ended.wait(wait_s) if wait_s else self._ended.is_set():
            raise errors.Unusable("a checkpoint", "the daemon stops")
