# SPDX-License-Identifier: Apache-2.0
"""Timelines of boots on one host with an in-memory source."""

import msgspec
import pytest
import trio

from acstor_agent.core.boot import boot_phases
from acstor_agent.core.disk_scheduling import request as requests
from acstor_agent.images.boot import boot_timelines
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import manual_clock
from tests.fakes import one_host

CHUNK = one_host.CHUNK
CHUNKS = 2 * boot_timelines.MIN_BYTES // CHUNK
IMAGE = one_host.IMAGE
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
DATA = one_host.image_bytes(CHUNKS * CHUNK)
WALL_S = 1_800_000_000.0


def guest(number):
    return requests.Stream(requests.Klass.GUEST, f"{IMAGE}/{number}")


class Boots:
    """A host, and the timelines of its boots."""

    def __init__(self, host):
        self.host = host
        host.now_s = trio.current_time()
        self.guests = {}
        self.made = boot_timelines.BootTimelines(
            lambda thread: self.guests.get(thread, ""),
            manual_clock.FunctionClock(trio.current_time, lambda: WALL_S + trio.current_time()),
        )

    async def read(self, image, who, chunk_nos):
        for chunk_no in chunk_nos:
            where, timing = (chunk_no * CHUNK, CHUNK, who), image.timelines.get(who)
            data = await (
                timing.run_timed(image.read_at, *where) if timing else image.read_at(*where)
            )
            assert bytes(data) == DATA[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]


@pytest.fixture
async def boots(tmp_path):
    async with one_host.one_host(tmp_path, data=DATA) as host:
        yield Boots(host)


@pytest.fixture
def short(monkeypatch):
    """Shorten the idle time and the report interval of boots."""
    for name, seconds in (("IDLE_S", 0.6), ("TICK_S", 0.02), ("REPORT_INTERVAL_S", 0.3)):
        monkeypatch.setattr(boot_timelines, name, seconds)


async def until(is_true):
    with trio.fail_after(30):
        while not is_true():  # noqa: ASYNC110 - timelines have no event
            await trio.sleep(0.01)


