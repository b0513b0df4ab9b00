# SPDX-License-Identifier: Apache-2.0
"""Hydration: when images become fully cached, in which order, and what delays them."""

import contextlib
import dataclasses
import math
import time
from typing import NamedTuple

import pytest
import trio

from acstor_agent.control import image_requests
from acstor_agent.core import counters
from acstor_agent.core.images import capacity
from acstor_agent.core.images import fill_order
from acstor_agent.core.images import fill_rate
from acstor_agent.core.images import fill_window
from acstor_agent.core.images import pin_record
from acstor_agent.engine_io import background_fetch
from acstor_agent.engine_io import read_request
from acstor_agent.images.image import usage
from acstor_agent.images.keep import background_fill
from acstor_agent.images.keep import boot_deferral
from acstor_agent.images.keep import fill_status
from acstor_agent.images.keep import hydration
from acstor_agent.images.keep import pin_file
from acstor_agent.images.read import boot_session
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from tests.fakes import filling_host
from tests.fakes import manual_clock
from tests.fakes import one_host
from tests.fakes import quiet_driver

Origin = counters.Origin

IMAGE, OTHER, CHUNK = one_host.IMAGE, one_host.OTHER, one_host.CHUNK
MIB = geometry.MIB
DATA = one_host.image_bytes(40 * CHUNK) + bytes(4 * CHUNK) + one_host.image_bytes(777, seed=2)
SECOND = one_host.image_bytes(30 * CHUNK, seed=3)
BOOT_IDLE_S, BOOT_LONGEST_S = filling_host.BOOT_IDLE_S, filling_host.BOOT_LONGEST_S
IN_USE_S = 1.5
FILL_LIMITS = {
    "slice_s": 0.3,
    "fetch_s": 0.5,
    "calm_s": 0.2,
    "yield_s": 0.05,
    "first_pause_s": 0.1,
    "longest_pause_s": 0.5,
}
LINK_BYTES_S, PATIENCE_S = filling_host.LINK_BYTES_S, filling_host.PATIENCE_S
until = filling_host.until


class Keeper(filling_host.FillingHost):
    """A host that hydrates images, with a scripted link and scripted guests."""

    def __init__(self, host, in_use_s=IN_USE_S):
        super().__init__(host, reads=self, **FILL_LIMITS)
        self._is_waiting, self._waited_s = False, -math.inf
        self.wall_jumped_s = 0.0
        self.uses = usage.ImageUsage(
            *(host.mirrors, set, set),
            clock=manual_clock.FunctionClock(trio.current_time),
            limits=dataclasses.replace(filling_host.USAGE_LIMITS, in_use_s=in_use_s),
        )
        self.hydration = hydration.Hydration(
            *(host.mirrors, self.uses, host.pins, self.filler),
            clock=manual_clock.FunctionClock(lambda: time.time() + self.wall_jumped_s),
            limits=filling_host.HYDRATION_LIMITS,
        )
        self.loops = self.uses.run, self.hydration.run

    @property
    def is_waiting(self):
        return self._is_waiting

    @is_waiting.setter
    def is_waiting(self, value):
        self._is_waiting, self._waited_s = value, trio.current_time()

    def remote_idle_s(self):
        return 0.0 if self._is_waiting else trio.current_time() - self._waited_s

    def state(self, image_id=IMAGE):
        shown = self.hydration.status.status_of(image_id)
        return shown and shown["state"]

    async def wait(self, state, image_id=IMAGE):
        await until(lambda: self.state(image_id) == state)
        return self.hydration.status.status_of(image_id)

    def reported(self, image_id=IMAGE):
        """Return the fill report for other services."""
        return fill_status.fill_report(self.hydration.status, self.uses, image_id)

    async def use(self, image_id=IMAGE):
        image = await self.host.mirrors.attach_image(image_id)
        self.uses.image_opened(image_id)
        return image


def running(folder, limit_bytes=8 * MIB):
    return filling_host.running(folder, limit_bytes, (DATA, SECOND), Keeper)


@pytest.fixture
async def keeper(tmp_path):
    async with running(tmp_path) as made:
        yield made


async def test_image_in_use_becomes_fully_cached(keeper):
    image = await keeper.use()
    shown = await keeper.wait("fully_cached")
    assert image.count_cached().missing_bytes == 0
    assert shown["total_bytes"] == 40 * CHUNK + 777
    assert (shown["remaining_bytes"], shown["cached_share"], shown["is_pinned"]) == (0, 1.0, False)
    reported = keeper.reported()
    assert (
        reported.is_used
        and reported.is_fully_cached
        and reported.total_bytes == shown["total_bytes"]
    )


async def test_fill_report_marks_evictable_and_failing_images_as_used(keeper):
    await keeper.use()
    reported = fill_status.fill_report(None, keeper.uses, IMAGE)
    assert (reported.state, reported.is_used) == (fill_status.State.EVICTABLE, True)
    assert reported.why == "keep_images is none"
    await keeper.wait("fully_cached")
    known = keeper.hydration._known[IMAGE]
    known.left_bytes = CHUNK
    known.backoff.record_failure("x" * 999, trio.current_time())
    reported = keeper.reported()
    assert (reported.state, reported.is_used) == (fill_status.State.FAILING, True)
    assert reported.why == "x" * fill_progress.MAX_WHY


