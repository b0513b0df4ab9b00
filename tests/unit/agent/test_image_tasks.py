# SPDX-License-Identifier: Apache-2.0
"""Image tasks of a host: their queue, their progress and the reported results."""

import msgspec
import pytest
import trio
import trio.testing

from acstor_agent.control import image_tasks
from acstor_agent.core import counters
from acstor_agent.core.boot import boot_set
from acstor_agent.images.boot import boot_recording
from acstor_common import errors
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from tests.fakes import manual_clock
from tests.fakes import one_host

CHUNK = one_host.CHUNK
DATA = one_host.image_bytes(4 * CHUNK)
LIMITS = boot_recording.RecordingLimits(longest_s=60.0, idle_s=10.0, boots=0)
State = decision_messages.TaskState
Kind = decision_messages.TaskKind
NOT_USED = fill_progress.FillStatus(
    state=fill_progress.FillState.EVICTABLE, is_used=False, why="not used"
)
FILLING = fill_progress.FillStatus(
    state=fill_progress.FillState.FILLING, is_used=True, total_bytes=9, remaining_bytes=5
)


def task(request, kind=Kind.PRE_SEED, image_id=one_host.IMAGE, boots=1):
    return decision_messages.ImageTask(request=request, kind=kind, image_id=image_id, boots=boots)


class Host:
    """Image tasks of a host; the test decides when a fetch finishes."""

    def __init__(self, made, limits=LIMITS, max_images=image_tasks.MAX_IMAGES):
        self.parts = made
        self.now_s = 0.0
        self.may_go_on = trio.Event()
        self.failure = None
        self.fill_states, self.bases, self.wished, self.prefetched = {}, set(), [], {}
        self.is_ahead_wanted, self.may_come, self.ahead_delay_s = True, trio.Event(), 0.0
        self.recording = boot_recording.BootRecording("h1", limits, lambda message: None)
        self.mirrors = made.mirrors
        self.tasks = image_tasks.ImageTasks(
            self,
            self,
            self.recording,
            self,
            manual_clock.FunctionClock(lambda: self.now_s),
            max_images,
        )

    def list_local(self):
        return {*self.mirrors.list_attached(), *self.bases}

    def fetch_tally(self, image_id):
        return self.parts.chunks.counters.fetched.get(image_id)

    def fill_report(self, image_id):
        return self.fill_states.get(image_id, NOT_USED)

    async def pre_seed(self, image_id, report):
        if self.failure:
            raise self.failure
        image = await self.parts.mirrors.attach_image(image_id)
        await report(CHUNK, len(DATA))
        await self.may_go_on.wait()
        for offset in range(0, len(DATA), CHUNK):
            await image.read_at(offset, CHUNK)
        return {"done_bytes": len(DATA)}

    async def flatten_disks(self, image_id, report):
        await report(0, 7)
        if self.failure:
            raise self.failure
        return {"done_bytes": 7}

    async def apply_image_task(self, asked):
        if self.failure:
            raise self.failure
        self.wished.append(asked)

    def is_for(self, asked):
        return self.is_ahead_wanted

    def boot_set_of(self, image_id):
        return self.prefetched.get(image_id)

    def delay_s(self):
        return self.ahead_delay_s

    async def prefetch_boot_image(self, asked, report):
        await report(0, 9)
        await self.may_come.wait()
        if self.failure:
            raise self.failure
        return {"done_bytes": 9}

    async def reported(self, image_id=one_host.IMAGE):
        return (await self.tasks.changed_images())[image_id].task

    async def all(self):
        self.now_s += image_tasks.DESCRIBE_INTERVAL_S
        return await self.tasks.changed_images()

    async def wait(self, is_so, image_id=one_host.IMAGE):
        """Return the reported task of an image once ``is_so`` holds."""
        with trio.fail_after(30):
            while True:
                reported = (await self.all())[image_id].task
                if is_so(reported):
                    return reported
                await trio.sleep(0.01)


@pytest.fixture
async def host(tmp_path, nursery):
    async with one_host.one_host(tmp_path, data=DATA) as parts:
        made = Host(parts)
        nursery.start_soon(made.tasks.run)
        yield made


async def test_unchanged_images_are_reported_once_per_interval(host):
    assert await host.tasks.changed_images() == {}
    assert await host.tasks.changed_images() is None
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    assert await host.tasks.changed_images() == {}