async def test_bytes_are_counted_by_origin(boots):
    boots.host.add_boot_image(DATA, range(20, 40))
    image = await boots.host.mirrors.attach_image(IMAGE)
    image.boots.begin_boot()
    boots.made.image_opened(image, guest(1), thread=7)
    await until(lambda: image.boots.state.value == "ready")
    await boots.read(image, guest(1), range(CHUNKS // 2))
    await boots.read(image, guest(1), range(CHUNKS // 2))
    [reported] = boots.made.timelines_of()
    is_zero = [not any(DATA[no * CHUNK : (no + 1) * CHUNK]) for no in range(CHUNKS // 2)]
    of_boot = is_zero[20:40].count(False) * CHUNK
    others = is_zero.count(False) * CHUNK - of_boot
    assert reported.bytes.get("boot", 0) == 2 * of_boot
    assert reported.bytes["source"] == others and reported.bytes["cache"] == others
    assert sum(reported.bytes.values()) == 2 * (CHUNKS // 2) * CHUNK
    assert reported.reads == CHUNKS and not reported.is_over and reported.boot_image == "ready"
    assert sum(one.reads for one in reported.slices) == CHUNKS


async def test_chunks_read_from_frames_do_not_count_as_source_bytes(boots):
    """A read before the boot image is in memory waits for the frame with its chunk."""
    boots.host.add_boot_image(DATA, range(20, 40))
    image = await boots.host.mirrors.attach_image(IMAGE)
    image.boots.begin_boot()
    boots.made.image_opened(image, guest(1), thread=7)
    for _ in range(CHUNKS // 20):
        await boots.read(image, guest(1), range(20, 40))
    [reported] = boots.made.timelines_of()
    assert reported.bytes["frame"] > 0 and "source" not in reported.bytes
    came = {span.what: span.bytes for span in reported.spans}
    assert came["boot image"]["source"] > 0


async def test_timeline_begins_with_the_attach_before_the_open(boots):
    image = await boots.host.mirrors.attach_image(IMAGE)
    began_s = trio.current_time()
    boots.made.image_attached(IMAGE, began_s - 500)  # attached for another boot
    await trio.sleep(0.05)
    boots.made.image_attached(IMAGE, began_s)
    opened_s = trio.current_time()
    boots.made.image_opened(image, guest(1), thread=7)
    await boots.read(image, guest(1), range(CHUNKS))
    [reported] = boots.made.timelines_of(IMAGE)
    [ensure] = [span for span in reported.spans if span.what == "attach"]
    assert ensure.to_s - ensure.from_s >= 0.05
    assert reported.opened_s == pytest.approx(opened_s - began_s, abs=1.0)
    assert reported.began_at_s <= WALL_S + began_s + 0.1


async def test_idle_boot_ends_and_stops_timing_reads(boots, short):
    boots.guests[7] = SERVER
    image = await boots.host.mirrors.attach_image(IMAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boots.made.run)
        boots.made.image_opened(image, guest(1), thread=7)
        await boots.read(image, guest(1), range(CHUNKS))
        await until(lambda: boots.made.timelines_of(SERVER))
        assert image.timelines
        await until(lambda: not image.timelines)
        nursery.cancel_scope.cancel()
    [reported] = boots.made.timelines_of(SERVER)
    assert reported.is_over and reported.instance_id == SERVER
    assert boots.made.timelines_of("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0aff") == []
    await boots.read(image, guest(1), [0])
    assert boots.made.timelines_of() == [reported]


async def test_finished_boots_are_reported_for_servers_only(boots):
    image = await boots.host.mirrors.attach_image(IMAGE)
    for number in (1, 2):
        boots.made.image_opened(image, guest(number), thread=number)
        await boots.read(image, guest(number), range(CHUNKS))
    boots.made._boots[guest(1)].instance_id = SERVER
    assert boots.made.new_boots() == ()
    for number in (1, 2):
        boots.made.image_closed(guest(number))
    [reported] = boots.made.new_boots()
    assert reported.instance_id == SERVER and reported.is_over
    assert boots.made.new_boots() == ()
    for histograms in (
        boots.made.histograms.totals()[None],
        boots.made.histograms.of_images([IMAGE])[IMAGE],
    ):
        assert histograms["total"].count == 1, "that of a process without a server is not counted"
        assert histograms["total"].total_s == pytest.approx(reported.last_s)
        assert histograms["waiting"].total_s == pytest.approx(sum(reported.waited_s.values()))
    assert boots.made.histograms.of_images(["another"]) == {}


async def test_long_boot_is_reported_while_it_continues(boots, short):
    boots.guests[7] = SERVER
    image = await boots.host.mirrors.attach_image(IMAGE)
    reported = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boots.made.run)
        boots.made.image_opened(image, guest(1), thread=7)
        while len(reported) < 2:
            await boots.read(image, guest(1), range(CHUNKS))
            await trio.sleep(0.02)
            reported += boots.made.new_boots()
        nursery.cancel_scope.cancel()
    assert [one.is_over for one in reported] == [False, False]
    assert reported[0].reads < reported[1].reads


async def test_probe_of_an_image_leaves_no_timeline(boots):
    image = await boots.host.mirrors.attach_image(IMAGE)
    boots.made.image_opened(image, guest(1), thread=7)
    await boots.read(image, guest(1), range(4))
    boots.made.image_closed(guest(1))
    assert boots.made.timelines_of() == [] and not image.timelines


async def test_number_of_timelines_is_bounded(boots):
    image = await boots.host.mirrors.attach_image(IMAGE)
    for number in range(2 * boot_timelines.MAX_BOOTS):
        boots.made.image_opened(image, guest(number), thread=number)
    assert len(image.timelines) == boot_timelines.MAX_BOOTS
    for number in range(2 * boot_timelines.MAX_BOOTS):
        boots.made.image_closed(guest(number))
    assert not image.timelines
    for number in range(boot_timelines.MAX_FINISHED + 9):
        boots.made.image_opened(image, guest(number), thread=number)
        await boots.read(image, guest(number), range(CHUNKS // 2))
        boots.made.image_closed(guest(number))
    assert len(boots.made.timelines_of()) == boot_timelines.MAX_FINISHED
    for number in range(boot_timelines.MAX_IMAGES + 9):
        boots.made.image_attached(ids.ImageId(f"7d2c1f9e-5d6b-4a5c-9c61-{number:012x}"), 0.0)
        reported = msgspec.structs.replace(
            boots.made.timelines_of()[0], image_id=f"7d2c1f9e-5d6b-4a5c-9c61-{number:012x}"
        )
        boots.made.histograms.count_boot(reported)
    assert len(boots.made._attaches) == boot_timelines.MAX_IMAGES
    assert len(boots.made.histograms._by_image) == boot_phases.MAX_IMAGES


async def test_reused_opener_number_begins_another_boot(boots):
    image = await boots.host.mirrors.attach_image(IMAGE)
    for _ in range(2):
        boots.made.image_opened(image, guest(1), thread=7)
        await boots.read(image, guest(1), range(CHUNKS))
    assert [one.is_over for one in boots.made.timelines_of()] == [True, False]


async def test_failed_read_appears_in_the_timeline(boots):
    image = await boots.host.mirrors.attach_image(IMAGE)
    boots.made.image_opened(image, guest(1), thread=7)
    await boots.read(image, guest(1), range(CHUNKS))
    timing = image.timelines[guest(1)]

    async def fail(*_):
        raise errors.ChunkLost("a chunk", "the source")

    with pytest.raises(errors.ChunkLost):
        await timing.run_timed(fail, 0, CHUNK, guest(1))
    [reported] = boots.made.timelines_of()
    assert "failed" in reported.waited_s