async def test_start_keeps_pins_and_adds_none_before_a_use_is_seen(tmp_path):
    """Images of stopped instances that Nova has not touched yet stay pinned, too."""
    async with one_host.one_host(tmp_path, 8 * MIB, is_keeping=True, data=DATA) as host:
        host.add(SECOND, OTHER)
        for image_id in (IMAGE, OTHER):
            await host.mirrors.attach_image(image_id)
        await host.pins.pin_image(IMAGE, host.mirrors.get_nowait(IMAGE).map)
        made = Keeper(host, in_use_s=3600.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.hydration.run)  # no scan has run yet
            await made.wait("fully_cached", IMAGE)
            assert host.pins.get(OTHER) is None
            reported = made.reported(OTHER)
            assert (
                reported.is_used and reported.state is fill_status.State.EVICTABLE and reported.why
            )
            nursery.start_soon(made.uses.run)
            await until(lambda: made.uses._has_looked)
            await made.hydration._settle()
            assert host.pins.get(IMAGE) and not host.pins.get(OTHER)
            host.mirrors.save_time_stamp(OTHER, 10**18)
            await made.wait("fully_cached", OTHER)
            nursery.cancel_scope.cancel()


async def test_unused_image_is_unpinned(keeper):
    image = await keeper.host.mirrors.attach_image(IMAGE)
    await until(lambda: not image.count_cached().missing_bytes)  # it was attached a moment ago
    await keeper.use(OTHER)
    for _ in range(20):
        keeper.uses.image_touched(OTHER)
        await trio.sleep(IN_USE_S / 5)
    assert keeper.state(IMAGE) is None and keeper.state(OTHER) == "fully_cached"
    assert keeper.host.pins.get(IMAGE) is None
    assert keeper.promised_bytes() == 30 * CHUNK
    assert image.count_cached().missing_bytes == 0  # until others need the space


async def test_fill_waits_for_the_end_of_the_boot(keeper):
    image = await keeper.use()
    image.boots.begin_boot()
    await keeper.wait("booting")
    await image.read_at(0, CHUNK)
    assert image.count_cached().cached_bytes == CHUNK
    await keeper.wait("fully_cached")
    assert trio.current_time() - image.boots.begun_s >= BOOT_IDLE_S


async def test_fill_from_a_far_source_waits_only_for_the_boot_image(keeper):
    keeper.rtt_s = boot_deferral.FAR_S
    image = await keeper.use()
    image.boots.state = boot_session.State.LOADING
    await keeper.wait("booting")
    assert image.count_cached().cached_bytes == 0
    image.boots.state = boot_session.State.READY
    await keeper.wait("fully_cached")
    assert keeper.filler.boots.is_booting(IMAGE)


async def test_fill_from_a_far_source_runs_while_guests_wait(keeper):
    keeper.set_limits(yield_s=60.0)
    keeper.is_waiting, keeper.rtt_s = True, boot_deferral.FAR_S
    (await keeper.use()).boots.begin_boot()
    await keeper.wait("fully_cached")


async def test_fill_from_a_far_source_leaves_processors_to_a_boot(keeper, monkeypatch):
    keeper.rtt_s = boot_deferral.FAR_S
    image = await keeper.use()
    image.boots.state = boot_session.State.LOADING
    await keeper.wait("booting")
    chunks = lambda: image.count_cached().cached_bytes // CHUNK  # noqa: E731
    monkeypatch.setattr(background_fill.time, "process_time", lambda: 0.02 * chunks())
    image.boots.state = boot_session.State.READY
    await until(chunks)
    await trio.sleep(0.3)
    assert keeper.filler.boots.is_booting(IMAGE)
    assert chunks() * 0.02 <= 2 * 0.3 * fill_rate.BESIDE_BOOTS
    await keeper.wait("fully_cached")


async def use_far_and_busy(keeper, batches, monkeypatch):
    """Let a guest boot from a far source; each batch takes much of a processor."""
    keeper.set_limits(slice_s=60.0)
    keeper.rtt_s = boot_deferral.FAR_S
    image = await keeper.use()
    image.boots.state = boot_session.State.LOADING
    await keeper.wait("booting")
    monkeypatch.setattr(background_fill.time, "process_time", lambda: 1e3 * len(batches))
    return image


async def test_fill_from_a_far_source_follows_a_guest_at_once(keeper, batches, monkeypatch):
    image = await use_far_and_busy(keeper, batches, monkeypatch)
    image.boots.state = boot_session.State.READY
    await until(lambda: batches)
    await trio.sleep(0.3)
    assert len(batches) == 1, "it waits for the processor"
    image.waited_for.append(20)
    with trio.fail_after(0.5):
        await until(lambda: len(batches) > 1)
    assert batches[1].chunk_nos[:2] == [21, 19]


async def test_fill_near_a_guest_has_a_share_of_a_processor_too(keeper, batches, monkeypatch):
    image = await use_far_and_busy(keeper, batches, monkeypatch)
    image.waited_for.extend([10, 20])
    image.boots.state = boot_session.State.READY
    await until(lambda: len(batches) == 2)
    await trio.sleep(0.3)
    assert len(batches) == 2, "it waits for the processor"


async def test_fill_takes_only_chunks_near_a_guest_beyond_its_share(keeper, batches, monkeypatch):
    monkeypatch.setattr(fill_order, "NEAR_BYTES", CHUNK)
    image = await use_far_and_busy(keeper, batches, monkeypatch)
    image.boots.state = boot_session.State.READY
    await until(lambda: batches)
    image.waited_for.append(45)
    await until(lambda: len(batches) == 2)
    assert batches[1].chunk_nos == [44]


