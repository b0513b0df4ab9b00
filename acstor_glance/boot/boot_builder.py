# SPDX-License-Identifier: Apache-2.0
"""Builds a boot image: boots the image in a temporary guest and records its reads.

The image is hostile. The guest has no network, bounded memory, a disk served by
:mod:`nbd_recorder`, and a temporary file of bounded size for writes. A seccomp filter, resource
limits and a :mod:`sandbox` confine QEMU. Every chunk is checked against the chunk map.
"""

import dataclasses
import enum
import os
import pathlib
import re
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import boot_trace
from acstor_common.model import geometry
from acstor_common.util import atomic_file
from acstor_glance import sandbox
from acstor_glance.boot import boot_guest
from acstor_glance.boot import guest_disk
from acstor_glance.boot import nbd_recorder
from acstor_glance.boot import page_cache_model
from acstor_glance.prepare import preparation_budget

DEFAULT_MARKER = r"\S login: "
CONSOLE_TAIL_BYTES = 64 * geometry.KIB
SECTOR_BYTES = 512
BOOT_CODE_BYTES = 440  # the boot code at the start of an image; the partition table follows
_OTHER_FIRMWARE = "If it boots by the other one, set its property hw_firmware_type (bios or uefi)"
_POLL_S = 0.25
_KILLED = [
    status
    for number in (signal.SIGKILL, signal.SIGTERM)
    for status in (-number, 128 + number)  # the sandbox reports signals like a shell
]

Progress = Callable[[float, int], None]
"""Called several times per second with seconds since the start, and chunks read."""


