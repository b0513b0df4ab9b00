# SPDX-License-Identifier: Apache-2.0
"""Budget: limits of bytes and time for an image, by uploaded bytes, not by stated size."""

import math
import threading
import time
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.model import clocks
from acstor_common.model import geometry

SPARE_BYTES = 256 * geometry.MIB  # decoded bytes allowed to every image: a second of a processor
SLOWEST_DECODER_BYTES_S = 16 * geometry.MIB
"""Decoded bytes per second of a processor; zlib and zstd yield 200 MiB."""
SLOWEST_BYTES_S = 1 * geometry.MIB
"""Uploaded bytes per second until the deadline, including a copy of the image."""
SPARE_S = 300.0
NOT_RETRIED = "It is not retried automatically"


class CostLimits(NamedTuple):
    """Costs that are allowed to every image, however few bytes were uploaded."""

    spare_cpu_s: float = 1.0  # processor seconds for decoding
    spare_artefact_bytes: int = 64 * geometry.MIB  # of an artefact: a 128 GiB disk's map


COST_LIMITS = CostLimits()


class PreparationBudget:
    """The remaining budget of one image; thread-safe; raises errors.LimitExceeded."""

    def __init__(
        self,
        what: str,
        uploaded_bytes: float = math.inf,  # infinite: only slow decoders are refused
        max_expansion_ratio: int = 1,  # decoded bytes per uploaded byte
        spare_s: float = SPARE_S,  # of the deadline, apart from that of bytes
        clock: clocks.Clock = time,
        limits: CostLimits = COST_LIMITS,
    ) -> None:
        self._limits = limits
        self._what, self._uploaded_bytes, self._ratio = what, uploaded_bytes, max_expansion_ratio
        self._max_bytes = max(uploaded_bytes * max_expansion_ratio, SPARE_BYTES)
        self._clock, self._spare_s, self._began_s = clock, spare_s, clock.monotonic()
        self._lock = threading.Lock()
        self._bytes, self._cpu_s = 0, 0.0

    def check_time(self) -> None:
        """Raise errors.LimitExceeded if the deadline has passed."""
        self._check_time(self._uploaded_bytes)

    def enforce_deadline(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces of the image; only received bytes extend the deadline."""
        received_bytes = 0
        for piece in pieces:
            received_bytes += len(piece)
            self._check_time(received_bytes)
            yield piece

    def _check_time(self, count: float) -> None:
        longest_s = self._spare_s + count / SLOWEST_BYTES_S
        if self._clock.monotonic() > self._began_s + longest_s:
            raise self._exceeded(
                f"it was not prepared in {longest_s:.0f} s, the limit for {count} bytes",
                "Find out what was slow: the image's location, the store or this host",
            )

    def charge_decoded(self, count: int, cpu_s: float) -> None:
        """Charge decoded bytes of the disk, and their processor time; check the deadline."""
        with self._lock:
            self._bytes += count
            self._cpu_s += cpu_s
            total_bytes, total_s = self._bytes, self._cpu_s
        if total_bytes > self._max_bytes:
            raise self._exceeded(
                f"its {self._uploaded_bytes} bytes decode to more than {self._max_bytes:.0f}",
                f"To serve it, raise [acstor_glance] max_expansion_ratio ({self._ratio}) and "
                "prepare it with --force",
            )
        if total_s > self._limits.spare_cpu_s + total_bytes / SLOWEST_DECODER_BYTES_S:
            raise self._exceeded(
                f"its clusters decode too slowly: {total_bytes} bytes in {total_s:.1f} s of a "
                f"processor, and {SLOWEST_DECODER_BYTES_S // geometry.MIB} MiB a second are "
                "required",
                "Convert it again (qemu-img convert)",
            )
        self.check_time()

    def check_artefact(self, kind: artefacts.Kind, count: int) -> None:
        """Check that an artefact is short, or not longer than the image."""
        if count > max(self._uploaded_bytes, self._limits.spare_artefact_bytes):
            raise self._exceeded(
                f"its {kind.value} would have {count} bytes, and its {self._uploaded_bytes} bytes "
                "do not allow that",
                "Make its disk smaller",
            )

    def _exceeded(self, why: str, remedy: str) -> errors.LimitExceeded:
        return errors.LimitExceeded(self._what, why, f"{NOT_RETRIED}. {remedy}")