async def test_fill_limits_requests_in_flight_to_rate_times_rtt(keeper):
    image, filler, few = await keeper.use(), keeper.filler, fill_window.FEW
    progress = background_fill.FillProgress(filler.make_backoff())
    progress.slow_start.limit = 0  # it is over
    filling = background_fill._FillSlice(image.map, progress, until_s=math.inf)
    chunk = image.map.geometry.chunk_bytes
    for rtt_s, chunks_s, beside_guests, alone in (
        (0.0, 1e9 / chunk, 1, fill_window.MOST_BYTES // chunk),
        (0.0, 10.0, 1, few),
        (0.019, 3e4, few, fill_window.MOST_BYTES // chunk),
        (0.1, 9.9, 1, few),  # no queue before a guest's read
        (0.1, 30.1, 3, few),
        (0.18, 301.0, 54, 120),  # of a far source
        (0.0, math.inf, 1, fill_window.MOST_BYTES // chunk),  # a deadline presses
        (0.1, math.inf, *2 * (fill_window.MOST_BYTES // chunk,)),
    ):
        keeper.rtt_s, filler._pacer.bytes_s = rtt_s, chunks_s * chunk
        progress.speed.recent_bytes_s = chunks_s * chunk
        keeper.is_waiting = True
        assert filler._max_in_flight(filling, is_urgent=False) == beside_guests
        assert filler._max_in_flight(filling, is_urgent=True) == alone


@pytest.mark.parametrize("rtt_s", [0.0, boot_deferral.FAR_S])
async def test_fill_from_a_far_source_requests_more_as_more_arrives(keeper, batches, rtt_s):
    keeper.rtt_s = rtt_s
    keeper.host.source._delay, keeper.host.source._delay_s = range(1000), 0.2
    await keeper.use()
    await until(lambda: len(chunk_nos(batches)) >= 40)
    few, most = fill_window.FEW, max(batch.in_flight for batch in batches)
    assert most >= 2 * few if rtt_s else most == few
    assert len(batches[0].chunk_nos) == (few // background_fill.FAR_BATCHES if rtt_s else few)


async def test_fill_of_a_compressed_image_uses_its_share_of_the_link(keeper):
    image, filler = await keeper.use(), keeper.filler
    keeper.set_limits(bytes_s=4.0 * CHUNK)
    progress = filler.progress_of(IMAGE)
    await until(lambda: progress.part is not None)
    progress.stored_share = 0.25
    began_s = trio.current_time()
    await keeper.wait("fully_cached")
    took_s = trio.current_time() - began_s
    assert image.count_cached().missing_bytes == 0
    assert 41 / 16 - 2 * fill_rate.AHEAD_S <= took_s < 41 / 6


@pytest.mark.parametrize(
    ("origin", "share"), [(Origin.SOURCE, 0.25), (Origin.HOME, 1.0), (Origin.PEER, 1.0)]
)
async def test_only_chunks_of_the_source_count_as_compressed(keeper, origin, share):
    image, filler = await keeper.use(), keeper.filler
    progress = background_fill.FillProgress(filler.make_backoff())
    progress.stored_share = 0.25
    filling = background_fill._FillSlice(image.map, progress, until_s=math.inf)
    filler._link_share = fill_rate.LinkShare()
    filler._take(filling, 0, read_request.FetchedChunk(b"", origin))
    filler._link_share.refresh()
    assert filler._link_share.share == share


async def test_boot_with_constant_guest_reads_ends_at_the_time_limit(keeper):
    image = await keeper.use()
    image.boots.begin_boot()
    image.counters.in_flight += 1
    await keeper.wait("fully_cached")
    assert trio.current_time() - image.boots.begun_s >= BOOT_LONGEST_S


@pytest.mark.parametrize("has_boot_image", [False, True])
async def test_repeatedly_opened_image_becomes_fully_cached(keeper, has_boot_image):
    if has_boot_image:
        keeper.host.add_boot_image(DATA, range(4))
    image, began_s = await keeper.use(), trio.current_time()

    def is_whole():
        image.boots.begin_boot()
        return keeper.state() == "fully_cached"

    await until(is_whole)
    assert trio.current_time() - began_s >= BOOT_LONGEST_S
    is_ready = image.boots.state is boot_session.State.READY
    assert is_ready == has_boot_image


async def test_fill_waits_again_for_a_later_boot(keeper):
    image = await keeper.use()
    image.boots.begin_boot()
    await keeper.wait("fully_cached")
    await trio.sleep(BOOT_LONGEST_S + BOOT_IDLE_S)
    image.boots.begin_boot()
    keeper.host.cache.drop_chunk(image.map.cid_of(3))
    await keeper.wait("booting")
    await keeper.wait("fully_cached")
    assert trio.current_time() - image.boots.begun_s >= BOOT_IDLE_S


async def test_boot_image_in_memory_defers_the_fill(keeper):
    image = await keeper.use()
    image.boots.state = boot_session.State.READY
    await trio.sleep(2 * BOOT_LONGEST_S)
    assert keeper.state() == "booting"
    assert image.count_cached().cached_bytes == 0
    image.boots.state = boot_session.State.DROPPED
    await keeper.wait("fully_cached")


async def test_constantly_waiting_guest_slows_the_fill_but_does_not_stop_it(keeper):
    keeper.is_waiting = True
    began_s = trio.current_time()
    await keeper.use()
    await keeper.wait("fully_cached")
    yields = 41 / fill_window.FEW
    assert trio.current_time() - began_s >= yields * FILL_LIMITS["yield_s"]


class Batch(NamedTuple):
    """A request of the background fill."""

    chunk_nos: list[int]
    in_flight: int  # chunks after it


@pytest.fixture
def batches(monkeypatch):
    """The requests of the background fill."""
    found, ask = [], background_fetch.BackgroundFetch.request_items

    def noted(self, things):
        things = list(things)
        ask(self, things)
        if things:
            found.append(Batch([number for number, _ in things], len(self)))

    monkeypatch.setattr(background_fetch.BackgroundFetch, "request_items", noted)
    return found


def chunk_nos(batches: list[Batch]) -> list[int]:
    """Return all requested chunks in order."""
    return [number for batch in batches for number in batch.chunk_nos]


async def test_background_fill_limits_requests_in_flight_while_guests_wait(keeper, batches):
    keeper.host.source._delay, keeper.host.source._delay_s = range(1000), 0.02
    keeper.is_waiting = True
    await keeper.use()
    while keeper.state() != "fully_cached":
        keeper.is_waiting = len(batches) % 4 == 0
        await trio.sleep(0.005)
    assert [(len(batch.chunk_nos), batch.in_flight) for batch in batches] == 41 * [(1, 1)]


async def test_fill_goes_on_near_where_a_guest_waited(keeper, batches):
    image = await keeper.use()
    keeper.set_limits(bytes_s=20.0 * CHUNK)
    await until(lambda: len(chunk_nos(batches)) >= 2)
    before = len(chunk_nos(batches))
    await image.read_at(30 * CHUNK, CHUNK)
    await until(lambda: len(chunk_nos(batches)) >= before + 5)
    found = chunk_nos(batches)
    assert found[:before] == list(range(before))
    assert found[before : before + 5] in ([31, 29, 32, 28, 33], [before, 31, 29, 32, 28])


async def test_fill_spends_no_rate_on_chunks_that_a_guest_has_read(keeper, batches):
    image = await keeper.use()
    keeper.set_limits(bytes_s=10.0 * CHUNK)
    await until(lambda: len(chunk_nos(batches)) >= 2)
    await image.read_at(0, 30 * CHUNK)
    began_s = trio.current_time()
    await keeper.wait("fully_cached")
    assert len(chunk_nos(batches)) < 20
    assert trio.current_time() - began_s < 2.5  # 1.1 s; for all of them 3.9 s


async def test_fill_batch_size_follows_the_fill_rate(keeper, batches):
    await keeper.use()
    await keeper.wait("fully_cached")
    assert max(len(batch.chunk_nos) for batch in batches) == fill_window.FEW
    assert max(batch.in_flight for batch in batches) == fill_window.FEW
    batches.clear()
    keeper.set_limits(bytes_s=2.5 * CHUNK / background_fill.TOGETHER_S)
    await keeper.use(OTHER)
    await keeper.wait("fully_cached", OTHER)
    assert max(len(batch.chunk_nos) for batch in batches) == 2


@pytest.mark.parametrize("waits", [False, True])
async def test_fill_rate_drops_to_a_tenth_while_guests_wait_at_times(keeper, monkeypatch, waits):
    rates, ask = [], background_fill.BackgroundFill._fetch

    async def noted(self, *what):
        rates.append(self._pacer.bytes_s)
        await ask(self, *what)

    monkeypatch.setattr(background_fill.BackgroundFill, "_fetch", noted)
    await keeper.use()
    while keeper.state() != "fully_cached":
        if waits:
            keeper.is_waiting = False  # a guest waited just now
        await trio.sleep(0.1)
    usual = fill_rate.SHARE * LINK_BYTES_S
    assert set(rates) == {fill_rate.BESIDE_GUESTS * usual if waits else usual}


async def test_fill_runs_without_link_statistics(keeper):
    keeper.link_fails = True
    await keeper.use()
    await keeper.wait("fully_cached")


async def test_slow_fill_rate_holds_over_many_slices(keeper):
    keeper.set_limits(bytes_s=12.0 * CHUNK)
    began_s = trio.current_time()
    image = await keeper.use()
    await keeper.wait("fully_cached")
    assert trio.current_time() - began_s >= 39 / 12 - fill_rate.AHEAD_S
    assert image.count_cached().missing_bytes == 0


async def test_chunk_larger_than_the_budget_of_a_slice_is_fetched(keeper):
    keeper.host.add(one_host.image_bytes(3 * CHUNK))
    keeper.set_limits(bytes_s=CHUNK / (5 * FILL_LIMITS["slice_s"]))
    image = await keeper.use()
    await keeper.wait("fully_cached")
    assert image.count_cached().missing_bytes == 0


async def test_urgent_image_is_filled_first_and_during_its_boot(keeper):
    order, fill = [], keeper.hydration._filler.fill_slice

    async def noted(part, *others):
        order.append(part.map.image_id)
        return await fill(part, *others)

    keeper.hydration._filler.fill_slice = noted
    for image_id in (IMAGE, OTHER):
        (await keeper.use(image_id)).boots.state = boot_session.State.READY
    await keeper.wait("booting", OTHER)
    await keeper.hydration.set_fill_mode(OTHER, hydration.FillMode.URGENT)
    await keeper.wait("fully_cached", OTHER)
    assert set(order) == {OTHER} and keeper.state(IMAGE) == "booting"


async def test_image_tasks_from_the_bus_are_carried_out(keeper):
    wishes = image_requests.ImageRequests(
        ids.HostId("h1"),
        keeper.host.mirrors,
        keeper.uses,
        keeper.hydration,
        keeper.host.chunks,
        PATIENCE_S,
    )

    async def wish(kind, deadline_s=0.0, due_at_s=0.0):
        task = decision_messages.ImageTask(
            request=1, kind=kind, image_id=IMAGE, deadline_s=deadline_s, due_at_s=due_at_s
        )
        return await wishes.apply_image_task(task)

    filler, may_come = keeper.hydration._filler, trio.Event()
    fetch = filler._fetch

    async def held_up(*asked):
        await may_come.wait()
        await fetch(*asked)

    filler._fetch = held_up
    image = await keeper.use()
    await wish(decision_messages.TaskKind.PAUSE)
    assert keeper.reported().mode is hydration.FillMode.PAUSED
    hurried = await wish(decision_messages.TaskKind.HYDRATE, 3600.0)
    assert hurried["mode"] == keeper.reported().mode == "urgent"
    assert 3500 < hurried["due_in_s"] <= 3600
    late = await wish(decision_messages.TaskKind.HYDRATE, 3600.0, time.time() + 1800)
    assert 1700 < late["due_in_s"] <= 1800  # the request is half an hour old
    over = await wish(decision_messages.TaskKind.HYDRATE, 3600.0, time.time() - 5)
    assert (over["mode"], over["due_in_s"]) == ("urgent", None)
    assert (await wish(decision_messages.TaskKind.RESUME))["mode"] == "normal"
    await keeper.hydration.request_hydration(image)
    with pytest.raises(errors.Unusable, match="does not support the task"):
        await wish(decision_messages.TaskKind.FLATTEN)
    assert keeper.reported().is_pinned  # the other tasks do not unpin
    assert not (await wish(decision_messages.TaskKind.UNPIN))["is_pinned"]
    may_come.set()
    await keeper.wait("fully_cached")


async def test_image_with_a_deadline_is_filled_at_the_required_rate(keeper):
    keeper.set_limits(bytes_s=CHUNK / 10)  # it would take minutes
    image = await keeper.use()
    await keeper.wait("filling")
    began_s = trio.current_time()
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.URGENT, deadline_s=4.0)
    assert 3.0 < keeper.hydration.status.status_of(IMAGE)["due_in_s"] <= 4.0
    shown = await keeper.wait("fully_cached")
    assert trio.current_time() - began_s > 2.0  # not at full speed
    assert image.count_cached().missing_bytes == 0
    await until(lambda: keeper.hydration.status.status_of(IMAGE)["due_in_s"] is None)
    assert keeper.host.pins.get(IMAGE).deadline_s == 0
    assert shown["mode"] == "urgent"


@pytest.mark.timed
async def test_deadline_is_kept_beside_a_guest_that_always_waits(keeper):
    keeper.set_limits(yield_s=1.0)  # a chunk a second
    keeper.is_waiting = True
    await keeper.use()
    await keeper.wait("filling")
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.URGENT, deadline_s=6.0)
    await trio.sleep(5.0)  # 0.4 s before the reserve, in which the fill runs at full speed
    assert keeper.filler.progress[IMAGE].left_bytes < len(DATA) / 3
    await keeper.wait("fully_cached")


async def test_slow_pin_write_does_not_let_a_deadline_fill_run_unpaced(keeper, monkeypatch):
    def slow(path, raw, write=pin_file._write):
        time.sleep(1.0)  # three slices
        write(path, raw)

    keeper.set_limits(bytes_s=CHUNK / 10)
    keeper.is_waiting = True  # fetchers keep checking whether they may go on
    await keeper.use()
    left_bytes = (await keeper.wait("filling"))["remaining_bytes"]
    monkeypatch.setattr(pin_file, "_write", slow)
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.URGENT, deadline_s=600.0)
    shown = keeper.hydration.status.status_of(IMAGE)
    assert left_bytes - 8 * CHUNK <= shown["remaining_bytes"] <= left_bytes
    assert 590.0 < shown["due_in_s"] <= 600.0


async def test_fill_order_is_urgent_without_deadline_then_earliest_deadline(tmp_path):
    async with one_host.one_host(tmp_path, 8 * MIB, is_keeping=True, data=DATA) as host:
        host.add(SECOND, OTHER)
        whole = Keeper(host).hydration
        for image_id in (IMAGE, OTHER):
            await host.mirrors.attach_image(image_id)
            for _ in range(2):  # pinned, then counted
                await whole._keep(image_id, is_replica=False)
        assert whole._next() == IMAGE
        await whole.set_fill_mode(OTHER, hydration.FillMode.URGENT, deadline_s=100.0)
        assert whole._next() == OTHER
        await whole.set_fill_mode(IMAGE, hydration.FillMode.URGENT, deadline_s=10.0)
        assert whole._next() == IMAGE
        first, second = whole._known[IMAGE], whole._known[OTHER]
        assert whole._due_besides(first) == [second]
        alone = whole._filler._needed_bytes_s(first, [])
        second.deadline = first.deadline._replace(at_s=first.deadline.at_s + 0.1)
        assert whole._filler._needed_bytes_s(first, whole._due_besides(first)) > 1.1 * alone
        second.backoff.record_failure("why", trio.current_time())
        assert whole._due_besides(first) == []  # it backs off
        second.backoff.record_success()
        await whole.set_fill_mode(OTHER, hydration.FillMode.URGENT)
        assert whole._due_besides(first) == []
        assert whole._next() == OTHER
        await whole.set_fill_mode(OTHER, hydration.FillMode.NORMAL)
        await whole.set_fill_mode(IMAGE, hydration.FillMode.PAUSED)
        assert whole._next() == OTHER


@pytest.mark.expect_log("missed its deadline of 0 s")
async def test_missed_deadline_is_logged_once_and_the_fill_continues(keeper, caplog):
    source = keeper.host.source
    await keeper.host.mirrors.attach_image(IMAGE)
    source._fail = range(1, 10_000)
    await keeper.use()
    await keeper.wait("failing")
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.URGENT, deadline_s=0.3)
    await until(lambda: "missed its deadline of" in caplog.text)
    shown = keeper.hydration.status.status_of(IMAGE)
    assert shown["is_late"] is True and shown["due_in_s"] <= 0
    await trio.sleep(0.5)
    assert caplog.text.count("missed its deadline of") == 1
    source._fail = range(0)
    await keeper.wait("fully_cached")
    await until(lambda: keeper.hydration.status.status_of(IMAGE)["is_late"] is None)


@pytest.mark.parametrize(
    ("jumped_s", "least_s", "most_s"), [(0, 3000, 3600), (-1e9, 3600, 3600), (1e9, -60, 0)]
)
async def test_deadline_survives_a_restart_and_clock_jumps(tmp_path, jumped_s, least_s, most_s):
    async with running(tmp_path) as made:
        made.set_limits(bytes_s=1.0)
        made.host.chunks.background_fetch = _never
        await made.use()
        await made.wait("filling")
        await made.hydration.set_fill_mode(IMAGE, hydration.FillMode.URGENT, deadline_s=3600.0)
        made.wall_jumped_s = jumped_s
        assert (
            3500 < made.hydration.status.status_of(IMAGE)["due_in_s"] <= 3600
        )  # clock jumps have no effect while it runs
        kept = made.host.pins.get(IMAGE)
    async with one_host.one_host(tmp_path, 8 * MIB, is_keeping=True) as host:
        assert host.pins.get(IMAGE) == kept
        host.add(DATA)
        again = Keeper(host)
        again.wall_jumped_s = jumped_s
        await host.mirrors.attach_image(IMAGE)
        await again.hydration._keep(IMAGE, is_replica=False)
        shown = again.hydration.status.status_of(IMAGE)
        assert least_s - 60 <= shown["due_in_s"] <= most_s
        assert shown["is_late"] is (jumped_s > 0)


def _never(priority):
    """Return a fetch that sends no request."""
    return background_fetch.BackgroundFetch(quiet_driver.QuietDriver(), priority)


async def test_image_can_be_made_urgent_before_it_is_pinned(keeper):
    image = await keeper.use()
    image.boots.state = boot_session.State.READY
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.URGENT)
    await keeper.wait("fully_cached")


async def test_paused_image_is_not_filled_until_it_is_resumed(keeper):
    (await keeper.use()).boots.state = boot_session.State.READY
    await keeper.wait("booting")
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.PAUSED)
    keeper.host.mirrors.get_nowait(IMAGE).boots.state = boot_session.State.DROPPED
    await trio.sleep(1)
    assert keeper.state() == "paused"
    assert keeper.hydration.status.status_of(IMAGE)["remaining_bytes"] == 40 * CHUNK + 777
    await keeper.hydration.set_fill_mode(IMAGE, hydration.FillMode.NORMAL)
    await keeper.wait("fully_cached")


