# SPDX-License-Identifier: Apache-2.0
"""Recording of boots, and delivery of traces without disturbing reads."""

import types

import msgspec
import pytest
import trio

from acstor_agent.images.boot import boot_recording
from acstor_agent.images.boot import trace_spool
from acstor_common.model import ids
from acstor_common.wire import trace_message
from tests.fakes import manual_clock
from tests.fakes import one_host

CHUNK = one_host.CHUNK
CHUNKS = 40
TRACE = tuple(range(30, 10, -1))
LIMITS = boot_recording.RecordingLimits(longest_s=60.0, idle_s=10.0, boots=2)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path) as made:
        made.add(one_host.image_bytes(CHUNKS * CHUNK))
        yield made


def decode(payload):
    return msgspec.convert(payload, trace_message.BootTrace)


def boot(host, image, recording, thread=7):
    opener = recording.image_opened(image, thread)
    for chunk_no in TRACE if opener else ():
        image.recorder.record_guest_read(opener, chunk_no * CHUNK, 1, host.now_s)


async def test_boots_are_recorded_and_sent_and_the_recorder_is_removed(host, autojump_clock):
    sent = []
    recording = boot_recording.BootRecording(
        "h1", LIMITS, sent.append, manual_clock.FunctionClock(lambda: host.now_s)
    )
    image = await host.mirrors.attach_image(one_host.IMAGE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recording.run)
        for _ in range(LIMITS.boots + 1):
            boot(host, image, recording)
            host.now_s += 5.0
            await trio.sleep(3.0)
            host.now_s += 5.0
            await trio.sleep(3.0)
            assert image.recorder is None
        nursery.cancel_scope.cancel()
    assert [message.trace for message in sent] == [TRACE] * LIMITS.boots
    encoded = msgspec.json.encode(sent[0])
    assert msgspec.json.decode(encoded, type=trace_message.BootTrace) == sent[0]


@pytest.fixture
async def profiled(host, autojump_clock, nursery):
    """Yield a running recording; ``instances`` has those of threads, ``sent`` its traces."""
    instances, sent = {}, []
    recording = boot_recording.BootRecording(
        *("h1", LIMITS, sent.append, manual_clock.FunctionClock(lambda: host.now_s)),
        instance_of=lambda thread: instances.get(thread, ""),
    )
    nursery.start_soon(recording.run)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    return types.SimpleNamespace(
        image=image, recording=recording, instances=instances, sent=sent, host=host
    )


DB, WEB = ids.profile_key_of("db"), ids.profile_key_of("web")


async def record(profiled, *threads, closes_early=False):
    """Let threads boot at a time; return the profiles of the recorded boots."""
    before = len(profiled.sent)
    for thread in threads:
        boot(profiled.host, profiled.image, profiled.recording, thread)
    await trio.sleep(1.5)
    if closes_early:
        profiled.instances.clear()
    profiled.host.now_s += LIMITS.idle_s
    await trio.sleep(3.0)
    return [trace.profile_key for trace in profiled.sent[before:]]


async def test_boots_of_each_profile_are_recorded(profiled):
    profiled.instances |= {1: "a", 2: "b", 3: "c", 4: "d"}
    profiled.recording.announce_boot(one_host.IMAGE, "a", DB)
    profiled.recording.announce_boot(one_host.IMAGE, "b", WEB)
    profiled.recording.announce_boot(one_host.OTHER, "c", WEB)
    expected = [DB, WEB, ids.NO_PROFILE]
    assert await record(profiled, 1, 2, 3) == expected
    assert await record(profiled, 1, 2, 4, closes_early=True) == expected
    assert await record(profiled, 1, 2, 4) == []
    assert profiled.recording.image_opened(profiled.image, thread=1) == 0


async def test_boot_of_an_unknown_instance_is_not_recorded_if_it_may_have_a_profile(profiled):
    profiled.recording.announce_boot(one_host.IMAGE, "a", DB)
    assert await record(profiled, 1) == []
    profiled.host.now_s += boot_recording.ANNOUNCED_S
    assert await record(profiled, 1) == [ids.NO_PROFILE]


async def test_boots_of_a_profile_in_use_are_recorded_again(profiled):
    profiled.instances[1] = "a"
    for _ in range(LIMITS.boots):
        profiled.recording.announce_boot(one_host.IMAGE, "a", DB)
        assert await record(profiled, 1) == [DB]
    for later_s, expected in ((0.0, []), (boot_recording.AGAIN_S, [DB]), (0.0, [])):
        profiled.host.now_s += later_s
        profiled.recording.announce_boot(one_host.IMAGE, "a", DB)
        assert await record(profiled, 1) == expected


