# SPDX-License-Identifier: Apache-2.0
"""The parts of a flatten: its slot, its watchdog, the request's body, the base's file."""

import io
import socket

import pytest

from acstor_common.disks import disk_delta
from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_glance.gateway import http_errors
from acstor_glance.gateway.flatten import backing_file
from acstor_glance.gateway.flatten import delta_body
from acstor_glance.gateway.flatten import job_slots
from acstor_glance.gateway.flatten import watchdog
from tests.fakes import manual_clock

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
DISK = 1 << 20


# Slots


def test_slots_are_limited_in_total_and_for_each_project():
    made = job_slots.JobSlots(3, 2)
    with made.acquire_slot("a"), made.acquire_slot("a"):
        with pytest.raises(
            http_errors.HttpError, match="2 flatten jobs of this project are in progress"
        ):
            made.acquire_slot("a").__enter__()
        with (
            made.acquire_slot("b"),
            pytest.raises(http_errors.HttpError, match="3 flatten jobs are") as caught,
        ):
            made.acquire_slot("c").__enter__()
        assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "30"})
    with made.acquire_slot("a"), made.acquire_slot("b"), made.acquire_slot("c"):
        pass


def test_failed_job_releases_its_slot_and_zero_slots_refuse_all():
    made = job_slots.JobSlots(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), made.acquire_slot("a"):
            raise ZeroDivisionError
    with pytest.raises(http_errors.HttpError, match="0 flatten jobs are in progress, of 0"):
        job_slots.JobSlots(0, 1).acquire_slot("a").__enter__()


# The watchdog


def test_watchdog_reports_a_stall_and_aborts_later_progress():
    now_s = [100.0]
    made = watchdog.Watchdog(10.0, manual_clock.FunctionClock(lambda: now_s[0]))
    now_s[0] = 109.0
    assert (made.is_stalled, made.left_s) == (False, 1.0)
    made.note_progress()
    now_s[0] = 120.0
    assert (made.is_stalled, made.left_s) == (True, 0.0)
    made.stop_work(http_errors.FlattenAborted(408, "first", "client"))
    made.stop_work(http_errors.FlattenAborted(409, "second", "client"))
    with pytest.raises(http_errors.FlattenAborted, match="first"):
        made.note_progress()


def test_watchdog_aborts_a_job_over_its_time_limit():
    now_s = [100.0]
    made = watchdog.Watchdog(10.0, manual_clock.FunctionClock(lambda: now_s[0]))
    made.set_deadline(25.0)
    for at_s in (110.0, 118.0, 125.0):
        now_s[0] = at_s
        made.note_progress()
    now_s[0] = 126.0
    with pytest.raises(http_errors.FlattenAborted, match="did not finish in 25 s"):
        made.note_progress()


# The body


def body_of(raw, length_bytes=None):
    stream = io.BytesIO(raw)
    length_bytes = len(raw) if length_bytes is None else length_bytes
    return delta_body.DeltaBody(stream, length_bytes, IMAGE, watchdog.Watchdog(5.0))


def stream_of(*found, data=b""):
    table = disk_delta.ExtentTable.from_runs(found, DISK)
    writer = disk_delta.Writer(DISK, IMAGE, chunk_map.UNKNOWN_OS_HASH, table)
    writer.hash_data(data)
    return writer.front + data + writer.make_trailer()


DATA = bytes(range(256)) * 4
WHOLE = stream_of(disk_delta.Extent(512, 1024, disk_delta.ExtentKind.DATA), data=DATA)


def test_body_returns_the_delta_and_is_verified_with_its_last_bytes():
    body = body_of(WHOLE)
    head, table = body.read_header()
    assert (head.virtual_size, head.base, len(table)) == (DISK, IMAGE, 1)
    assert (b"".join(body.read(512)), body.verified.is_set()) == (DATA[:512], False)
    assert (b"".join(body.read(512)), body.verified.is_set()) == (DATA[512:], True)
    assert body.read_bytes == len(WHOLE)


def test_body_without_data_is_verified_after_its_table():
    body = body_of(stream_of(disk_delta.Extent(512, 1024, disk_delta.ExtentKind.ZERO)))
    body.read_header()
    assert body.verified.is_set()


class Dripping(io.BytesIO):
    """A client whose every read takes so long, and the clock that advances with it."""

    def __init__(self, raw, each_s):
        super().__init__(raw)
        self.now_s, self._each_s = 0.0, each_s

    def read(self, length):
        self.now_s += self._each_s
        return super().read(length)

    def monotonic(self):
        return self.now_s


@pytest.mark.parametrize(("each_s", "is_taken"), [(0.7, True), (2.0, False)])
def test_trickling_client_is_refused_despite_its_progress(each_s, is_taken):
    stream = Dripping(WHOLE, each_s)
    body = delta_body.DeltaBody(stream, len(WHOLE), IMAGE, watchdog.Watchdog(3.0), stream)
    got = []
    if is_taken:
        read_all(body, got)
        assert b"".join(got) == DATA
        return
    expected = r"bytes of the delta arrived in 4 s"
    with pytest.raises(http_errors.FlattenAborted, match=expected) as caught:
        read_all(body, got)
    assert caught.value.status == 408 and not body.verified.is_set()


