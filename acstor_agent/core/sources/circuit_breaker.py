# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker for a source: whether it is down, how long it is silent, when to try it again.

The pattern is Nygard's ("Release It!", 2007), but that a source that is down is asked last and not
left out.  A source that failed is *down*: others are asked before it, for a pause.  When that is
over one who asks tries it first; the others go on as if it were down until that one has an answer,
and if it has none the pause doubles.  Failures of those who asked before tell nothing new.

Silence is counted from the last answer to anybody, or from when somebody began to wait: a slow
source with a queue before it answers one after the other, a dead one answers nobody.  Times are
seconds of one clock, given by the caller.
"""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0


class CircuitBreaker:
    """What is known of one source.

    >>> breaker = CircuitBreaker()
    >>> breaker.failed(0.0), breaker.failed(0.0)
    (True, False)
    >>> breaker.may_be_first(4.9), breaker.may_be_first(5.0), breaker.may_be_first(5.0)
    (False, True, False)
    >>> breaker.asked(5.0)
    >>> breaker.answered(7.0), breaker.is_down
    (2.0, False)
    """

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self.is_down = False
        self.silent_since_s = 0.0
        """Meant while somebody waits for an answer."""
        self._first_pause_s = self._pause_s = first_pause_s
        self._try_again_s = 0.0
        self._is_tried = False
        self._waiting = 0

    def may_be_first(self, now_s: float) -> bool:
        """Say whether to ask it as if it were in order; of a source that is down, one may try."""
        if not self.is_down:
            return True
        if now_s < self._try_again_s:
            return False
        self._try_again_s = now_s + self._pause_s
        self._is_tried = True
        return True

    def begin_wait(self, now_s: float) -> None:
        """Note that somebody waits for an answer."""
        if not self._waiting:
            self.silent_since_s = now_s
        self._waiting += 1

    def end_wait(self) -> None:
        """Note that somebody does not wait any more, for whatever reason."""
        self._waiting -= 1

    def record_answer(self, now_s: float) -> float:
        """Note an answer; return how long the source was silent before it."""
        silent_s = now_s - self.silent_since_s
        self.silent_since_s = now_s
        self.is_down = self._is_tried = False
        self._pause_s = self._first_pause_s
        return silent_s

    def record_failure(self, now_s: float) -> bool:
        """Note that it does not answer; return whether that is news."""
        is_news = not self.is_down
        if self._is_tried:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if is_news or self._is_tried:
            self._try_again_s = now_s + self._pause_s
        self.is_down, self._is_tried = True, False
        return is_news
