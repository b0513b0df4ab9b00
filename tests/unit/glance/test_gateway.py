# SPDX-License-Identifier: Apache-2.0
"""The gateway's own decisions: ranges, admission of reads, caches."""

import contextlib
import threading
import time
from concurrent import futures

import pytest

from acstor_glance.gateway import byte_range
from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import read_admission
from acstor_glance.gateway import ttl_cache
from tests.fakes import manual_clock

SIZE, LONGEST = 4096, 100


@pytest.mark.parametrize(
    ("header", "offset", "length"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=4090-9999", 4090, 6),
        ("bytes=4000-", 4000, 96),
        ("bytes=-10", 4086, 10),
        (" bytes=1-2 ", 1, 2),
        ("Bytes=1-2", 1, 2),
        (f"bytes=4090-{'9' * 30}", 4090, 6),
    ],
)
def test_single_range_is_parsed(header, offset, length):
    assert byte_range.parse(header, SIZE, LONGEST) == (offset, length)


@pytest.mark.parametrize("header", ["", "0-5", "items=0-5", "bytes=0-1,3-4"])
def test_header_without_a_single_range_selects_the_whole_image(header):
    assert byte_range.is_ignored(header)
    assert byte_range.parse(header, LONGEST, LONGEST) == (0, LONGEST)


def test_suffix_longer_than_the_image_selects_all_of_it():
    assert byte_range.parse("bytes=-99", 10, LONGEST) == (0, 10)
    assert byte_range.ByteRange(512, 10).content_range(SIZE) == "bytes 512-521/4096"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        *((header, 400) for header in ("bytes=", "bytes=-", "bytes=5")),
        *((header, 400) for header in ("bytes=a-b", "bytes=1-2-3", "bytes=-1-2", "bytes=٣-٤")),
        (f"bytes=0-{'9' * 5000}", 400),
        *((header, 413) for header in ("", "0-5", "items=0-5", "bytes=0-1,3-4")),
        *((header, 416) for header in ("bytes=4096-", "bytes=9-5", "bytes=-0")),
        *((header, 413) for header in ("bytes=0-100", "bytes=0-", "bytes=-101")),
    ],
)
def test_invalid_range_is_refused(header, status):
    with pytest.raises(http_errors.HttpError) as caught:
        byte_range.parse(header, SIZE, LONGEST)
    assert caught.value.status == status


@pytest.fixture
def numbers():
    return gateway_metrics.GatewayMetrics()


@pytest.fixture
def open_door(numbers):
    """Return a function that makes the read limiter of a store, with metrics."""

    def make(reads, timeout_s, queue_s=read_admission.QUEUE_S):
        counted = gateway_metrics.StoreMetrics(numbers, "s", "s3", reads)
        return read_admission.ReadAdmission("s", reads, timeout_s, counted, queue_s=queue_s)

    return make


def shown(numbers, name, **labels):
    return numbers.registry.get_sample_value(
        f"acstor_gateway_{name}", {"store": "s", "driver": "s3", **labels}
    )


def test_limiter_returns_the_result_or_error_of_a_read(open_door, numbers):
    door = open_door(reads=1, timeout_s=5)
    for _ in range(3):
        assert door.run(lambda: b"bytes") == b"bytes"
        with pytest.raises(TimeoutError):  # its own, not that of the limiter
            door.run(raise_timeout)
    assert shown(numbers, "read_duration_seconds_count") == 6
    assert (shown(numbers, "reads_in_flight"), shown(numbers, "reads_limit")) == (0, 1)


def test_read_abandoned_at_its_deadline_counts_as_late(open_door, numbers):
    def give_up():
        time.sleep(0.05)
        raise_timeout()

    with pytest.raises(http_errors.HttpError, match="no answer within") as late:
        open_door(reads=1, timeout_s=0.05).run(give_up)
    assert late.value.status == 504
    assert shown(numbers, "store_errors_total", error="late") == 1


def raise_timeout():
    raise TimeoutError("of a socket")


def test_hung_store_occupies_only_its_own_read_slots(open_door, numbers):
    door, go_on = open_door(reads=2, timeout_s=0.05, queue_s=0.05), threading.Event()
    try:
        for _ in range(2):
            with pytest.raises(http_errors.HttpError, match="no answer within") as late:
                door.run(go_on.wait)
            assert late.value.status == 504
        for _ in range(3):
            with pytest.raises(
                http_errors.HttpError, match="2 reads are in progress, 2 late"
            ) as full:
                door.run(lambda: pytest.fail("it has no place"))
            assert (full.value.status, full.value.headers) == (503, {"Retry-After": "1"})
        faults = [shown(numbers, "store_errors_total", error=name) for name in ("late", "full")]
        assert (faults, shown(numbers, "reads_in_flight")) == ([2, 3], 2)
    finally:
        go_on.set()
    door = open_door(reads=2, timeout_s=5, queue_s=5)
    assert [door.run(lambda: 1) for _ in range(5)] == [1] * 5


def test_project_with_slow_reads_leaves_half_of_the_slots_to_others(open_door):
    door, go_on = open_door(reads=4, timeout_s=30), threading.Event()
    started = threading.Semaphore(0)

    def hang():
        started.release()
        return go_on.wait()

    with futures.ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(door.run, hang, "slow") for _ in range(2)]
        try:
            assert all(started.acquire(timeout=10) for _ in slow)
            began_s = time.monotonic()
            with pytest.raises(http_errors.HttpError, match="2 reads of this project") as full:
                door.run(lambda: pytest.fail("it has no place"), "slow")
            assert time.monotonic() - began_s < read_admission.QUEUE_S
            assert (full.value.status, full.value.headers) == (503, {"Retry-After": "1"})
            assert door.run(lambda: 1, "other") == door.run(lambda: 1) == 1
        finally:
            go_on.set()
        assert all(read.result() for read in slow)
    assert door.run(lambda: 1, "slow") == 1


def test_slot_of_a_late_read_is_freed_at_its_end(open_door):
    door, go_on = open_door(reads=1, timeout_s=0.2, queue_s=5), threading.Event()
    with pytest.raises(http_errors.HttpError):
        door.run(go_on.wait)
    go_on.set()
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        with contextlib.suppress(http_errors.HttpError):
            assert door.run(lambda: 1) == 1
            break
    else:
        pytest.fail("its place is never free")


def test_cache_entries_expire_and_are_limited():
    now = [0.0]
    known = ttl_cache.TtlCache(ttl_s=10, limit=2, clock=manual_clock.FunctionClock(lambda: now[0]))
    known.put("a", 1)
    known.put("b", 2)
    assert known.get("a") == 1  # used last
    known.put("c", 3)
    assert (known.get("a"), known.get("b"), known.get("c")) == (1, None, 3)
    known.invalidate("c")
    known.invalidate("never known")
    assert known.get("c") is None
    now[0] = 10.0
    assert known.get("a") is None
