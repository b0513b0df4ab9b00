# SPDX-License-Identifier: Apache-2.0
"""Which signed tasks a host does: those that are for it, of now, and new.

The one rule: a task is done once.  Who recorded one on the message bus can play it
again, to this host or to another; a copy is for nobody else (its hosts are signed),
is old after a while, and until then it is remembered.  A signature can be spelt in more
than one way, so what it says is remembered, not how it was signed.

Hosts' clocks differ.  A task may seem to come from the future by FUTURE_S, and is
old after AGE_S; both are far more than clocks with NTP differ by.
"""

import collections

from acstor_common import decision_api
from acstor_common import ids

AGE_S = 900.0
FUTURE_S = 300.0
MAX_REMEMBERED = 65_536
"""Of 1,200 s, so 50 tasks a second; each takes some 150 bytes."""

_Key = tuple[int, str, str, float]


class SeenTasks:
    """Remembers the tasks that were taken, as long as they are not old."""

    def __init__(self, here: ids.HostId) -> None:
        self._here = here
        self._seen: collections.OrderedDict[_Key, float] = collections.OrderedDict()

    def why_not(self, given: decision_api.TaskForHosts, now_s: float) -> str:
        """Return why a task is not to be done; "" if it is, which is remembered.

        :param given: it was found to be signed by the decision service
        :param now_s: wall clock
        """
        if given.hosts and self._here not in given.hosts:
            return "it is for other hosts"
        age_s = now_s - given.given_s
        if age_s > AGE_S:
            return f"it was given {age_s:.0f} s ago by this host's clock, {AGE_S:.0f} at most"
        if age_s < -FUTURE_S:
            return f"it was given {-age_s:.0f} s from now: one of the two clocks is wrong"
        self._forget(now_s)
        key = (given.task.request, given.task.kind, given.task.image_id, given.given_s)
        if key in self._seen:
            return "it was taken before"
        if len(self._seen) >= MAX_REMEMBERED:
            return f"{MAX_REMEMBERED} others were given since {AGE_S:.0f} s ago"
        self._seen[key] = given.given_s
        return ""

    def _forget(self, now_s: float) -> None:
        """Forget those at the front that are too old to be taken again."""
        while self._seen:
            key, given_s = next(iter(self._seen.items()))
            if now_s - given_s <= AGE_S:
                break
            del self._seen[key]
