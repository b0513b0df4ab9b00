# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import trio

from acstor_agent.core.images import image_usage
from acstor_agent.images.image import usage
from acstor_common.model import ids
from tests.fakes import manual_clock
from tests.fakes import one_host

IMAGE, OTHER = one_host.IMAGE, one_host.OTHER
NOVAS = ids.ImageId("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class LoopIterations(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    def __init__(self):
        self.count = 0

    def before_io_wait(self, timeout):
        self.count += 1


class Signs:
    """Signs of use by processes and disks of a host, and its clock."""

    def __init__(self, host):
        self.host, self.open, self.bases = host, set(), set()
        self.now_s = 1000.0
        self.looks = 0

    def find_open(self):
        self.looks += 1
        if isinstance(self.open, OSError):
            raise self.open
        return self.open

    def uses(self, images_per_checkpoint=64):
        return usage.ImageUsage(
            *(
                self.host.mirrors,
                self.find_open,
                lambda: self.bases,
                manual_clock.FunctionClock(lambda: self.now_s),
            ),
            limits=usage.UsageLimits(images_per_checkpoint=images_per_checkpoint),
        )

    def let_pass(self, uses, seconds=image_usage.IN_USE_S):
        """Advance time while Nova touches another image, so that idle time counts."""
        while seconds > 0:
            self.now_s += min(seconds, HOUR_S)
            seconds -= HOUR_S
            uses.image_touched(NOVAS, is_by_nova=True)


@pytest.fixture
async def signs(tmp_path):
    async with one_host.one_host(tmp_path) as host:
        for image_id in (IMAGE, OTHER):
            host.add(one_host.image_bytes(4 * one_host.CHUNK), image_id)
            await host.mirrors.attach_image(image_id)
        yield Signs(host)


async def test_images_count_as_used_until_a_scan_and_a_time_of_nova_activity(signs):
    uses = signs.uses()
    signs.let_pass(uses, DAY_S)
    assert uses.is_used(IMAGE)
    await uses.scan_processes()
    assert not uses.is_used(IMAGE)
    uses = signs.uses()
    await uses.scan_processes()
    assert uses.is_used(IMAGE)
    signs.let_pass(uses)
    assert not uses.is_used(IMAGE)


async def test_images_count_as_used_after_a_failed_scan(signs):
    signs.open = OSError("no /proc")
    uses = signs.uses()
    with pytest.raises(OSError, match="no /proc"):
        await uses.scan_processes()
    signs.let_pass(uses)
    assert uses.is_used(IMAGE)
    signs.open = set()
    await uses.scan_processes()
    assert not uses.is_used(IMAGE)


async def test_scan_of_images_yields_to_other_tasks(signs, monkeypatch):
    uses, looked_at = signs.uses(images_per_checkpoint=1), []
    stamp = signs.host.mirrors.touched_ns
    turns = LoopIterations()

    def touched_ns(image_id):
        looked_at.append(turns.count)
        return stamp(image_id)

    monkeypatch.setattr(signs.host.mirrors, "touched_ns", touched_ns)
    trio.lowlevel.add_instrument(turns)
    await uses.scan_processes()
    first, second = looked_at
    assert first < second


async def test_image_detached_during_a_scan_is_forgotten(signs):
    uses = signs.uses(images_per_checkpoint=1)
    await uses.scan_processes()

    async def detach():
        for image_id in (IMAGE, OTHER):
            signs.host.mirrors.detach_image(image_id)
            uses.image_detached(image_id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(detach)
        await uses.scan_processes()
    assert all(math.isinf(uses.usage_of(image_id).idle_s) for image_id in (IMAGE, OTHER))


async def test_image_is_used_while_it_is_open(signs):
    uses = signs.uses()
    await uses.scan_processes()
    uses.image_opened(IMAGE)
    uses.image_opened(IMAGE)
    signs.let_pass(uses, DAY_S)
    uses.image_closed(IMAGE)
    signs.let_pass(uses, DAY_S)
    assert uses.is_used(IMAGE)
    uses.image_closed(IMAGE)
    assert uses.is_used(IMAGE)  # it was used a moment ago
    signs.let_pass(uses)
    assert not uses.is_used(IMAGE)
    assert not uses.usage_of(IMAGE).is_open


async def test_image_open_before_the_start_is_used_until_processes_close_it(signs):
    signs.open = {IMAGE}
    uses = signs.uses()
    await uses.scan_processes()
    signs.let_pass(uses)
    assert uses.is_used(IMAGE)
    uses.image_closed(IMAGE)
    signs.open = set()
    await uses.scan_processes()
    signs.let_pass(uses)
    assert not uses.is_used(IMAGE)


async def test_process_scan_stops_once_no_opening_predates_the_start(signs):
    uses = signs.uses()
    for _ in range(3):
        await uses.scan_processes()
    assert signs.looks == 1


async def test_base_image_of_a_disk_is_used(signs):
    signs.bases = {IMAGE}
    uses = signs.uses()
    await uses.scan_processes()
    signs.let_pass(uses)
    assert uses.is_used(IMAGE)
    signs.bases = set()
    await uses.scan_processes()
    assert not uses.is_used(IMAGE)


@pytest.mark.parametrize("stamp_s", [5.0, 4e9])
async def test_touch_counts_as_use_regardless_of_its_timestamp(signs, stamp_s):
    uses = signs.uses()
    await uses.scan_processes()
    signs.let_pass(uses)
    assert not uses.is_used(IMAGE)
    signs.host.mirrors.save_time_stamp(IMAGE, int(stamp_s * 1e9))
    await uses.scan_processes()
    assert uses.usage_of(IMAGE).idle_s == 0.0
    signs.let_pass(uses)
    assert not uses.is_used(IMAGE)


async def test_read_counts_as_use(signs):
    """An invisible process opened the image before the start."""
    uses = signs.uses()
    await uses.scan_processes()
    signs.let_pass(uses, DAY_S)
    assert not uses.is_used(IMAGE)
    await signs.host.mirrors.get_nowait(IMAGE).read_at(0, 512)
    await uses.scan_processes()
    assert uses.is_used(IMAGE)


async def test_reattached_image_is_used(signs):
    uses = signs.uses()
    await uses.scan_processes()
    signs.host.mirrors.detach_image(IMAGE)
    await uses.scan_processes()
    assert uses.usage_of(IMAGE).idle_s == float("inf")
    await signs.host.mirrors.attach_image(IMAGE)
    await uses.scan_processes()
    assert uses.is_used(IMAGE)


@pytest.mark.parametrize("stamp_s", [0.0, 1e9, 4e9])
async def test_timestamp_from_before_the_start_ends_no_use(signs, stamp_s):
    """The host was off for days, or its date was wrong; the stamp of OTHER is of today."""
    signs.host.mirrors.save_time_stamp(IMAGE, int(stamp_s * 1e9))
    uses = signs.uses()
    await uses.scan_processes()
    signs.host.mirrors.save_time_stamp(OTHER, int(2e9 * 1e9))  # Nova touches another image first
    signs.now_s += HOUR_S
    await uses.scan_processes()
    assert uses.is_used(IMAGE) and uses.is_used(OTHER)


async def test_first_guest_after_a_nova_outage_ends_no_use_of_other_images(signs):
    uses = signs.uses()
    await uses.scan_processes()
    signs.let_pass(uses)
    signs.host.mirrors.save_time_stamp(IMAGE, 10**18)
    await uses.scan_processes()
    signs.now_s += 30 * HOUR_S  # nova-compute is away
    for begin in (uses.image_opened, uses.image_closed, uses.image_touched):
        begin(OTHER)
        assert uses.is_used(IMAGE)
    await signs.host.mirrors.get_nowait(OTHER).read_at(0, 512)
    signs.host.mirrors.detach_image(OTHER)
    uses.image_detached(OTHER)
    await signs.host.mirrors.attach_image(OTHER)
    await uses.scan_processes()
    assert uses.is_used(IMAGE)
    signs.now_s += HOUR_S
    assert uses.usage_of(IMAGE).idle_s == 0.0
    signs.host.mirrors.save_time_stamp(OTHER, 10**18)  # and comes back
    await uses.scan_processes()
    signs.let_pass(uses, HOUR_S)
    assert uses.is_used(IMAGE)
    signs.let_pass(uses)
    assert not uses.is_used(IMAGE)


async def test_image_is_seen_only_by_evidence_since_the_start(signs):
    for show in (
        lambda uses: uses.image_opened(IMAGE),
        lambda uses: uses.image_touched(IMAGE),
        lambda uses: signs.bases.add(IMAGE),
        lambda uses: signs.host.mirrors.save_time_stamp(IMAGE, 10**18),
    ):
        uses = signs.uses()
        assert not uses.is_seen(IMAGE)
        await uses.scan_processes()
        assert not uses.is_seen(IMAGE) and uses.is_used(IMAGE)
        show(uses)
        await uses.scan_processes()
        assert uses.is_seen(IMAGE) and not uses.is_seen(OTHER)
        signs.bases.clear()
        signs.host.mirrors.save_time_stamp(IMAGE, 0)
    await uses.scan_processes()
    signs.let_pass(uses)
    assert not uses.is_seen(IMAGE)
    signs.open = {IMAGE}
    uses = signs.uses()
    await uses.scan_processes()
    assert uses.is_seen(IMAGE)


async def test_image_found_later_by_its_map_counts_as_present_at_start(signs):
    path = signs.host.maps / f"{IMAGE}.acmap"
    raw = path.read_bytes()
    signs.host.mirrors.detach_image(IMAGE)
    uses = signs.uses()
    await uses.scan_processes()
    path.write_bytes(raw)  # it could not be listed until now
    await signs.host.mirrors.attach_new_maps()
    await uses.scan_processes()
    assert uses.is_used(IMAGE) and not uses.is_seen(IMAGE)
    await signs.host.mirrors.attach_image(IMAGE)
    await uses.scan_processes()
    assert not uses.is_seen(IMAGE)
    await signs.host.mirrors.get_nowait(IMAGE).read_at(0, 512)
    await uses.scan_processes()
    assert uses.is_seen(IMAGE)
    signs.host.mirrors.detach_image(IMAGE)
    await uses.scan_processes()
    await signs.host.mirrors.attach_image(IMAGE)
    await uses.scan_processes()
    assert uses.is_seen(IMAGE)  # its attach request shows a use