async def test_fill_backs_off_from_a_failing_source(keeper):
    image = await keeper.use()
    kept = keeper.host.blobs.copy()
    keeper.host.blobs.clear()
    shown = await keeper.wait("failing")
    assert shown["why"] and shown["remaining_bytes"] > 0
    backoff = keeper.hydration._known[IMAGE].backoff
    await until(lambda: backoff.failures >= 6)
    before = len(keeper.host.source.reads)
    await trio.sleep(1)
    assert len(keeper.host.source.reads) - before <= 2 * (
        background_fill.FAILURES + fill_window.FEW
    )
    keeper.host.blobs.update(kept)
    await keeper.wait("fully_cached")
    assert image.count_cached().missing_bytes == 0


@pytest.mark.parametrize("has_waited", [False, True])
async def test_unavailable_chunk_does_not_block_the_other_chunks(keeper, batches, has_waited):
    host = keeper.host
    blob, kept = next((blob, data) for blob, data in host.blobs.items() if data == DATA)
    at = 5 * CHUNK
    host.blobs[blob] = DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]
    image = await keeper.use()
    if has_waited:
        image.waited_for.append(4)
    shown = await keeper.wait("failing")
    await until(lambda: keeper.hydration.status.status_of(IMAGE)["remaining_bytes"] == CHUNK)
    assert "the source" in shown["why"]
    requested = chunk_nos(batches)
    again = requested.index(5, requested.index(5) + 1)
    assert len(set(requested[:again])) == 41, "all others come before it comes again"
    host.blobs[blob] = kept
    await keeper.wait("fully_cached")


