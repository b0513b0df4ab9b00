# SPDX-License-Identifier: Apache-2.0
"""A host with background fill, short intervals and a link of 1 Gbit/s."""

import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import trio

from acstor_agent.core.cloud import interface_traffic
from acstor_agent.images.image import usage
from acstor_agent.images.keep import background_fill
from acstor_agent.images.keep import boot_deferral
from acstor_agent.images.keep import hydration
from acstor_agent.images.read import read_admission
from acstor_common import errors
from tests.fakes import one_host

BOOT_IDLE_S, BOOT_LONGEST_S = 0.25, 1.0
LINK_BYTES_S = 125_000_000
PATIENCE_S = 40.0
HYDRATION_LIMITS = hydration.HydrationLimits(tick_s=0.05, recount_s=0.2)
USAGE_LIMITS = usage.UsageLimits(scan_interval_s=0.1)


async def until(is_true: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; fail after ``within_s``."""
    with trio.fail_after(within_s):
        while not is_true():  # noqa: ASYNC110 - no event announces it
            await trio.sleep(0.01)


class FillingHost:
    """A host's background fill; a subclass pins images and lists the loops to run."""

    loops: tuple[Callable[[], Awaitable[None]], ...]
    rtt_s: float  # of the source, as its connections measure it

    def __init__(
        self, host: one_host.OneHost, reads: read_admission.ReadAdmission, **limits: float
    ) -> None:
        self.host = host
        self.looks, self.link_fails = 0, False
        host.boots.clock = trio.current_time
        self.rtt_s = 0.0
        boots = boot_deferral.BootDeferral(
            *(host.mirrors, host.boots, BOOT_IDLE_S, BOOT_LONGEST_S, self)
        )
        self.filler = background_fill.BackgroundFill(
            host.mirrors,
            host.pins,
            host.chunks,
            boots,
            reads=reads,
            traffic=self,
            limits=background_fill.FillLimits(1e9, measure_interval_s=0.05, **limits),
        )

    def set_limits(self, **limits: float) -> None:
        """Change limits of the fill."""
        self.filler.limits = dataclasses.replace(self.filler.limits, **limits)

    def read_counters(self) -> interface_traffic.InterfaceSample:
        """Return counters that never increase."""
        self.looks += 1
        if self.link_fails:
            raise errors.Unusable("network interfaces", "there are none")
        return interface_traffic.InterfaceSample(float(self.looks), [], LINK_BYTES_S)

    def promised_bytes(self) -> int:
        """Return the cache bytes that pins reserve."""
        return self.host.cache.statistics.reserved_bytes


T = TypeVar("T", bound=FillingHost)


@contextlib.asynccontextmanager
async def running(
    folder: pathlib.Path,
    limit_bytes: int,
    images: tuple[bytes, bytes],
    make: Callable[[one_host.OneHost], T],
    **how: Any,
) -> AsyncIterator[T]:
    """Run the loops of a host whose source has two images."""
    async with one_host.one_host(folder, limit_bytes, is_keeping=True, **how) as host:
        for data, image_id in zip(images, (one_host.IMAGE, one_host.OTHER), strict=True):
            host.add(data, image_id)
        made = make(host)
        async with trio.open_nursery() as nursery:
            for run in made.loops:
                nursery.start_soon(run)
            yield made
            nursery.cancel_scope.cancel()