async def test_image_report_counts_bytes_by_origin(host):
    image = await host.parts.mirrors.attach_image(one_host.IMAGE)
    await image.read_at(0, CHUNK)
    await image.read_at(0, 100)
    [(image_id, held)] = (await host.tasks.changed_images()).items()
    assert (image_id, held.size_bytes, held.cached_bytes) == (one_host.IMAGE, len(DATA), CHUNK)
    assert held.missing_bytes == image.count_cached().missing_bytes > 0
    assert held.read == decision_messages.ReadBytes(local=100, source=CHUNK)
    assert held.fetched == decision_messages.FetchedBytes(source=CHUNK)
    assert (held.boot_image, held.boot_revision, held.task) == ("unknown", 0, None)


async def test_boot_set_size_is_reported_for_booting_and_prefetched_images(host):
    host.parts.add_boot_image(DATA, [0, 1, 3])
    image = await host.parts.mirrors.attach_image(one_host.IMAGE)
    assert (await host.all())[one_host.IMAGE].boot_set_bytes is None
    await image.boots._load_head()
    await image.read_at(CHUNK, CHUNK)
    held = (await host.all())[one_host.IMAGE]
    assert (held.boot_set_bytes, held.boot_set_cached_bytes) == (3 * CHUNK, CHUNK)
    host.bases, host.prefetched[one_host.OTHER] = {one_host.OTHER}, boot_set.BootSet(9, 7)
    held = (await host.all())[one_host.OTHER]
    assert (held.boot_set_bytes, held.boot_set_cached_bytes) == (9, 7)


async def test_change_of_fill_state_is_reported_in_the_next_sample(host):
    await host.tasks.changed_images()
    await host.parts.mirrors.attach_image(one_host.IMAGE)
    assert await host.tasks.changed_images() is None  # it is unused: the report can wait
    for reported in (
        FILLING,
        msgspec.structs.replace(
            FILLING, state=fill_progress.FillState.FULLY_CACHED, remaining_bytes=0
        ),
        NOT_USED,
    ):
        host.fill_states[one_host.IMAGE] = reported
        assert (await host.tasks.changed_images())[one_host.IMAGE].fill == reported
        assert await host.tasks.changed_images() is None


async def test_base_image_of_a_disk_is_reported_without_being_attached(host):
    await host.tasks.changed_images()
    host.bases.add(one_host.OTHER)
    host.fill_states[one_host.OTHER] = FILLING
    assert (await host.tasks.changed_images())[one_host.OTHER].fill.is_used
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    assert list(await host.tasks.changed_images()) == [one_host.OTHER]


async def test_fill_progress_is_reported_once_per_interval(host):
    await host.parts.mirrors.attach_image(one_host.IMAGE)
    host.fill_states[one_host.IMAGE] = FILLING
    await host.tasks.changed_images()
    further = msgspec.structs.replace(
        FILLING, state=fill_progress.FillState.QUEUED, remaining_bytes=1
    )
    host.fill_states[one_host.IMAGE] = further
    assert await host.tasks.changed_images() is None
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    assert (await host.tasks.changed_images())[one_host.IMAGE].fill == further


async def test_report_at_its_limit_prefers_used_then_recently_touched_images(host):
    host = Host(host.parts, max_images=1)
    host.parts.add(DATA, one_host.OTHER)
    for image_id, touched_ns in ((one_host.IMAGE, 1_000), (one_host.OTHER, 2_000)):
        await host.parts.mirrors.attach_image(image_id)
        host.parts.mirrors.save_time_stamp(image_id, touched_ns)
    host.fill_states[one_host.IMAGE] = FILLING
    assert list(await host.tasks.changed_images()) == [one_host.IMAGE]
    host.fill_states.clear()
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    assert list(await host.tasks.changed_images()) == [one_host.OTHER]


async def test_report_at_its_limit_prefers_used_images_not_fully_cached(host):
    """Images that are not reported count as unneeded, and may be deleted."""
    host = Host(host.parts, max_images=1)
    host.bases = {one_host.IMAGE, one_host.OTHER}
    whole = msgspec.structs.replace(
        FILLING, state=fill_progress.FillState.FULLY_CACHED, remaining_bytes=0
    )
    for lacking in sorted(host.bases):
        host.fill_states = dict.fromkeys(host.bases, whole) | {lacking: FILLING}
        assert list(await host.tasks.changed_images()) == [lacking]


