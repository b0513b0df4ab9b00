# SPDX-License-Identifier: Apache-2.0
"""The boot set of an image: what all boots read, and how much of it a host has cached."""

from collections.abc import Callable
from collections.abc import Container
from typing import NamedTuple

from acstor_common.formats import boot_image
from acstor_common.formats import layout
from acstor_common.model import ids

FRAMES_IN_A_ROW = 256  # frames between two pauses; each has four chunks by default


class BootSet(NamedTuple):
    """Uncompressed bytes of a boot image, and those of them that are cached."""

    total_bytes: int
    cached_bytes: int


def count(
    head: boot_image.Head,
    cid_of: Callable[[int], ids.Cid],  # of a chunk of the image
    cache: Container[ids.Cid],
    pause: layout.Pause = layout.no_pause,  # called from time to time
) -> BootSet:
    """Count the bytes that all boots need, and those that are cached, in frames or as chunks."""
    total_bytes = cached_bytes = 0
    for frame in head.frames_of():
        total_bytes += frame.raw_bytes
        if frame.cid in cache:
            cached_bytes += frame.raw_bytes
        else:
            here = sum(cid_of(chunk_no) in cache for chunk_no in frame.chunk_nos)
            cached_bytes += frame.raw_bytes * here // len(frame.chunk_nos)
        if frame.number % FRAMES_IN_A_ROW == FRAMES_IN_A_ROW - 1:
            pause()
    return BootSet(total_bytes, cached_bytes)