async def test_count_of_missing_chunks_gives_turns_to_others(keeper):
    keeper.set_limits(bytes_s=float(CHUNK), chunks_per_checkpoint=1)
    await keeper.use()
    await keeper.wait("filling")
    part, turns = keeper.host.pins.pinned_part(IMAGE), 0
    progress = background_fill.FillProgress(keeper.filler.make_backoff())

    async def take_turns():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        await keeper.filler.count_missing(part, progress)
        nursery.cancel_scope.cancel()
    looked_at, missing = len(part.numbers), len(progress.missing)
    assert missing > looked_at / 2
    assert turns >= looked_at + missing - 2, "in the search, and while they are put in order"


async def test_late_chunk_does_not_hold_up_the_others(keeper):
    keeper.set_limits(fetch_s=30.0, last_s=0.1, bytes_s=40.0 * CHUNK)  # each read has one chunk
    keeper.host.source._delay, keeper.host.source._delay_s = [3], 6.0
    await keeper.use()
    await keeper.wait("filling")
    await until(lambda: keeper.hydration.status.status_of(IMAGE)["remaining_bytes"] <= CHUNK, 4)
    await keeper.wait("fully_cached")


async def test_hanging_fetch_counts_as_failed(keeper):
    made, keeper.host.chunks.background_fetch = keeper.host.chunks.background_fetch, _never
    await keeper.use()
    shown = await keeper.wait("failing")
    assert "did not arrive in" in shown["why"]
    keeper.host.chunks.background_fetch = made
    await keeper.wait("fully_cached")