async def test_number_of_reported_images_is_limited(host):
    host.bases = {
        f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(decision_messages.MAX_IMAGES + 76)
    }
    host.fill_states = dict.fromkeys(host.bases, FILLING)
    assert len(await host.tasks.changed_images()) == image_tasks.MAX_IMAGES
    assert await host.tasks.changed_images() is None  # unreported images do not count as changed
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    unused = max(await host.tasks.changed_images())
    host.fill_states[unused] = NOT_USED
    reported = await host.tasks.changed_images()
    assert len(reported) == image_tasks.MAX_IMAGES and unused not in reported


def test_bytes_fetched_from_homes_count_as_peer_bytes():
    tally = counters.Tally()
    tally.add(counters.Origin.PEER, 3)
    tally.add(counters.Origin.HOME, 4)
    held = image_tasks.held_image(None, tally, NOT_USED, None)
    assert held.fetched == decision_messages.FetchedBytes(peer=7)
    assert (held.size_bytes, held.cached_bytes) == (None, None)


async def test_pre_seed_reports_its_progress(host):
    host.tasks.queue_task(task(5))
    host.tasks.queue_task(task(6, image_id=one_host.OTHER))
    reported = await host.wait(lambda reported: reported.done)
    assert (reported.request, reported.state, reported.done, reported.total) == (
        5,
        State.RUNNING,
        CHUNK,
        len(DATA),
    )
    await host.tasks.changed_images()  # changes during the last report
    assert (await host.tasks.changed_images()) is None
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    assert (await host.reported(one_host.OTHER)).state is State.WAITING
    host.parts.add(DATA, one_host.OTHER)
    host.may_go_on.set()
    reported = await host.wait(lambda reported: reported.state is State.DONE)
    assert (reported.done, reported.total) == (len(DATA), len(DATA))


async def test_repeated_task_is_reported_again_and_run_once(host):
    host.may_go_on.set()
    host.tasks.queue_task(task(5))
    await host.wait(lambda reported: reported.state is State.DONE)
    host.failure = errors.ChunkUnavailable("image x", "source", "it would be done again")
    host.tasks.queue_task(task(5))
    assert (await host.reported()).state is State.DONE
    await trio.testing.wait_all_tasks_blocked()
    assert (await host.wait(lambda reported: True)).state is State.DONE


WISHES = (Kind.HYDRATE, Kind.PAUSE, Kind.RESUME, Kind.UNPIN)


async def test_fill_mode_tasks_do_not_wait_for_a_running_pre_seed(host):
    host.tasks.queue_task(task(1))
    await host.wait(lambda reported: reported.done)
    for request, kind in enumerate(WISHES, 2):
        host.tasks.queue_task(task(request, kind))
        reported = await host.wait(lambda reported: reported.state is State.DONE)
        assert (reported.request, reported.kind) == (request, kind)
    assert [asked.kind for asked in host.wished] == list(WISHES)
    host.may_go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert host.parts.mirrors.get_nowait(one_host.IMAGE).count_cached().missing_bytes == 0
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    reported = await host.reported()
    assert reported.kind is Kind.UNPIN  # not the result of an earlier task


@pytest.mark.expect_log("cannot hydrate: image")
async def test_failed_fill_mode_task_reports_why_and_the_next_one_runs(host):
    host.failure = errors.Unusable("image x", "cannot be cached completely here")
    host.tasks.queue_task(task(1, Kind.HYDRATE))
    reported = await host.wait(lambda reported: reported.state is State.FAILED)
    assert reported.why == "image x: cannot be cached completely here"
    host.failure = None
    host.tasks.queue_task(task(2, Kind.PAUSE))
    await host.wait(lambda reported: reported.state is State.DONE)


@pytest.mark.expect_log("cannot pre_seed: image")
async def test_failed_pre_seed_reports_why_and_the_next_one_runs(host):
    host.failure = errors.ChunkUnavailable("image x", "source", "x" * 999)
    host.tasks.queue_task(task(1))
    reported = await host.wait(lambda reported: reported.state is State.FAILED)
    assert len(reported.why) == decision_messages.MAX_WHY
    host.failure = None
    host.may_go_on.set()
    host.tasks.queue_task(task(2))
    await host.wait(lambda reported: reported.state is State.DONE)


@pytest.mark.allow_log("cannot pre_seed")
async def test_task_flood_is_refused_and_the_report_is_bounded(host):
    ids = [f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(300)]
    for number, image_id in enumerate(ids):
        host.tasks.queue_task(task(number, image_id=image_id))
    reported = await host.tasks.changed_images()
    assert len(reported) == image_tasks.MAX_REPORTED_TASKS
    assert reported[ids[-1]].task.state is State.FAILED
    assert reported[ids[-1]].task.why == "64 other tasks already wait on this host"


