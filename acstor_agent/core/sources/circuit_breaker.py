# SPDX-License-Identifier: Apache-2.0
"""Circuit breaker of a source (Nygard, "Release It!", 2007) that is asked last while it is down.

After a failure others are asked first, for a pause. Then one request tries the source first; if it
fails, the pause doubles. Silence counts from the last answer, or from the start of a wait.
"""

from acstor_common.util import backoff

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0


class CircuitBreaker:
    """State of one source.

    >>> breaker = CircuitBreaker()
    >>> breaker.record_failure(0.0), breaker.record_failure(0.0)
    (True, False)
    >>> breaker.attempt_request(4.9), breaker.attempt_request(5.0), breaker.attempt_request(5.0)
    (False, True, False)
    >>> breaker.begin_wait(5.0)
    >>> breaker.record_answer(7.0), breaker.is_down
    (2.0, False)
    """

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self.is_down = False
        self.silent_since_s = 0.0  # valid only while a request waits
        self._first_pause_s, self._failed_tries = first_pause_s, 0
        self._try_again_s = 0.0
        self._is_tried = False
        self._waiting = 0

    def attempt_request(self, now_s: float) -> bool:
        """Return whether to ask it first; while it is down, only once in each pause."""
        if not self.is_down:
            return True
        if now_s < self._try_again_s:
            return False
        self._try_again_s = now_s + self._pause_s()
        self._is_tried = True
        return True

    def _pause_s(self) -> float:
        return backoff.pause_s(self._failed_tries, self._first_pause_s, LONGEST_PAUSE_S)

    def begin_wait(self, now_s: float) -> None:
        """Record the start of a wait for an answer."""
        if not self._waiting:
            self.silent_since_s = now_s
        self._waiting += 1

    def end_wait(self) -> None:
        """Record the end of a wait, for any reason."""
        self._waiting -= 1

    def record_answer(self, now_s: float) -> float:
        """Record an answer; return how long the source was silent before it."""
        silent_s = now_s - self.silent_since_s
        self.silent_since_s = now_s
        self.is_down = self._is_tried = False
        self._failed_tries = 0
        return silent_s

    def record_failure(self, now_s: float) -> bool:
        """Record a failure; return whether the source was up before."""
        is_news = not self.is_down
        if self._is_tried:
            self._failed_tries += 1
        if is_news or self._is_tried:
            self._try_again_s = now_s + self._pause_s()
        self.is_down, self._is_tried = True, False
        return is_news