@contextlib.asynccontextmanager
async def without_space(tmp_path):
    """Yield a keeper whose cache has space for IMAGE only, and OTHER, which it uses too."""
    async with running(tmp_path, MIB) as keeper:
        await keeper.use(IMAGE)
        await keeper.wait("fully_cached", IMAGE)
        image = await keeper.use(OTHER)
        await keeper.wait("no_space", OTHER)
        yield keeper, image


@pytest.mark.expect_log("cannot be cached completely: the cache lacks")
async def test_image_without_space_is_reported_and_filled_once_space_is_free(tmp_path):
    async with without_space(tmp_path) as (keeper, _):
        shown = keeper.hydration.status.status_of(OTHER)
        assert keeper.reported(OTHER).is_used and not keeper.reported(OTHER).is_fully_cached
        assert shown["shortfall_bytes"] > 0
        with pytest.raises(errors.Unusable, match="the cache lacks"):
            await keeper.hydration.request_hydration(keeper.host.mirrors.get_nowait(OTHER))
        with pytest.raises(
            errors.Unusable, match="cannot be cached completely here: the cache lacks"
        ):
            await keeper.hydration.set_fill_mode(OTHER, hydration.FillMode.URGENT)
        assert keeper.state(IMAGE) == "fully_cached"
        keeper.uses.image_closed(IMAGE)

        def is_whole():
            keeper.uses.image_touched(OTHER)  # Nova is alive
            return keeper.state(OTHER) == "fully_cached"

        await until(is_whole)
        assert keeper.state(IMAGE) is None and not keeper.reported(IMAGE).is_used


