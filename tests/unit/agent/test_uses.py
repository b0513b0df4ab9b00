# SPDX-License-Identifier: Apache-2.0
import os
import time

import pytest

from acstor_agent.core import image_uses
from acstor_agent.images import uses as uses_
from tests.fakes import one_host

IMAGE, OTHER = one_host.IMAGE, one_host.OTHER
DAY_S = 24 * 3600.0


class Signs:
    """What processes and disks of a host show, and its two clocks."""

    def __init__(self, host):
        self.host, self.open, self.bases = host, set(), set()
        self.now_s, self.wall_s = 1000.0, time.time()
        self.looks = 0

    def look_for_open(self):
        self.looks += 1
        if isinstance(self.open, OSError):
            raise self.open
        return self.open

    def uses(self):
        return uses_.Uses(
            self.host.mirrors,
            self.look_for_open,
            lambda: self.bases,
            lambda: self.now_s,
            lambda: self.wall_s,
        )


@pytest.fixture
async def signs(tmp_path):
    async with one_host.one_host(tmp_path) as host:
        for image_id in (IMAGE, OTHER):
            host.add(one_host.image_bytes(4 * one_host.CHUNK), image_id)
            await host.mirrors.attach(image_id)
        made = Signs(host)
        made.wall_s += DAY_S  # both images were attached a day ago
        yield made


async def test_everything_is_used_until_the_first_look(signs):
    uses = signs.uses()
    assert uses.is_used(IMAGE)
    await uses.look()
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)


async def test_failed_look_shows_nothing(signs):
    signs.open = OSError("no /proc")
    uses = signs.uses()
    with pytest.raises(OSError, match="no /proc"):
        await uses.look()
    assert uses.is_used(IMAGE)
    signs.open = set()
    await uses.look()
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)


async def test_image_is_used_while_it_is_open(signs):
    uses = signs.uses()
    await uses.look()
    uses.opened(IMAGE)
    uses.opened(IMAGE)
    signs.now_s += DAY_S
    uses.touched(OTHER)
    uses.closed(IMAGE)
    signs.now_s += DAY_S
    uses.touched(OTHER)
    assert uses.is_used(IMAGE)
    uses.closed(IMAGE)
    assert uses.is_used(IMAGE)  # it was used a moment ago
    signs.now_s += image_uses.IN_USE_S
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)
    assert not uses.of(IMAGE).is_open


async def test_image_that_was_open_before_the_start_is_used_until_processes_close_it(signs):
    signs.open = {IMAGE}
    uses = signs.uses()
    await uses.look()
    uses.touched(OTHER)
    assert uses.is_used(IMAGE)
    uses.closed(IMAGE)
    signs.open = set()
    await uses.look()
    signs.now_s += image_uses.IN_USE_S
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)


async def test_processes_are_looked_at_only_while_something_may_be_open_from_before(signs):
    uses = signs.uses()
    for _ in range(3):
        await uses.look()
    assert signs.looks == 1


async def test_image_that_a_disk_began_as_is_used(signs):
    signs.bases = {IMAGE}
    uses = signs.uses()
    await uses.look()
    uses.touched(OTHER)
    assert uses.is_used(IMAGE)
    signs.bases = set()
    await uses.look()
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)


@pytest.mark.parametrize("stamp_s", [5.0, 4e9])
async def test_touch_shows_a_use_whatever_time_it_gives(signs, stamp_s):
    uses = signs.uses()
    await uses.look()
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)
    signs.host.mirrors.touch(IMAGE, int(stamp_s * 1e9))
    await uses.look()
    assert uses.of(IMAGE).idle_s == 0.0
    signs.now_s += image_uses.IN_USE_S
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)


async def test_clock_that_jumps_a_year_ends_no_use(signs):
    signs.wall_s -= DAY_S
    uses = signs.uses()
    await uses.look()
    signs.wall_s += 365 * DAY_S
    await uses.look()
    assert uses.is_used(IMAGE)


async def test_stamp_of_the_future_counts_as_a_touch_at_the_start(signs):
    signs.host.mirrors.touch(IMAGE, int((signs.wall_s + DAY_S) * 1e9))
    uses = signs.uses()
    await uses.look()
    assert uses.of(IMAGE).idle_s == 0.0


async def test_reads_show_a_use(signs):
    """A process that cannot be seen has opened the image before the start."""
    uses = signs.uses()
    await uses.look()
    signs.now_s += DAY_S
    uses.touched(OTHER)
    assert not uses.is_used(IMAGE)
    await signs.host.mirrors.get_nowait(IMAGE).read(0, 512)
    await uses.look()
    assert uses.is_used(IMAGE)


async def test_image_that_is_attached_again_is_used(signs):
    uses = signs.uses()
    await uses.look()
    uses.touched(OTHER)
    signs.host.mirrors.detach(IMAGE)
    await uses.look()
    assert uses.of(IMAGE).idle_s == float("inf")
    await signs.host.mirrors.attach(IMAGE)
    await uses.look()
    assert uses.is_used(IMAGE)


async def test_stamps_outlive_the_worker(signs):
    os.utime(signs.host.maps / f"{IMAGE}.acmap", (signs.wall_s - 60, signs.wall_s - 60))
    uses = signs.uses()
    await uses.look()
    assert uses.of(IMAGE).idle_s == pytest.approx(60.0, abs=0.01)
    assert uses.is_used(IMAGE)
    assert not uses.is_used(OTHER)