async def test_boots_of_a_fifth_profile_are_not_recorded(profiled):
    keys = [ids.profile_key_of(str(number)) for number in range(5)]
    profiled.instances[1] = "a"
    for key in keys:
        profiled.recording.announce_boot(one_host.IMAGE, "a", key)
        assert await record(profiled, 1) == ([key] if key != keys[4] else [])
    profiled.instances[1] = "b"
    assert await record(profiled, 1) == [ids.NO_PROFILE]


async def test_former_profile_of_an_instance_is_not_used(profiled):
    profiled.instances[1] = "a"
    profiled.recording.announce_boot(one_host.IMAGE, "a", DB)
    profiled.host.now_s += boot_recording.ANNOUNCED_S + 1.0
    assert await record(profiled, 1) == [ids.NO_PROFILE]


async def test_recording_can_be_disabled(host):
    off = LIMITS._replace(longest_s=0.0)
    recording = boot_recording.BootRecording("h1", off, lambda message: None)
    image = await host.mirrors.attach_image(one_host.IMAGE)
    assert recording.image_opened(image, 7) == 0
    assert image.recorder is None


def message(**changes):
    fields = {
        "host": "h1",
        "image_id": one_host.IMAGE,
        "size_bytes": CHUNKS * CHUNK,
        "chunk_bytes": CHUNK,
        "trace": TRACE,
    }
    return {**fields, **changes}


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "no host"},
        {"image_id": "../../etc/passwd"},
        {"size_bytes": -1},
        {"size_bytes": 1 << 62},
        {"chunk_bytes": 1000},
        {"trace": ()},
        {"trace": (CHUNKS,)},
        {"trace": (-1,)},
        {"trace": (1, 1)},
        {"trace": ("1",)},
        {"trace": tuple(range(trace_message.MAX_CHUNKS + 1))},
        {"trace": 7},
        {"profile": "db"},
        {"profile": "0" * 31},
        {"profile": "0" * 33},
        {"profile": "0" * 32 + "\n"},
    ],
)
def test_invalid_trace_message_is_refused(wrong):
    decode(message())
    with pytest.raises(msgspec.ValidationError):
        decode(message(**wrong))
    with pytest.raises(msgspec.ValidationError):
        decode([wrong])


def test_spool_keeps_a_bounded_number_of_traces(tmp_path):
    spool = trace_spool.TraceSpool(tmp_path / "traces")
    for size in range(trace_spool.FILES_LIMIT + 5):
        spool.write(decode(message(size_bytes=(CHUNKS + size) * CHUNK)))
    files = list((tmp_path / "traces").iterdir())
    assert len(files) == trace_spool.FILES_LIMIT
    assert msgspec.json.decode(files[0].read_bytes(), type=trace_message.BootTrace).trace == TRACE


@pytest.mark.expect_log("boot trace of image .* is lost")
def test_trace_is_lost_without_a_spool_folder_and_the_next_one_makes_it(tmp_path):
    spool = trace_spool.TraceSpool(tmp_path / "traces")
    (tmp_path / "traces").write_bytes(b"not a folder")
    spool.write(decode(message()))
    (tmp_path / "traces").unlink()
    spool.write(decode(message()))
    assert len(list((tmp_path / "traces").iterdir())) == 1


async def test_trace_is_written_by_a_thread(tmp_path, nursery):
    is_written = trio.Event()

    class Spool(trace_spool.TraceSpool):
        def write(self, trace):
            super().write(trace)
            trio.from_thread.run_sync(is_written.set)

    spool = Spool(tmp_path / "traces")
    await nursery.start(spool.run)
    spool.queue_trace(decode(message()))
    await is_written.wait()
    (file,) = (tmp_path / "traces").iterdir()
    assert msgspec.json.decode(file.read_bytes(), type=trace_message.BootTrace).trace == TRACE


@pytest.mark.expect_log("boot trace of image .* is lost: the disk is slow")
def test_trace_is_dropped_without_waiting_if_the_spool_queue_is_full(tmp_path):
    spool = trace_spool.TraceSpool(tmp_path / "traces")
    for _ in range(trace_spool.UNWRITTEN + 1):
        spool.queue_trace(decode(message()))