OTHERS = [one_host.image_bytes(CHUNK, seed) for seed in range(100, 162)]


@contextlib.asynccontextmanager
async def crowded(folder, **limits):
    """Run a host whose cache is full of OTHERS, pinned after its image was; the fill begins."""
    async with running(folder, MIB) as keeper:
        keeper.set_limits(**limits)
        host = keeper.host
        host.source._delay, host.source._delay_s = range(1000), 0.1  # longer than a slice in all
        image = await keeper.use()
        image.boots.state = boot_session.State.READY
        await until(
            lambda: keeper.state() and keeper.hydration.status.status_of(IMAGE)["remaining_bytes"]
        )  # is pinned
        for data in OTHERS:
            await host.cache.wait_for_room()
            host.cache.pin_chunk(ids.cid_of(data), CHUNK)
            assert host.cache.store_chunk(ids.cid_of(data), data)
        image.boots.state = boot_session.State.DROPPED
        await keeper.wait("failing")
        assert "no space" in keeper.hydration.status.status_of(IMAGE)["why"]
        yield keeper


async def test_fill_backs_off_and_requests_nothing_while_pinned_chunks_occupy_the_cache(
    tmp_path, caplog
):
    caplog.set_level("INFO")
    async with crowded(tmp_path) as keeper:
        before = len(keeper.host.source.reads)
        backoff = keeper.hydration._known[IMAGE].backoff
        await until(lambda: backoff.failures >= 6)
        assert len(keeper.host.source.reads) == before
        assert keeper.hydration.status.status_of(IMAGE)["remaining_bytes"] > 30 * CHUNK
        assert caplog.text.count("not fully cached: the cache has no space") == 1


async def test_fill_continues_at_once_when_pinned_chunks_leave_the_cache(tmp_path):
    never_s = {"first_pause_s": 3600.0, "longest_pause_s": 3600.0, "fetch_s": 3600.0}
    async with crowded(tmp_path, **never_s) as keeper:
        for data in OTHERS:
            keeper.host.cache.unpin_chunk(ids.cid_of(data), CHUNK)
        await keeper.wait("fully_cached")
        assert keeper.host.mirrors.get_nowait(IMAGE).count_cached().missing_bytes == 0


@pytest.mark.expect_log("cannot be cached completely: the cache lacks")
async def test_hydration_request_fills_image_once_space_was_freed(tmp_path):
    async with without_space(tmp_path) as (keeper, image):
        keeper.hydration.limits = dataclasses.replace(keeper.hydration.limits, recount_s=math.inf)
        await keeper.host.pins.unpin_image(IMAGE)
        await keeper.hydration.request_hydration(image)
        assert (await keeper.wait("fully_cached", OTHER))["shortfall_bytes"] == 0


async def test_requested_image_stays_pinned_unused_until_withdrawn(keeper):
    image = await keeper.host.mirrors.attach_image(IMAGE)
    await keeper.hydration.request_hydration(image)
    for _ in range(10):
        keeper.uses.image_touched(OTHER)
        await trio.sleep(IN_USE_S / 2)
    assert (await keeper.wait("fully_cached"))["is_pinned"]
    await keeper.hydration.withdraw_request(IMAGE)
    await until(lambda: keeper.state() is None)
    assert keeper.promised_bytes() == 0
    with pytest.raises(errors.Unusable, match="cannot be cached completely here"):
        await keeper.hydration.withdraw_request(IMAGE)


async def test_lost_chunk_is_fetched_again(keeper):
    image = await keeper.use()
    await keeper.wait("fully_cached")
    keeper.host.cache.drop_chunk(image.map.cid_of(3))
    await until(lambda: not image.count_cached().missing_bytes)
    await keeper.wait("fully_cached")


async def test_fully_cached_image_is_recounted_only_after_a_chunk_is_lost(keeper):
    host, counted = keeper.host, []
    count = keeper.hydration._filler.count_missing

    async def noted(part, progress):
        counted.append(part.map.image_id)
        await count(part, progress)

    keeper.hydration._filler.count_missing = noted
    image = await keeper.use()
    await keeper.wait("fully_cached")
    await host.mirrors.attach_image(OTHER)
    kept = host.blobs.copy()
    host.blobs.clear()
    await keeper.use(OTHER)
    await keeper.wait("failing", OTHER)
    before = counted.count(IMAGE)
    await trio.sleep(5 * keeper.hydration.limits.recount_s)
    assert counted.count(IMAGE) == before
    host.cache.drop_chunk(image.map.cid_of(3))
    await until(lambda: counted.count(IMAGE) > before)
    host.blobs.update(kept)
    await keeper.wait("fully_cached", OTHER)
    await keeper.wait("fully_cached")
    assert image.count_cached().missing_bytes == 0