def test_oversized_disk_is_refused_by_its_header():
    size = image_record.SERVED_VIRTUAL_BYTES + 512
    table = disk_delta.ExtentTable.from_runs(
        [disk_delta.Extent(0, 512, disk_delta.ExtentKind.ZERO)], size
    )
    writer = disk_delta.Writer(size, IMAGE, chunk_map.UNKNOWN_OS_HASH, table)
    with pytest.raises(http_errors.FlattenAborted, match="are allowed"):
        body_of(writer.front + writer.make_trailer()).read_header()


@pytest.mark.parametrize("length", range(0, len(WHOLE), 97))
def test_truncated_body_does_not_return_its_last_bytes(length):
    body = body_of(WHOLE[:length], len(WHOLE))
    got = []
    with pytest.raises(http_errors.FlattenAborted, match="the body ended after") as caught:
        read_all(body, got)
    assert (caught.value.status, caught.value.party) == (400, "client")
    assert (b"".join(got) != DATA, body.verified.is_set()) == (True, False)


def read_all(body, got):
    body.read_header()
    got.extend(body.read(len(DATA)))


@pytest.mark.parametrize("at", [0, 9, 17, 60, disk_delta.HEADER_BYTES + 3, len(WHOLE) - 200, -1])
def test_altered_body_does_not_return_its_last_bytes(at):
    raw = bytearray(WHOLE)
    raw[at] ^= 1
    got = []
    with pytest.raises(http_errors.FlattenAborted) as caught:
        read_all(body_of(bytes(raw)), got)
    assert (caught.value.status, b"".join(got) != DATA) == (400, True)


@pytest.mark.parametrize("more", [-1, 1, 4096])
def test_content_length_that_differs_from_the_header_is_refused(more):
    body = body_of(WHOLE, len(WHOLE) + more)
    with pytest.raises(http_errors.FlattenAborted, match="does not match its header"):
        body.read_header()
    assert body.read_bytes == disk_delta.HEADER_BYTES


class Link:
    """A stream whose reads wait for a socket, as that of a WSGI server."""

    def __init__(self, link):
        self._link = link
        self.fileno = link.fileno

    def read(self, length):
        data = self._link.recv(length)
        if not data:
            raise OSError("error during read")
        return data


def test_read_that_waits_for_the_client_can_be_aborted():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watched = watchdog.Watchdog(5.0)
        body = delta_body.DeltaBody(Link(ours), len(WHOLE), IMAGE, watched)
        theirs.sendall(WHOLE[:100])
        watched.stop_work(http_errors.FlattenAborted(408, "too slow", "client"))
        body.abort_read()
        with pytest.raises(http_errors.FlattenAborted, match="too slow"):
            body.read_header()
    body_of(WHOLE).abort_read()  # a stream without a socket


# The base's file


class Store:
    """Returns bytes, after the given faults."""

    def __init__(self, data, *faults):
        self.data, self.faults, self.asked = data, list(faults), []

    def read(self, asked):
        self.asked.append(asked)
        if self.faults:
            raise self.faults.pop(0)
        return self.data[asked.offset : asked.offset + asked.length]


def file_of(store, stall_s=30.0, **limits):
    watched = watchdog.Watchdog(stall_s)
    return backing_file.BackingFile("base", len(store.data), store.read, watched, **limits)


def test_tables_are_read_in_cached_pages_and_parts_are_not_cached():
    store = Store(bytes(range(256)) * 1000)
    file, view = file_of(store, pages=2), bytearray(100)
    for at in (0, 65_500, 65_500, 255_900):
        file.read_into(memoryview(view), at)
        assert view == store.data[at : at + 100]
    assert [asked.offset // backing_file.PAGE_BYTES for asked in store.asked] == [0, 1, 3]
    assert file.read_part(10, 20) == store.data[10:30]
    assert file.read_bytes == 65_536 * 2 + 256_000 % 65_536 + 20


def test_busy_store_is_retried_and_a_refusal_is_not():
    passing = [http_errors.HttpError(status, "later") for status in (502, 503, 504)]
    store = Store(b"x" * 100, *passing)
    assert file_of(store, pause_s=0.01).read_part(0, 10) == b"x" * 10
    assert len(store.asked) == 4
    gone = Store(b"x" * 100, http_errors.HttpError(409, "no such object"))
    with pytest.raises(http_errors.FlattenAborted, match="the base: no such object") as caught:
        file_of(gone).read_part(0, 10)
    assert (caught.value.status, caught.value.party) == (409, "base")


def test_store_that_stays_busy_aborts_the_flatten_in_time():
    store = Store(b"x", *[http_errors.HttpError(503, "full")] * 1000)
    with pytest.raises(http_errors.FlattenAborted, match="full") as caught:
        file_of(store, stall_s=0.1, pause_s=0.01).read_part(0, 1)
    assert caught.value.status == 503
