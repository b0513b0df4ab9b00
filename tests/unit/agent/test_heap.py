# SPDX-License-Identifier: Apache-2.0
"""Freed memory of the C library's heap goes back to the kernel."""

import os
import pathlib

from acstor_agent.runtime import heap

PIECE_BYTES, PIECES = 100_000, 400  # below the size for which malloc maps pages of its own
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return PAGE_BYTES * int(pathlib.Path("/proc/self/statm").read_text().split()[1])


def test_freed_memory_below_a_used_piece_is_returned_to_the_kernel() -> None:
    pieces = [b"x" * PIECE_BYTES for _ in range(PIECES)]
    used = pieces[-1]  # at the heap's end, where malloc would return memory by itself
    del pieces
    before = resident_bytes()
    heap.return_freed_memory()
    assert before - resident_bytes() > PIECES * PIECE_BYTES / 2
    assert len(used) == PIECE_BYTES
