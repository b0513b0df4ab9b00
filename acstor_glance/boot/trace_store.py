# SPDX-License-Identifier: Apache-2.0
"""Stores boot traces from agents, within limits, until a boot image is made of them.

The limits hold for boots without a profile and for those of each profile. The first profiles of an
image stay, so that later ones, which tenants may invent, cannot displace them.
"""

import collections
import contextlib
import logging
import pathlib
import threading
import time

import msgspec

from acstor_common.image import boot_trace
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_common.wire import trace_message

LOG = logging.getLogger(__name__)

MAX_TRACES = 8
MAX_HOST_TRACES = 2
LEAST_TRACES = 2  # a profile with fewer gives way to a new one
UNUSED_S = 7 * 86400.0  # a profile that was not recorded for this long does, too
MAX_IMAGES = 1000
SUFFIX = ".actraces"


class TraceStore:
    """The folder of traces; thread-safe."""

    def __init__(
        self,
        state_dir: pathlib.Path,
        *,
        images_limit: int = MAX_IMAGES,
        clock: clocks.Clock = time,
    ) -> None:
        self._images_limit, self._clock = images_limit, clock
        self._folder = state_dir / "traces"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def add_trace(self, trace: trace_message.BootTrace) -> int:
        """Add a trace, dropping surplus ones; return how many the image has, 0 if not added."""
        image_id = ids.parse_image_id(trace.image_id)
        with self._lock:
            kept = [old for old in self._load(image_id) if _is_alike(old, trace)]
            if trace in kept:  # sent again, by any host
                return len(kept)
            others = _admit_profile(trace.profile, kept, self._clock.time())
            if others is None:
                LOG.info("image %s: a boot of a fifth profile is not used", image_id)
                return 0
            kept = _drop_surplus([*others, trace])
            self._make_room(image_id)
            with atomic_file.atomic_write(self._path(image_id), 0o600) as file:
                file.write(msgspec.json.encode(kept))
            return len(kept)

    def list_traces(self, image_id: ids.ImageId) -> list[trace_message.BootTrace]:
        """Return the traces of an image, oldest first."""
        with self._lock:
            return self._load(image_id)

    def list_images(self) -> list[ids.ImageId]:
        """Return the images with traces."""
        found = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(ValueError):  # leftovers have other names
                found.append(ids.parse_image_id(path.stem))
        return found

    def _path(self, image_id: ids.ImageId) -> pathlib.Path:
        return self._folder / f"{image_id}{SUFFIX}"

    def _load(self, image_id: ids.ImageId) -> list[trace_message.BootTrace]:
        try:
            raw = self._path(image_id).read_bytes()
            return msgspec.json.decode(raw, type=list[trace_message.BootTrace])
        except (FileNotFoundError, msgspec.DecodeError, UnicodeError):
            return []  # damaged counts as missing

    def _make_room(self, image_id: ids.ImageId) -> None:
        others = [path for path in self._folder.glob(f"*{SUFFIX}") if path.stem != image_id]
        if len(others) >= self._images_limit:
            min(others, key=lambda path: path.stat().st_mtime).unlink()


def _admit_profile(
    profile: str, traces: list[trace_message.BootTrace], now_s: float
) -> list[trace_message.BootTrace] | None:
    """Return the traces to keep beside one of ``profile``; None if there are too many profiles.

    A profile with too few traces, or none for UNUSED_S, gives way.
    """
    newest: dict[str, float] = {}
    counts = collections.Counter(trace.profile for trace in traces)
    for trace in traces:
        newest[trace.profile] = max(trace.recorded_s, newest.get(trace.profile, 0.0))
    newest.pop("", None)
    if not profile or profile in newest or len(newest) < boot_trace.MAX_PROFILES:
        return traces
    gone = min(newest, key=newest.__getitem__)
    if newest[gone] > now_s - UNUSED_S:
        gone = next((other for other in newest if counts[other] < LEAST_TRACES), "")
    return [trace for trace in traces if trace.profile != gone] if gone else None


def _drop_surplus(traces: list[trace_message.BootTrace]) -> list[trace_message.BootTrace]:
    """Return the newest traces within the limits of a profile and a host, oldest first."""
    kept: list[trace_message.BootTrace] = []
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    for trace in reversed(traces):
        of_profile, of_host = (trace.profile,), (trace.profile, trace.host)
        if counts[of_profile] < MAX_TRACES and counts[of_host] < MAX_HOST_TRACES:
            kept.append(trace)
            counts[of_profile] += 1
            counts[of_host] += 1
    return kept[::-1]


def _is_alike(trace: trace_message.BootTrace, two: trace_message.BootTrace) -> bool:
    return (trace.size_bytes, trace.chunk_bytes) == (two.size_bytes, two.chunk_bytes)
