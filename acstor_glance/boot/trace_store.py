# SPDX-License-Identifier: Apache-2.0
"""Stores boot traces from agents, within limits, until a boot image is made of them.

The limits hold for boots without a profile and for those of each profile.
"""

import collections
import contextlib
import pathlib
import threading

import msgspec

from acstor_common.model import ids
from acstor_common.util import atomic_file
from acstor_common.wire import trace_message

MAX_TRACES = 8
MAX_HOST_TRACES = 2
MAX_PROFILES = 4  # profiles of an image; the least recently recorded are dropped
MAX_IMAGES = 1000
SUFFIX = ".actraces"


class TraceStore:
    """The folder of traces; thread-safe."""

    def __init__(self, state_dir: pathlib.Path, *, images_limit: int = MAX_IMAGES) -> None:
        self._images_limit = images_limit
        self._folder = state_dir / "traces"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def add_trace(self, trace: trace_message.BootTrace) -> int:
        """Add a trace, dropping surplus ones; return how many the image has."""
        image_id = ids.parse_image_id(trace.image_id)
        with self._lock:
            kept = [old for old in self._load(image_id) if _is_alike(old, trace)]
            if trace in kept:  # sent again, by any host
                return len(kept)
            kept = _drop_surplus([*kept, trace])
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


def _drop_surplus(traces: list[trace_message.BootTrace]) -> list[trace_message.BootTrace]:
    """Return the newest traces of each host, profile and image within the limits, oldest first."""
    kept: list[trace_message.BootTrace] = []
    of_profile: collections.Counter[str] = collections.Counter()
    of_host: collections.Counter[tuple[str, str]] = collections.Counter()
    for trace in reversed(traces):
        its, by = trace.profile, (trace.profile, trace.host)
        is_new = its != "" and its not in of_profile
        if is_new and len(of_profile.keys() - {""}) == MAX_PROFILES:
            continue
        if of_profile[its] < MAX_TRACES and of_host[by] < MAX_HOST_TRACES:
            kept.append(trace)
            of_profile[its] += 1
            of_host[by] += 1
    return kept[::-1]


def _is_alike(trace: trace_message.BootTrace, two: trace_message.BootTrace) -> bool:
    return (trace.size_bytes, trace.chunk_bytes) == (two.size_bytes, two.chunk_bytes)
