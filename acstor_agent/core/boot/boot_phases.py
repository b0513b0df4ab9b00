# SPDX-License-Identifier: Apache-2.0
"""Histograms of the phases of finished boots, of all images and by image."""

import enum
from collections.abc import Iterable
from collections.abc import Mapping

from acstor_agent.core import counters
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.util import lru_table

MAX_IMAGES = 256
BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class BootPhase(enum.StrEnum):
    """Phase of a boot; several may run at the same time."""

    ATTACH = "attach"  # Nova's requests to attach the image
    CHUNK_MAP = "chunk_map"  # the load of the chunk map, if the host did not have it
    BOOT_IMAGE = "boot_image"  # the load of the boot image, if the host did not have it
    READS = "reads"  # from the open of the image to the last read
    WAITING = "waiting"  # the part of READS with a read pending
    TOTAL = "total"  # from the beginning to the last read


_OF_SPANS = {
    "attach": BootPhase.ATTACH,
    "chunk map": BootPhase.CHUNK_MAP,
    "boot image head": BootPhase.BOOT_IMAGE,
    "boot image": BootPhase.BOOT_IMAGE,
}

Histograms = Mapping[BootPhase, counters.Latency]


def durations(timeline: boot_timeline.Timeline) -> dict[BootPhase, float]:
    """Return the duration of each phase that the boot had, in seconds.

    >>> span = boot_timeline.Span("chunk map", 0.5, 2.0)
    >>> timeline = boot_timeline.Timeline(
    ...     image_id="7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11",
    ...     began_at_s=0.0, spans=(span,), opened_s=3.0, last_s=13.0,
    ...     waited_s={"source": 4.0, "peer": 0.5}, slice_s=1.0,
    ... )
    >>> {phase.value: seconds for phase, seconds in durations(timeline).items()}
    {'chunk_map': 1.5, 'reads': 10.0, 'waiting': 4.5, 'total': 13.0}
    """
    found: dict[BootPhase, float] = {}
    for span in timeline.spans:
        if (phase := _OF_SPANS.get(span.what)) is not None:
            found[phase] = found.get(phase, 0.0) + max(0.0, span.to_s - span.from_s)
    found[BootPhase.READS] = max(0.0, timeline.last_s - timeline.opened_s)
    found[BootPhase.WAITING] = sum(timeline.waited_s.values())
    found[BootPhase.TOTAL] = timeline.last_s
    return found


class BootHistograms:
    """Histograms of phases since the start; those of MAX_IMAGES images, the last booted ones."""

    def __init__(self) -> None:
        self._total = {phase: counters.Latency(BOUNDS_S) for phase in BootPhase}
        self._by_image = lru_table.LruTable[ids.ImageId, dict[BootPhase, counters.Latency]](
            MAX_IMAGES
        )

    def count_boot(self, timeline: boot_timeline.Timeline) -> None:
        """Count a finished boot."""
        image_id = ids.parse_image_id(timeline.image_id)
        of_image = self._by_image.get_as_used(image_id)
        if of_image is None:
            of_image = {phase: counters.Latency(BOUNDS_S) for phase in BootPhase}
            self._by_image[image_id] = of_image
        for phase, seconds in durations(timeline).items():
            self._total[phase].add(seconds)
            of_image[phase].add(seconds)

    def totals(self) -> dict[None, Histograms]:
        """Return the histograms of all images, under None; thread-safe."""
        return {None: self._total}

    def of_images(self, image_ids: Iterable[ids.ImageId]) -> dict[ids.ImageId, Histograms]:
        """Return the histograms of those of some images that were booted; thread-safe."""
        found = {image_id: self._by_image.get(image_id) for image_id in image_ids}
        return {image_id: one for image_id, one in found.items() if one is not None}
