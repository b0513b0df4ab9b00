# SPDX-License-Identifier: Apache-2.0
"""How fast all disks together are read for checkpoints, and whether they still are."""

import threading
import time
from collections.abc import Callable

from acstor_common import errors
from acstor_common.util import rate_limiter


class RateLimit:
    """Bounds all readers together; may be used by any thread.

    :param rate_bytes_s: 0: as fast as it goes
    :param ended: set when nothing is to be read any more
    :param clock: monotonic
    """

    def __init__(
        self,
        rate_bytes_s: int,
        ended: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pace, self._ended = rate_limiter.RateLimiter(rate_bytes_s, clock), ended
        self._lock = threading.Lock()

    def spend_bytes(self, count_bytes: int) -> None:
        """Wait until as much may be read.

        :raises errors.Unusable: nothing is to be read any more
        """
        with self._lock:
            wait_s = self._pace.wait_s(count_bytes)
        if self._ended.wait(wait_s) if wait_s else self._ended.is_set():
            raise errors.Unusable("a checkpoint", "the daemon ends")
