# SPDX-License-Identifier: Apache-2.0
"""Whether guests of this host boot from an image, told from what they need from elsewhere.

A boot is over when it has needed nothing for a while, and in any case some time after it began.
Boots that follow each other without a pause are one: else an image that is opened often would boot
for ever.

Times are seconds of one clock that never goes back, given by the caller.
"""

import math


class BootActivity:
    """The boots from one image.

    :param idle_s: a boot is over when nothing was needed from elsewhere for so long
    :param longest_s: and so long after its beginning in any case

    >>> activity = BootActivity(idle_s=10.0, longest_s=60.0)
    >>> activity.begun(100.0)
    >>> activity.is_on(105.0, is_expected=False), activity.is_on(110.0, is_expected=False)
    (True, False)
    >>> activity.fetched(7, is_waited_for=False, now_s=110.0)
    >>> activity.is_on(115.0, is_expected=False), activity.is_on(160.0, is_expected=True)
    (True, False)
    """

    def __init__(self, idle_s: float, longest_s: float) -> None:
        self._idle_s, self._longest_s = idle_s, longest_s
        self._fetched = 0
        self._active_s = self._begun_s = -math.inf
        self._since_s: float | None = None

    def last_begin(self, begun_s: float) -> None:
        """Note when a guest was about to boot last; -inf if none was yet."""
        if begun_s == self._begun_s:
            return
        if self._since_s is None or begun_s - max(self._begun_s, self._active_s) >= self._idle_s:
            self._since_s = begun_s
        self._begun_s = begun_s

    def note_fetches(self, count: int, *, is_waited_for: bool, now_s: float) -> None:
        """Note how many reads needed something from elsewhere so far, and whether one waits now."""
        if count != self._fetched or is_waited_for:
            self._fetched, self._active_s = count, now_s

    def is_on(self, now_s: float, *, is_expected: bool) -> bool:
        """Say whether a guest boots.

        :param is_expected: a boot image is kept ready for one
        """
        if self._since_s is None:
            return is_expected
        if now_s - self._since_s >= self._longest_s:
            return False
        return is_expected or now_s - max(self._begun_s, self._active_s) < self._idle_s
