# SPDX-License-Identifier: Apache-2.0
"""Record of how a boot image was loaded: times, and bytes by origin."""

import collections

from acstor_agent.core import counters
from acstor_common.formats import boot_image
from acstor_common.model import ids


class LoadRecord:
    """The last load of a boot image; times are of the host's clock."""

    __slots__ = ("_frames", "began_s", "bytes", "ended_s", "head_s")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.head_s = 0.0  # when its contents, or its absence, were known; 0: not yet
        self.ended_s = 0.0  # when the last transfer ended; 0: none did
        self.bytes: collections.Counter[counters.Origin] = collections.Counter()
        self._frames: set[ids.Cid] = set()

    def frame_arrived(self, frame: boot_image.Frame, origin: counters.Origin) -> None:
        """Record a frame; repeated ones do not count."""
        if frame.cid not in self._frames:
            self._frames.add(frame.cid)
            self.bytes[origin] += frame.stored_bytes
