# SPDX-License-Identifier: Apache-2.0
"""A flood of traces takes bounded space in the store."""

import time
import uuid

from acstor_common.model import ids
from acstor_common.wire import trace_message
from acstor_glance.boot import trace_store
from tests.fakes import manual_clock

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = 65536


def message(
    number: int,
    host: str = "h1",
    image_id: str = IMAGE_ID,
    chunks: int = 1000,
    profile: str = "",
    recorded_s: float = 0.0,
):
    return trace_message.BootTrace(
        host=host,
        image_id=image_id,
        size_bytes=chunks * CHUNK,
        chunk_bytes=CHUNK,
        trace=(number, number + 1),
        profile=ids.profile_key_of(profile).hex(),
        recorded_s=recorded_s,
    )


def firsts(store):
    return [trace.trace[0] for trace in store.list_traces(IMAGE_ID)]


def test_traces_survive_a_reopening_of_the_store(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    assert [store.add_trace(message(n, f"h{n}")) for n in range(3)] == [1, 2, 3]
    assert firsts(trace_store.TraceStore(tmp_path)) == [0, 1, 2]


def test_traces_of_a_host_are_limited(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    store.add_trace(message(0, "other"))
    for number in range(1, 30):
        store.add_trace(message(number))
    assert firsts(store) == [0, 28, 29]


def test_traces_of_many_hosts_are_limited_for_each_image(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    for number in range(50):
        count = store.add_trace(message(number, f"forged-{number}"))
    assert count == len(firsts(store)) == trace_store.MAX_TRACES
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 10_000


def test_number_of_images_in_the_store_is_limited(tmp_path):
    store = trace_store.TraceStore(tmp_path, images_limit=5)
    for _ in range(20):
        store.add_trace(message(1, image_id=str(uuid.uuid4())))
    assert len(list((tmp_path / "traces").iterdir())) == 5


def test_trace_with_another_image_length_drops_older_ones(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    store.add_trace(message(1, "h1"))
    assert store.add_trace(message(2, "h2", chunks=999)) == 1


def test_damaged_file_is_ignored_and_replaced(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    store.add_trace(message(1))
    (path,) = (tmp_path / "traces").iterdir()
    for damage in (b"", b"[{}]", b"\xff" * 100, b'[{"host": 5}]'):
        path.write_bytes(damage)
        assert store.list_traces(IMAGE_ID) == []
    assert store.add_trace(message(3)) == 1


def test_traces_of_each_profile_have_their_own_limits(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    store.add_trace(message(0))
    for number in range(1, 30):
        store.add_trace(message(number, profile="db"))
        store.add_trace(message(100 + number, f"h{number}", profile="web"))
    newest = [122, 123, 124, 125, 126, 127, 28, 128, 29, 129]
    assert firsts(store) == [0, *newest]


def profiles(store):
    found = dict.fromkeys(trace.profile for trace in store.list_traces(IMAGE_ID))
    return [NAMES[key] for key in found]


NAMES = {ids.profile_key_of(name).hex(): name for name in ("", "a", "b", "c", "d", "e", "f")}


def full_store(tmp_path, now_s=1e9):
    """Return a store with two traces of each of four profiles."""
    store = trace_store.TraceStore(tmp_path, clock=manual_clock.FunctionClock(lambda: now_s))
    store.add_trace(message(0))
    for number, name in enumerate("aabbccdd"):
        assert store.add_trace(message(number, profile=name, recorded_s=1e9))
    return store


def test_new_profiles_displace_none_of_the_first_four(tmp_path):
    store = full_store(tmp_path)
    before = store.list_traces(IMAGE_ID)
    for number in range(10):
        assert store.add_trace(message(number, f"h{number}", profile="e")) == 0
    assert store.list_traces(IMAGE_ID) == before
    store.add_trace(message(9, profile="d"))
    assert profiles(store) == ["", "a", "b", "c", "d"]


def test_profile_with_a_single_trace_gives_way(tmp_path):
    store = trace_store.TraceStore(tmp_path)
    for number, name in enumerate("aabccdd"):
        store.add_trace(message(number, profile=name, recorded_s=time.time()))
    assert store.add_trace(message(9, profile="e", recorded_s=time.time()))
    assert profiles(store) == ["a", "c", "d", "e"]


def test_profile_without_a_boot_for_a_week_gives_way(tmp_path):
    week_s = trace_store.UNUSED_S
    full_store(tmp_path)
    store = full_store(tmp_path, now_s=1e9 + week_s - 1)
    assert not store.add_trace(message(9, profile="e", recorded_s=1e9 + week_s - 1))
    store = full_store(tmp_path, now_s=1e9 + week_s + 1)
    store.add_trace(message(8, profile="a", recorded_s=1e9 + week_s))
    assert store.add_trace(message(9, profile="e", recorded_s=1e9 + week_s + 1))
    assert profiles(store) == ["", "a", "c", "d", "e"]
