# SPDX-License-Identifier: Apache-2.0
"""Defers the background fill of an image while a guest boots from it.

If the source is far, the fill waits for the boot image only: it spares the guest round trips.
"""

from collections.abc import Collection

from acstor_agent.core import counters
from acstor_agent.core.boot import boot_activity
from acstor_agent.core.images import readahead
from acstor_agent.images.image import mirrors
from acstor_agent.images.read import boot_session
from acstor_common.model import ids

FAR_S = 0.02
"""Round-trip time from which on a source is far: in it, 100 Mbit/s carry four chunks."""
_HERE = (counters.Origin.ZERO, counters.Origin.CACHE)


class BootDeferral:
    """Boots of images: each ends ``idle_s`` after its last remote read, or ``longest_s`` long."""

    def __init__(
        self,
        images: mirrors.Mirrors,
        sessions: boot_session.BootSessions,
        idle_s: float,
        longest_s: float,
        source: readahead.Source = readahead.LOCAL,
    ) -> None:
        self._images, self._sessions, self._source = images, sessions, source
        self._idle_s, self._longest_s = idle_s, longest_s
        self._boots: dict[ids.ImageId, boot_activity.BootActivity] = {}

    def note_reads(self, image_id: ids.ImageId) -> None:
        """Record the remote reads of an image since the last call."""
        image = self._images.get_nowait(image_id)
        if image is None:
            return
        boot = self._boots.get(image_id)
        if boot is None:
            boot = self._boots[image_id] = boot_activity.BootActivity(self._idle_s, self._longest_s)
        boot.last_begin(image.boots.begun_s)
        requests = image.counters.read.requests
        fetched = sum(count for origin, count in requests.items() if origin not in _HERE)
        is_waited_for = bool(image.counters.in_flight)
        boot.note_fetches(fetched, is_waited_for=is_waited_for, now_s=self._sessions.clock())

    def is_booting(self, image_id: ids.ImageId) -> bool:
        """Return whether a guest boots from an image; any thread may call it."""
        image, boot = self._images.get_nowait(image_id), self._boots.get(image_id)
        if image is None or boot is None:
            return False
        boot.last_begin(image.boots.begun_s)
        is_expected = image.boots.state in (boot_session.State.LOADING, boot_session.State.READY)
        return boot.is_on(self._sessions.clock(), is_expected=is_expected)

    @property
    def rtt_s(self) -> float:
        """Least round-trip time to the source; 0 if it is unknown."""
        return self._source.rtt_s

    @property
    def is_far(self) -> bool:
        """Whether guests wait for round trips to the source rather than for its bytes."""
        return self.rtt_s >= FAR_S

    def must_wait(self, image_id: ids.ImageId) -> bool:
        """Return whether the fill of an image waits for a boot."""
        if not self.is_booting(image_id):
            return False
        image = self._images.get_nowait(image_id)
        is_loading = image is not None and image.boots.state is boot_session.State.LOADING
        return is_loading or not self.is_far

    def is_any_booting(self) -> bool:
        """Return whether a guest boots from any image."""
        return any(map(self.is_booting, list(self._boots)))

    def forget_others(self, kept: Collection[ids.ImageId]) -> None:
        """Forget images that are not kept."""
        for image_id in self._boots.keys() - kept:
            del self._boots[image_id]