@pytest.mark.expect_log("cannot be cached completely: the cache lacks")
async def test_capacity_is_not_recomputed_while_no_space_was_freed(tmp_path, monkeypatch):
    async with without_space(tmp_path) as (keeper, _):
        looked, slots_of = [], capacity.slots_of
        monkeypatch.setattr(
            capacity, "slots_of", lambda *found: looked.append(found) or slots_of(*found)
        )
        await trio.sleep(5 * keeper.hydration.limits.recount_s)
        assert not looked


async def test_image_of_zeros_is_fully_cached_with_zero_bytes(keeper):
    keeper.host.add(bytes(8 * CHUNK))
    await keeper.use()
    shown = await keeper.wait("fully_cached")
    assert (shown["total_bytes"], shown["cached_share"]) == (0, 1.0)


async def test_chunks_of_a_local_boot_image_are_not_fetched_again(keeper):
    host = keeper.host
    host.add_boot_image(DATA, range(20))
    image = await keeper.use()
    image.boots.begin_boot()
    await until(lambda: image.boots.state is boot_session.State.READY)
    image.boots.drop()
    before = host.chunks.counters.source_bytes
    await keeper.wait("fully_cached")
    assert host.chunks.counters.source_bytes - before == 20 * CHUNK + 777
    assert image.count_cached().missing_bytes == 0


@contextlib.asynccontextmanager
async def still(folder, limit_bytes=8 * MIB):
    """A host whose background tasks do not run."""
    async with one_host.one_host(folder, limit_bytes, is_keeping=True, data=DATA) as host:
        host.add(SECOND, OTHER)
        yield Keeper(host)


async def test_hanging_attach_delays_one_image_per_round_and_backs_off(tmp_path, monkeypatch):
    async with still(tmp_path) as keeper:
        keeper.set_limits(first_pause_s=1000.0, longest_pause_s=1000.0)
        keeper.hydration.limits = hydration.HydrationLimits(
            recount_s=0.0, attach_s=0.2, attach_round_s=0.1
        )
        asked, attach = [], keeper.host.mirrors.attach_image

        async def hang(image_id, *_):
            asked.append(image_id)
            await trio.sleep_forever()

        monkeypatch.setattr(keeper.host.mirrors, "attach_image", hang)
        for image_id in (IMAGE, OTHER):
            keeper.uses.image_touched(image_id)
            await keeper.host.pins._set(pin_record.ImagePin(image_id, 1.0))
        for settled in range(1, 5):
            await keeper.hydration._settle()
            assert len(asked) == min(settled, 2)
        assert set(asked) == {IMAGE, OTHER}
        monkeypatch.setattr(keeper.host.mirrors, "attach_image", attach)
        keeper.hydration.limits = hydration.HydrationLimits(
            recount_s=0.0, attach_s=60.0, attach_round_s=60.0
        )
        for known in keeper.hydration._known.values():
            known.backoff.failure = known.backoff.failure._replace(again_s=0.0)
        await keeper.hydration._settle()
        await keeper.hydration._settle()
        assert keeper.hydration._known[IMAGE].backoff.failure is None
        assert keeper.host.pins.pinned_part(IMAGE) and keeper.host.pins.pinned_part(OTHER)


async def test_image_with_unwritten_chunks_is_not_reported_fully_cached(tmp_path, monkeypatch):
    async with still(tmp_path) as keeper:
        keeper.set_limits(chunks_per_checkpoint=1)
        image = await keeper.use()
        await image.read_at(0, len(DATA))
        is_written = keeper.host.cache.is_written
        monkeypatch.setattr(keeper.host.cache, "is_written", lambda cid: False)

        async def look():
            while True:
                if IMAGE in keeper.filler.progress:
                    keeper.filler.update_unwritten(keeper.filler.progress[IMAGE])
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            pinned = keeper.host.pins._pinned
            for _ in range(3):
                await keeper.hydration._settle()
                pinned[IMAGE] = pinned[IMAGE]._replace()  # as after a new ring table
            await keeper.hydration._settle()
            nursery.cancel_scope.cancel()
        reported = keeper.reported()
        assert keeper.hydration._known[IMAGE].left_bytes == 0
        assert (reported.state, reported.remaining_bytes) == (
            fill_status.State.FILLING,
            reported.total_bytes,
        )
        monkeypatch.setattr(keeper.host.cache, "is_written", is_written)
        with trio.fail_after(PATIENCE_S):
            while not keeper.reported().is_fully_cached:
                await keeper.hydration._settle()
                await trio.sleep(0.01)


async def test_image_awaiting_a_recount_is_not_the_next_to_be_filled(tmp_path):
    """Otherwise the fill loop does nothing else until the image is counted."""
    async with still(tmp_path) as keeper:
        await keeper.use()
        await keeper.hydration._settle()
        await trio.sleep(BOOT_IDLE_S)
        await keeper.hydration._settle()
        await until(lambda: keeper.hydration._next() == IMAGE)
        pinned = keeper.host.pins._pinned
        pinned[IMAGE] = pinned[IMAGE]._replace()  # as after a new ring table
        assert keeper.hydration._next() is None


@pytest.mark.parametrize("is_detached", [True, False])
@pytest.mark.allow_log("cannot be cached completely")
async def test_map_of_an_image_without_space_is_dropped_after_its_last_use(tmp_path, is_detached):
    async with still(tmp_path, limit_bytes=CHUNK) as keeper:
        await keeper.use()
        await keeper.uses.scan_processes()
        await keeper.hydration._settle()
        assert list(keeper.host.pins._found) == [IMAGE]
        await keeper.hydration._settle()
        assert list(keeper.host.pins._found) == [IMAGE]
        keeper.uses.image_closed(IMAGE)
        if is_detached:
            keeper.host.mirrors.detach_image(IMAGE)
        keeper.uses.image_detached(IMAGE)
        await keeper.hydration._settle()
        assert not keeper.host.pins._found
