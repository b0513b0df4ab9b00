# SPDX-License-Identifier: Apache-2.0
"""Status of images and boot images; programs read its field names, so they never change."""

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from acstor_agent.control import status
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_phases
from acstor_agent.core.images import image_usage
from acstor_agent.core.mount import blocked_requests
from acstor_agent.images.image import mirrors
from acstor_agent.images.image import usage
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import image_detachment
from acstor_agent.images.keep import pins
from acstor_agent.images.keep import replication
from acstor_agent.images.read import boot_session
from acstor_agent.images.read import mirror
from acstor_common.model import ids


class ImageReport(NamedTuple):
    """State of the images of this host."""

    images: mirrors.Mirrors
    filling: hydration.Hydration | None
    counted: counters.ExchangeCounters
    late: Mapping[str, blocked_requests.LateWaits]  # requests that wait for long, by image or disk
    boots: boot_phases.BootHistograms

    def status(self, uses: usage.ImageUsage) -> dict[str, Any]:
        """Return the state of each attached image, and totals that include detached ones."""
        images, filling = self.images, self.filling
        fetched = dict(self.counted.fetched)  # the event loop's thread modifies it
        shown = {
            image_id: of_image(
                images.get_nowait(image_id),
                fetched.get(image_id),
                images.touched_ns(image_id),
                uses.usage_of(image_id),
                filling.status.status_of(image_id) if filling else None,
                self.late.get(image_id),
                images.size_bytes(image_id),
            )
            for image_id in images.list_attached()
        }
        return {
            "images": shown,
            "read": images.reads.read.as_dict(),
            "fetched": self.counted.fetched_total.as_dict(),
        }

    def totals(self) -> dict[str, Any]:
        """Return the numbers of all images together, under the key None."""
        late, filling = self.late.values(), self._list_fill()
        return {
            "reads": {None: of_reads(self.images.reads, self.counted.fetched_total)},
            "fill": of_fill_totals(filling.values()),
            "late": {
                None: {
                    "requests": sum(requests.count for requests in late),
                    "longest_s": max((requests.longest_s for requests in late), default=0.0),
                }
            },
            "boot_phases": _of_phases(self.boots.totals()),
        }

    def numbers_by_image(self) -> dict[str, Any]:
        """Return the numbers of each image; waiting reads by image or disk."""
        fetched, nothing = dict(self.counted.fetched), counters.Tally()
        reads = {image.map.image_id: image.counters for image in self.images.open()}
        return {
            "reads": {
                image_id: of_reads(reads.get(image_id), fetched.get(image_id, nothing))
                for image_id in self.images.list_attached()
            },
            "fill": {
                image_id: {**shown, "states": {shown["state"]: 1}}
                for image_id, shown in self._list_fill().items()
            },
            "late": {
                file_id: {"requests": requests.count, "longest_s": requests.longest_s}
                for file_id, requests in self.late.items()
            },
            "boot_phases": _of_phases(self.boots.of_images(self.images.list_attached())),
        }

    def _list_fill(self) -> Mapping[ids.ImageId, dict[str, Any]]:
        return self.filling.status.list_status() if self.filling else {}


def _of_phases(
    boots: Mapping[Any, boot_phases.Histograms],
) -> dict[Any, dict[str, dict[str, Any]]]:
    """Return the histograms of boots by image, or under None, and by phase."""
    return {
        image_id: {
            phase.value: status.of_latency(histogram) for phase, histogram in histograms.items()
        }
        for image_id, histograms in boots.items()
    }


def of_fill_totals(shown: Collection[Mapping[str, Any]]) -> dict[None, dict[str, Any]]:
    """Return the total fill status of all images, under None; {} if there is none."""
    if not shown:
        return {}
    numbers = ("total_bytes", "remaining_bytes", "shortfall_bytes", "rate_bytes_s")
    due_s = [fill["due_in_s"] for fill in shown if fill["due_in_s"] is not None]
    return {
        None: {
            **{name: sum(fill[name] or 0 for fill in shown) for name in numbers},
            "due_in_s": min(due_s, default=None),
            "is_late": sum(bool(fill["is_late"]) for fill in shown) if due_s else None,
            "states": collections.Counter(fill["state"] for fill in shown),
        }
    }


def of_reads(read: counters.ReadCounters | None, fetched: counters.Tally) -> dict[str, Any]:
    """Return the counters of guests' reads and fetched data."""
    read = read or counters.ReadCounters()
    return {
        "read": read.read.as_dict(),
        "fetched": fetched.as_dict(),
        "reads_in_flight": read.in_flight,
        "failed_reads": read.failed_reads,
        "lost_reads": read.lost_reads,
        "latency": status.of_latency(read.latency),
    }


def of_replicas(
    replicas: replication.Replication | None, image_pins: pins.ImagePins
) -> dict[str, int] | None:
    """Return the parts of images kept for other hosts; None without replication."""
    if replicas is None:
        return None
    images, total_bytes = image_pins.replica_totals()
    return {"images": images, "bytes": total_bytes, **replicas.report_counts()}


def of_image(
    image: mirror.Mirror | None,
    fetched: counters.Tally | None,
    touched_ns: int,
    use: image_usage.UsageEvidence,
    filling: dict[str, Any] | None,
    late: blocked_requests.LateWaits | None = None,
    size_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the state of one image; most fields are None if it was not read yet."""
    return {
        "size_bytes": image.size_bytes if image else size_bytes,
        "chunk_bytes": image.map.geometry.chunk_bytes if image else None,
        "cached_bytes": image.cached_bytes() if image else None,
        "touched_s": touched_ns / 1e9,
        "is_used": use.is_used(),
        "is_open": use.is_open,
        "fill": filling,
        **of_reads(image.counters if image else None, fetched or counters.Tally()),
        "waiting": status.of_blocked_requests(late),
        "boot_image": of_boot_image(image.boots) if image else None,
    }


def of_boot_image(boots: boot_session.BootSession) -> dict[str, Any]:
    """Return the state of an image's boot image."""
    head = boots.head
    return {
        "state": boots.state.value,
        "revision": head.header.revision if head else None,
        "chunks": head.header.chunk_count if head else None,
        "chunks_in_memory": len(boots.in_memory),
    }


def of_boots(host: boot_session.BootSessions) -> dict[str, Any]:
    """Return the numbers of this host's boot images."""
    return {
        "memory_bytes": host.memory.used_bytes,
        "memory_limit_bytes": host.memory.limit_bytes,
        **dataclasses.asdict(host.counters),
    }


def of_detached(detaching: image_detachment.ImageDetachment) -> dict[str, int]:
    """Return the numbers of detached images and purged chunks."""
    return {"images": detaching.detached, "purged_chunks": detaching.purged_chunks}
