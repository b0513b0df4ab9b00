# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: one parser of bytes from outside, and what must be true of it.

The rule: bytes in, and only the documented refusals out, in bounded time and memory.
What was taken means the same after it was written and read again, where the project
writes it too.
"""

import dataclasses
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

MEMORY_FACTOR = 200
"""Bytes that a parser may hold for each byte of its input, beside the target's own floor."""


def nothing_to_mend(data: bytearray) -> None:
    """Leave ``data``: its format has no checksums."""


def nothing_to_check(taken: Any, data: bytes) -> None:
    """Be content: the project never writes this."""


@dataclasses.dataclass(frozen=True)
class Target:
    """One parser.

    :param parse: takes bytes; raises only what ``refusals`` names
    :param seeds: inputs that are taken, made by the project's own writers or by hand
    :param check: given what was taken, and the input; its AssertionError is a finding
    :param mend: makes the checksums of a damaged input right again, so that what lies behind them
        is reached
    :param max_bytes: longest input that is tried
    :param time_limit_s: for one input; most take less than a thousandth of it
    :param floor_bytes: what the shortest input may make it hold
    """

    name: str
    parse: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    check: Callable[[Any, bytes], None] = nothing_to_check
    mend: Callable[[bytearray], None] = nothing_to_mend
    max_bytes: int = 8192
    time_limit_s: float = 2.0
    floor_bytes: int = 24 << 20

    def try_one(self, data: bytes) -> bool:
        """Say whether the parser took ``data``; anything but that or a refusal is raised."""
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
        """Do as :meth:`try_one`, and see how much memory it takes."""
        limit_bytes = self.floor_bytes + MEMORY_FACTOR * len(data)
        tracemalloc.start()
        try:
            is_taken = self.try_one(data)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < limit_bytes, f"{self.name}: {peak_bytes} bytes for {len(data)}"
        return is_taken