async def test_boots_are_recorded_as_often_as_requested(host):
    assert host.recording.remaining_boots(one_host.IMAGE) == 0
    host.tasks.queue_task(task(3, Kind.RECORD_BOOTS, boots=2))
    assert host.recording.remaining_boots(one_host.IMAGE) == 2
    assert (await host.reported()).done == 0
    sent = host.recording._sent[one_host.IMAGE] = boot_recording._SentTraces()
    sent.add(b"", 0.0)
    reported = await host.reported()
    assert (reported.state, reported.done, reported.total) == (State.RUNNING, 1, 2)
    sent.add(b"db", 0.0)
    reported = await host.reported()
    assert (reported.state, reported.done) == (State.DONE, 2)


@pytest.mark.expect_log("cannot record_boots: boot_memory_limit_bytes: is 0")
async def test_record_boots_task_fails_where_recording_is_disabled(tmp_path):
    async with one_host.one_host(tmp_path) as parts:
        made = Host(parts, LIMITS._replace(longest_s=0.0))
        made.tasks.queue_task(task(1, Kind.RECORD_BOOTS))
        reported = await made.reported()
    assert reported.state is State.FAILED and "boot_memory_limit_bytes: is 0" in reported.why


async def test_boot_image_prefetch_does_not_delay_other_tasks(host):
    host.tasks.queue_task(task(1, Kind.PREFETCH_BOOT_IMAGE))
    await host.wait(lambda reported: reported.state is State.RUNNING)
    other = str(one_host.OTHER)
    host.tasks.queue_task(task(2, Kind.FLATTEN, other))
    await host.wait(lambda reported: reported.state is State.DONE, other)
    assert (await host.all())[one_host.IMAGE].task.state is State.RUNNING
    host.may_come.set()
    done = await host.wait(lambda reported: reported.state is State.DONE)
    assert (done.kind, done.done, done.total) == (Kind.PREFETCH_BOOT_IMAGE, 9, 9)


async def test_boot_image_prefetch_does_not_hide_a_requested_task(host):
    """A client that waits for a pre-seed looks for it in the report, also once it is done."""
    host.tasks.queue_task(task(1))
    await host.wait(lambda reported: reported.done)
    host.may_come.set()
    host.tasks.queue_task(task(2, Kind.PREFETCH_BOOT_IMAGE))
    reported = await host.wait(lambda reported: True)
    assert (reported.request, reported.state, reported.total) == (1, State.RUNNING, len(DATA))
    host.may_go_on.set()
    await host.wait(lambda reported: reported.state is State.DONE)
    host.tasks.queue_task(task(3, Kind.PREFETCH_BOOT_IMAGE))
    assert (await host.wait(lambda reported: True)).request == 1
    host.tasks.queue_task(task(4))
    assert (await host.wait(lambda reported: True)).request == 4


async def test_delayed_boot_image_prefetches_wait_concurrently(host):
    """Each waits for the host's delay; one after the other, a hundred would take over a day."""
    host.ahead_delay_s = 1.0
    host.may_come.set()
    begun_s = trio.current_time()
    for number in range(100):
        host.tasks.queue_task(
            task(number, Kind.PREFETCH_BOOT_IMAGE, f"7d2c1f9e-5d6b-4a5c-9c61-{number:012}")
        )
    left = True
    with trio.fail_after(50):
        while left:
            await trio.sleep(0.05)
            left = any(one.task.state is not State.DONE for one in (await host.all()).values())
    assert trio.current_time() - begun_s >= 1.0


@pytest.mark.expect_log("cannot prefetch_boot_image: the boot image")
async def test_failed_boot_image_prefetch_reports_why(host):
    host.failure = errors.Unusable("the boot image", "exceeds the daily limit")
    host.may_come.set()
    host.tasks.queue_task(task(1, Kind.PREFETCH_BOOT_IMAGE))
    failed = await host.wait(lambda reported: reported.state is State.FAILED)
    assert "exceeds the daily limit" in failed.why


async def test_host_reports_no_task_for_an_unwanted_boot_image(host):
    host.is_ahead_wanted = False
    host.tasks.queue_task(task(1, Kind.PREFETCH_BOOT_IMAGE))
    host.now_s += image_tasks.DESCRIBE_INTERVAL_S
    assert await host.tasks.changed_images() == {}
