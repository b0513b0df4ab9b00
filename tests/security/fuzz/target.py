# SPDX-License-Identifier: Apache-2.0
"""A fuzz target: one parser of untrusted bytes, and its invariants.

A parser takes bytes and raises only its documented refusals, in bounded time and memory.  If the
project also writes the format, accepted input means the same after a write and another read.

"""

import dataclasses
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

MEMORY_FACTOR = 200
"""Bytes that a parser may hold for each byte of its input, beside the target's own floor."""


def without_checksums(data: bytearray) -> None:
    """Leave ``data`` unchanged: its format has no checksums."""


def nothing_to_check(taken: Any, data: bytes) -> None:
    """Check nothing: the project never writes this format."""


@dataclasses.dataclass(frozen=True)
class Target:
    """One parser.

    :param parse: takes bytes; raises only ``refusals``
    :param seeds: accepted inputs, made by the project's own writers or by hand
    :param check: gets the result and the input; its AssertionError is a finding
    :param fix_checksums: corrects the checksums of a damaged input, so that later code is reached
    :param max_bytes: longest input
    :param time_limit_s: for one input; most take less than a thousandth of it
    :param floor_bytes: memory that the shortest input may take
    """

    name: str
    parse: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    check: Callable[[Any, bytes], None] = nothing_to_check
    fix_checksums: Callable[[bytearray], None] = without_checksums
    max_bytes: int = 8192
    time_limit_s: float = 2.0
    floor_bytes: int = 24 << 20

    def try_one(self, data: bytes) -> bool:
        """Return whether the parser accepted ``data``; raise anything but a refusal."""
        began_s = time.monotonic()
        try:
            taken = self.parse(data)
        except self.refusals:
            is_taken = False
        else:
            self.check(taken, data)
            is_taken = True
        took_s = time.monotonic() - began_s
        assert took_s < self.time_limit_s, f"{self.name}: {took_s:.1f} s for {len(data)} bytes"
        return is_taken

    def try_measured(self, data: bytes) -> bool:
        """Do as :meth:`try_one`, and check its memory use."""
        limit_bytes = self.floor_bytes + MEMORY_FACTOR * len(data)
        tracemalloc.start()
        try:
            is_taken = self.try_one(data)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < limit_bytes, f"{self.name}: {peak_bytes} bytes for {len(data)}"
        return is_taken
