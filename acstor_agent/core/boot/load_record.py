# SPDX-License-Identifier: Apache-2.0
"""How a boot image came into memory: when, and which bytes from where."""

import collections

from acstor_agent.core import counters
from acstor_common.formats import boot_image
from acstor_common.model import ids


class LoadRecord:
    """How a boot image came into memory the last time; moments are of the host's clock.

    :ivar head_s: when it was known what is in it, or that there is none; 0 before
    :ivar ended_s: when nothing was on its way any more; 0 before
    """

    __slots__ = ("_frames", "began_s", "bytes", "ended_s", "head_s")

    def __init__(self, began_s: float) -> None:
        self.began_s, self.head_s, self.ended_s = began_s, 0.0, 0.0
        self.bytes: collections.Counter[counters.Origin] = collections.Counter()
        self._frames: set[ids.Cid] = set()

    def frame_arrived(self, frame: boot_image.Frame, origin: counters.Origin) -> None:
        """Note a frame, once."""
        if frame.cid not in self._frames:
            self._frames.add(frame.cid)
            self.bytes[origin] += frame.stored_bytes
