# SPDX-License-Identifier: Apache-2.0
"""Simulated devices: order and duration of concurrent requests."""

import functools

import trio
import trio.lowlevel
import trio.testing

from tests.fakes import shaped_devices

_run = functools.partial(trio.run, clock=trio.testing.MockClock(autojump_threshold=0))
"""Time advances only while all tasks wait."""


async def _uses(device: shaped_devices.Device, places: list[int]) -> list[int]:
    """Use a device at several offsets at once; return the order in which requests ended."""
    ended: list[int] = []

    async def use(place: int):
        await device.use(place, 4096)
        ended.append(place)

    async with trio.open_nursery() as nursery:
        for place in places:
            nursery.start_soon(use, place)
            await trio.lowlevel.checkpoint()
    return ended


def test_rotating_disk_serves_upwards_and_then_from_the_lowest_offset():
    far = 10**9

    async def both() -> list[int]:
        device = shaped_devices.RotatingDisk()
        return await _uses(device, [2 * far, far, 4 * far, 3 * far])

    assert _run(both) == [2 * far, 3 * far, 4 * far, far]


def test_ssd_requests_share_its_rate():
    async def took_s() -> float:
        device = shaped_devices.Ssd(bytes_s=1e6, command_s=0.0)
        began_s = trio.current_time()
        await _uses(device, [0, 1, 2, 3])
        return trio.current_time() - began_s

    assert _run(took_s) >= 4 * 4096 / 1e6


def test_nodes_of_a_cluster_work_concurrently():
    async def took_s(step: int) -> float:
        device = shaped_devices.Cluster(nodes=4)
        began_s = trio.current_time()
        await _uses(device, [step * number for number in range(4)])
        return trio.current_time() - began_s

    apart, together = shaped_devices.OBJECT_BYTES, 4 * shaped_devices.OBJECT_BYTES
    assert _run(took_s, apart) < _run(took_s, together)