class EndReason(enum.Enum):
    """Why the recording ended."""

    MARKER = "marker"  # the marker appeared on the console
    IDLE = "idle"  # nothing new was read for a while
    TIME = "time"  # time limit
    FULL = "full"  # limit of a boot image's chunks
    ENDED = "ended"  # the guest, or QEMU, ended
    NOTHING = "nothing"  # the firmware found nothing to boot


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """A boot trace, and how the boot ended."""

    trace: tuple[int, ...]
    end: EndReason
    seconds_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Result of a build."""

    path: str
    end: str
    chunks: int
    raw_bytes: int
    stored_bytes: int
    image_bytes: int
    seconds_s: float

    def __str__(self) -> str:
        return (
            f"{self.chunks} chunks, {self.stored_bytes / geometry.MIB:.1f} MiB, "
            f"in {self.seconds_s:.1f} s, until {self.end}"
        )


def build(
    image: pathlib.Path,
    image_map: chunk_map.ChunkMap,
    output: pathlib.Path,
    *,
    limits: boot_guest.GuestLimits | None = None,
    firmware: boot_guest.Firmware = boot_guest.Firmware.BIOS,
    marker: str = DEFAULT_MARKER,
    revision: int = 1,
    isolation: sandbox.Sandbox = sandbox.Sandbox.BUBBLEWRAP,
    progress: Progress = lambda seconds_s, chunks: None,
    budget: preparation_budget.PreparationBudget | None = None,
) -> Summary:
    """Boot an image and write its boot image.

    :param marker: regular expression for console output that ends the boot
    :param budget: limits of the cost; None: only slow decoders are refused
    :raises errors.BootFailed: this firmware finds nothing to boot
    :raises errors.Unusable: QEMU cannot be run; it, or decoding the image, takes too much
    :raises errors.ChunkInvalid: the image is not that of the chunk map
    """
    with image.open("rb") as file:
        _check_size(image, os.fstat(file.fileno()).st_size, image_map)
        disk = guest_disk.GuestDisk(file.fileno(), image_map, budget)
        _check_boot_code(image, disk, firmware)
        limits = limits or boot_guest.GuestLimits()
        recording = record_boot(
            disk, image_map.geometry, limits, firmware, marker, isolation, progress
        )
        if recording.end is EndReason.NOTHING:
            raise _boot_failed(image, firmware)
        trace = boot_image.ProfiledTrace(recording.trace)
        head = write_boot_image(disk, image_map, trace, output, revision)
    if not head.header.chunk_count:
        output.unlink()
        raise errors.BootFailed(str(image), "the guest read nothing: it does not boot")
    counts = (head.header.chunk_count, head.raw_bytes, head.size_bytes, disk.size_bytes)
    return Summary(str(output), recording.end.value, *counts, round(recording.seconds_s, 3))


def _check_size(image: pathlib.Path, size_bytes: int, image_map: chunk_map.ChunkMap) -> None:
    expected = image_map.layout.stored.size_bytes
    if size_bytes != expected:
        why = f"it has {size_bytes} bytes, but {expected} in its chunk map"
        raise errors.Unusable(str(image), why, "Make the chunk map again")


def _check_boot_code(
    image: pathlib.Path, disk: guest_disk.GuestDisk, firmware: boot_guest.Firmware
) -> None:
    # The BIOS would execute zeros if a partition table says so.
    if firmware is boot_guest.Firmware.BIOS and not any(disk.read(0, BOOT_CODE_BYTES)):
        raise _boot_failed(image, firmware)


def _boot_failed(image: pathlib.Path, firmware: boot_guest.Firmware) -> errors.BootFailed:
    why = f"it does not boot: it has no boot loader that the firmware ({firmware}) finds"
    return errors.BootFailed(str(image), why, _OTHER_FIRMWARE)


def write_boot_image(
    disk: guest_disk.GuestDisk,
    image_map: chunk_map.ChunkMap,
    trace: boot_image.ProfiledTrace,
    output: pathlib.Path,
    revision: int,
) -> boot_image.Head:
    """Write the boot image of a trace, atomically; ChunkInvalid if a chunk differs."""
    own_scope = next(iter(image_map.scope_keys), None)
    writer = boot_image.Writer(boot_image.Binding.from_map(image_map), revision, key=own_scope)
    for profile, chunk_nos in trace.parts().items():
        for chunk_no in chunk_nos:
            if not image_map.is_zero(chunk_no):
                writer.add(chunk_no, _read_chunk(disk, image_map, chunk_no), profile)
    parts = list(writer.iter_parts())
    with atomic_file.atomic_write(output) as file:
        file.writelines(parts)
    return boot_image.parse_head(parts[0], str(output))


def check_chunks(
    raw: bytes, head: boot_image.Head, image_map: chunk_map.ChunkMap, what: str
) -> None:
    """Raise BootImageFormatError if the chunks differ from the chunk map."""
    boot_image.check_binding(head.header, boot_image.Binding.from_map(image_map), what)
    for frame in head.frames:
        stored = raw[frame.offset : frame.offset + frame.stored_bytes]
        boot_frames.unpack_checked(image_map, frame, stored, what)


def _read_chunk(disk: guest_disk.GuestDisk, image_map: chunk_map.ChunkMap, chunk_no: int) -> bytes:
    cut = image_map.geometry
    data = disk.read(cut.chunk_offset(chunk_no), cut.chunk_length(chunk_no))
    if not image_map.content_of(chunk_no).matches_data(data):
        what = f"chunk {chunk_no} of image {image_map.image_id}"
        raise errors.ChunkInvalid(what, "the image", "its data does not match the chunk map")
    return data


def record_boot(
    disk: guest_disk.GuestDisk,
    cut: geometry.Geometry,
    limits: boot_guest.GuestLimits,
    firmware: boot_guest.Firmware,
    marker: str,
    isolation: sandbox.Sandbox,
    progress: Progress,
) -> Recording:
    """Boot an image and return its recording; raises errors.Unusable."""
    window = boot_trace.Window(
        limits.longest_s,
        limits.idle_s,
        min(boot_image.MAX_CHUNKS, max(1, limits.boot_bytes // cut.chunk_bytes)),
    )
    size_bytes = -(-cut.size_bytes // SECTOR_BYTES) * SECTOR_BYTES
    recorder = _BootRecorder(
        boot_trace.Recorder(cut, window), page_cache_model.PageCacheModel(size_bytes)
    )
    with (
        tempfile.TemporaryFile() as written,
        tempfile.TemporaryFile() as log,
        nbd_recorder.NbdRecorder(disk, size_bytes, recorder.read) as export,
    ):
        boot_guest.make_overlay(written.fileno(), size_bytes)
        with boot_guest.run_guest(
            written.fileno(), export.client, log, limits, firmware, isolation
        ) as process:
            began_s = time.monotonic()
            end = _Watch(process, recorder, limits, marker).wait(progress)
            seconds_s = time.monotonic() - began_s
            status = process.poll()
        words = boot_guest.first_log_lines(log)
    if status in _KILLED:
        why = f"it was killed after {seconds_s:.0f} s, by a user or for lack of memory: {words}"
        raise errors.Unusable(boot_guest.QEMU, why)
    if end is EndReason.ENDED and not recorder.trace():
        raise errors.Unusable(boot_guest.QEMU, f"it ended before the image was read: {words}")
    return Recording(recorder.trace(), end, seconds_s)


class _BootRecorder:
    """Thread-safe recorder; its clock stops while the guest waits for a processor.

    :param cache: translates the guest's reads to those that reach a mirror
    """

    def __init__(
        self, recorder: boot_trace.Recorder, cache: page_cache_model.PageCacheModel
    ) -> None:
        self._recorder = recorder
        self._cache = cache
        self._lock = threading.Lock()
        self._cpu_wait_s = 0.0

    def read(self, offset: int, length: int) -> None:
        with self._lock:
            if self._recorder.is_full:
                return  # also bounds the cache
            for extent in self._cache.read(offset, length):
                self._recorder.record_read(*extent, self._now_s())

    def set_cpu_wait(self, cpu_wait_s: float) -> None:
        with self._lock:
            self._cpu_wait_s = max(self._cpu_wait_s, cpu_wait_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._cpu_wait_s

    def trace(self) -> tuple[int, ...]:
        with self._lock:
            return self._recorder.trace

    def state(self) -> tuple[int, bool, bool]:
        """Return the chunks read, and whether they are too many, and the boot is over."""
        with self._lock:
            recorder = self._recorder
            return recorder.chunk_count, recorder.is_full, recorder.is_over(self._now_s())


class _Watch:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        recorder: _BootRecorder,
        limits: boot_guest.GuestLimits,
        marker: str,
    ) -> None:
        self._process, self._recorder, self._limits = process, recorder, limits
        self._marker = re.compile(marker.encode())
        self._tail = b""
        self._console_is_open = True
        self._marked_s: float | None = None
        self._has_nothing = False

    def wait(self, progress: Progress) -> EndReason:
        """Return why the recording ended; raises Unusable if QEMU takes too much memory."""
        began_s = time.monotonic()
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                if self._console_is_open:
                    if selector.select(_POLL_S):
                        self._take_console(selector)
                else:
                    time.sleep(_POLL_S)
                now_s = time.monotonic()
                self._recorder.set_cpu_wait(sandbox.longest_cpu_wait_s(self._process.pid))
                self._check_memory()
                progress(now_s - began_s, self._recorder.state()[0])
                end = self._end(now_s, now_s - began_s)
                if end is not None:
                    return end

    def _check_memory(self) -> None:
        taken, allowed = sandbox.resident_bytes(self._process.pid), self._limits.resident_bytes
        if taken > allowed:
            sizes = f"{taken // geometry.MIB} MiB of memory, more than {allowed // geometry.MIB}"
            raise errors.Unusable(boot_guest.QEMU, f"it took {sizes}, and was killed")

    def _take_console(self, selector: selectors.BaseSelector) -> None:
        assert self._process.stdout is not None
        text = os.read(self._process.stdout.fileno(), CONSOLE_TAIL_BYTES)
        if not text:
            self._console_is_open = False
            selector.unregister(self._process.stdout)
        self._tail = (self._tail + text)[-CONSOLE_TAIL_BYTES:]
        if self._marked_s is None and self._marker.search(self._tail):
            self._marked_s = time.monotonic()
        elif self._marked_s is None and boot_guest.NOTHING_TO_BOOT.search(self._tail):
            self._has_nothing = True

    def _end(self, now_s: float, since_s: float) -> EndReason | None:
        _, is_full, is_over = self._recorder.state()
        if self._marked_s is not None and now_s - self._marked_s >= self._limits.settle_s:
            return EndReason.MARKER
        if self._has_nothing:
            return EndReason.NOTHING
        if is_full:
            return EndReason.FULL
        if self._process.poll() is not None:
            return EndReason.ENDED
        if since_s >= self._limits.longest_s:
            return EndReason.TIME
        return EndReason.IDLE if is_over else None
