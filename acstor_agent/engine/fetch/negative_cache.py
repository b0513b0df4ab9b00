# SPDX-License-Identifier: Apache-2.0
"""When chunks that no host holds count as lost.

A source that denies an image may be wrong for a while: permissions change, or a folder is not
mounted.  A host that has just left the v-node table may be restarting.  So bytes are lost only
after the source has denied their image, again and again, for ``lost_after_s``, and no host has left
the table within that time.
"""

import collections
from collections.abc import Iterable

from acstor_common.model import ids

ASKED_EVERY_S = 60.0
"""The longest time between two answers of the source that are taken for one absence."""
IMAGES = 1024
"""Images that are remembered; one that was forgotten is absent anew."""


class NegativeCache:
    """The images that the source denies, and the hosts that have left the table.

    :param lost_after_s: so long nothing is lost yet; 0: a single answer is enough

    >>> absences = NegativeCache(900.0)
    >>> image_id = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
    >>> absences.denied(image_id, 0.0), absences.denied(image_id, 50.0)
    (900.0, 850.0)
    >>> absences.denied(image_id, 200.0)  # nobody knows what the source said meanwhile
    900.0
    >>> absences.given(image_id)
    >>> absences.denied(image_id, 210.0)
    900.0
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._denied: collections.OrderedDict[ids.ImageId, tuple[float, float]] = (
            collections.OrderedDict()
        )
        self._hosts: dict[ids.HostId, float] = {}

    def __len__(self) -> int:
        """Return how many images are remembered, IMAGES at most."""
        return len(self._denied)

    def record_denial(self, image_id: ids.ImageId, now_s: float) -> float:
        """Note that the source denies an image; return after how many seconds that is believed.

        What is believed stays so while the image is asked for every ``lost_after_s``.

        :param now_s: of a clock that never goes back
        """
        first_s, last_s = self._denied.get(image_id, (now_s, now_s))
        is_believed = last_s - first_s >= self._lost_after_s
        longest_s = max(ASKED_EVERY_S, self._lost_after_s) if is_believed else ASKED_EVERY_S
        if now_s - last_s > longest_s:
            first_s = now_s
        self._denied[image_id] = first_s, now_s
        self._denied.move_to_end(image_id)
        if len(self._denied) > IMAGES:
            self._denied.popitem(last=False)
        return max(0.0, first_s + self._lost_after_s - now_s)

    def clear_denial(self, image_id: ids.ImageId) -> None:
        """Note that the source has given something of an image: it is not absent."""
        self._denied.pop(image_id, None)

    def departed_hosts(self, hosts: Iterable[ids.HostId], now_s: float) -> list[ids.HostId]:
        """Return the hosts that have left the table of late.

        Seen is what was in the table at the last calls.

        :param hosts: those of the table now

        >>> absences = NegativeCache(900.0)
        >>> absences.departed(["h1", "h2"], 0.0), absences.departed(["h1"], 899.0)
        ([], ['h2'])
        >>> absences.departed(["h1"], 900.0)
        []
        """
        since_s = now_s - self._lost_after_s
        seen = {host: at_s for host, at_s in self._hosts.items() if at_s > since_s}
        here = dict.fromkeys(hosts, now_s)
        self._hosts = seen | here
        return sorted(seen.keys() - here.keys())
