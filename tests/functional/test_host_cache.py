# SPDX-License-Identifier: Apache-2.0
"""The model of a host's page cache, compared with the kernel's own over a mirror."""

import ctypes
import os
import pathlib
import random

import pytest

from acstor_common.model import geometry
from acstor_glance.boot import page_cache_model
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

PAGE = page_cache_model.PAGE_BYTES
SIZE_BYTES = 32 * geometry.MIB
READS = 300
LENGTHS = (512, PAGE, 2 * PAGE, 4 * PAGE, 16 * PAGE, 32 * PAGE, 64 * PAGE)
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p


def pages_here(descriptor: int) -> set[int]:
    """Return which pages of a file are in the page cache (mincore(2))."""
    count = SIZE_BYTES // PAGE
    whole = ctypes.c_size_t(SIZE_BYTES)
    address = _LIBC.mmap(None, whole, 1, 1, descriptor, ctypes.c_long(0))  # PROT_READ, MAP_SHARED
    assert address != ctypes.c_void_p(-1).value
    found = (ctypes.c_ubyte * count)()
    try:
        if _LIBC.mincore(ctypes.c_void_p(address), whole, found):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        _LIBC.munmap(ctypes.c_void_p(address), whole)
    return {page for page, state in enumerate(found) if state & 1}


def some_reads(seed: int) -> list[page_cache_model.Extent]:
    """Return reads as guests make them: half of them continue the former one."""
    dice = random.Random(seed)
    made, offset = [], 0
    for _ in range(READS):
        kind = dice.random()
        if kind > 0.6:
            offset = dice.randrange(SIZE_BYTES // PAGE - 64) * PAGE
        elif kind > 0.5:
            offset = max(0, offset - dice.randrange(64) * PAGE)
        length = min(dice.choice(LENGTHS), SIZE_BYTES - offset)
        if length:
            made.append((offset, length))
        offset = (offset + length) % SIZE_BYTES
    return made


@pytest.mark.parametrize("seed", [1, 2])
def test_model_reads_the_pages_that_the_kernel_reads(
    tmp_path: pathlib.Path, images: local.ImageFolder, seed: int
) -> None:
    image_id = images.add(random.Random(seed).randbytes(SIZE_BYTES))
    model, came = page_cache_model.PageCacheModel(SIZE_BYTES), set[int]()
    kernel = set[int]()
    with hosts.running(tmp_path, images) as agent:
        descriptor = os.open(agent.image_path(image_id), os.O_RDONLY)
        try:
            for offset, length in some_reads(seed):
                os.pread(descriptor, length, offset)
                for at, size in model.read(offset, length):
                    came |= set(range(at // PAGE, (at + size) // PAGE))
                kernel |= pages_here(descriptor)  # now: it may evict pages for other processes
        finally:
            os.close(descriptor)
    print(f"kernel {len(kernel)}, missing {len(kernel - came)}, too many {len(came - kernel)}")
    read = {
        page
        for offset, length in some_reads(seed)
        for page in range(offset // PAGE, -(-(offset + length) // PAGE))
    }
    assert read <= came & kernel
    ahead = kernel - read
    assert len(ahead) > 300  # else the comparison proves nothing
    assert len(ahead - came) < 0.25 * len(ahead)
    assert len(came - kernel) < 0.25 * len(ahead)
