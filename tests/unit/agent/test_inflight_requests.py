# SPDX-License-Identifier: Apache-2.0
"""The table of in-flight requests, as the next relay finds it after a crash at any point."""

import errno
import fcntl
import os
import struct

import pytest

from acstor_agent.mount import mount_record
from acstor_agent.process import inflight_requests

READ, WRITE, FORGET, NOTIFY_REPLY = 15, 16, 2, 41
PAGE = inflight_requests.PAGE


@pytest.fixture
def record():
    made = mount_record.MountRecord.begin_record(b"offer")
    yield made
    made.close()


def request(unique, length=40, opcode=WRITE):
    body = os.urandom(length - 16)
    return struct.pack("<IiQ", length, opcode, unique) + body


def answer(unique, length=16):
    return struct.pack("<IiQ", length, 0, unique) + bytes(length - 16)


def land(table, message, length=None):
    """Copy a request into the buffer as the kernel does, perhaps only in part."""
    table.buffer[: length or len(message)] = message[: length or len(message)]


def take(table, message):
    land(table, message)
    assert table.save_request(len(message)) == message


@pytest.mark.parametrize("length", [40, PAGE, PAGE + 1, 80 + 512, 80 + 131072])
def test_request_is_kept_from_its_arrival_until_it_is_answered(record, length):
    first = inflight_requests.InflightRequests(record)
    other = first.buffer[PAGE] ^ 1  # not the first byte of a page's mark
    message = request(2, length)[:-1] + bytes([other])
    land(first, message)
    assert inflight_requests.InflightRequests(record).requests == {2: message}
    third = inflight_requests.InflightRequests(record)
    assert (third.requests, third.unsent_replies) == ({2: message}, [])
    third.forget_request(2)
    assert inflight_requests.InflightRequests(record).requests == {}


def test_request_in_both_buffer_and_slot_is_recovered_once(record):
    first = inflight_requests.InflightRequests(record)
    message = request(2, 80 + 8192)
    take(first, message)
    land(first, message)  # as if it died before it cleared the buffer
    second = inflight_requests.InflightRequests(record)
    assert second.requests == {2: message}
    second.forget_request(2)
    third = inflight_requests.InflightRequests(record)
    assert (third.requests, third.unsent_replies) == ({}, [])


def test_saved_reply_to_a_write_is_resent_and_the_write_not_repeated(record):
    first = inflight_requests.InflightRequests(record)
    take(first, request(2, 80 + 8192))
    first.save_reply(2, memoryview(answer(2, 24)))
    second = inflight_requests.InflightRequests(record)
    assert (second.requests, second.unsent_replies) == ({}, [answer(2, 24)])
    second.forget_request(2)
    third = inflight_requests.InflightRequests(record)
    assert (third.requests, third.unsent_replies) == ({}, [])


def test_read_with_a_saved_reply_is_repeated(record):
    first = inflight_requests.InflightRequests(record)
    message = request(2, opcode=READ)
    take(first, message)
    first.save_reply(2, memoryview(answer(2, 4096)))
    second = inflight_requests.InflightRequests(record)
    assert (second.requests, second.unsent_replies) == ({2: message}, [])


@pytest.mark.expect_log("request 4 arrived incomplete")
@pytest.mark.parametrize("copied", [PAGE, 2 * PAGE])
def test_partly_copied_request_is_answered_with_eio(record, copied):
    first = inflight_requests.InflightRequests(record)
    take(first, request(2, 80 + 2 * PAGE))  # old bytes must not complete a later request
    first.forget_request(2)
    land(first, request(4, 80 + 2 * PAGE), copied)
    second = inflight_requests.InflightRequests(record)
    assert (second.requests, second.unsent_replies) == (
        {},
        [struct.pack("<IiQ", 16, -errno.EIO, 4)],
    )
    third = inflight_requests.InflightRequests(record)
    assert (third.requests, third.unsent_replies) == ({}, [])


@pytest.mark.parametrize("opcode", [FORGET, NOTIFY_REPLY])
def test_request_without_a_reply_is_not_kept(record, opcode):
    first = inflight_requests.InflightRequests(record)
    take(first, request(2, opcode=opcode))
    land(first, request(4, opcode=opcode))
    second = inflight_requests.InflightRequests(record)
    assert (second.requests, second.unsent_replies) == ({}, [])


def test_memory_of_answered_writes_is_freed_except_resident_slots(record):
    table = inflight_requests.InflightRequests(record)
    before = os.fstat(record.fd).st_blocks
    uniques = range(2, 2 + 3 * inflight_requests.RESIDENT_SLOTS)
    write_blocks = 131072 // 512
    for unique in uniques:
        take(table, request(unique, 80 + 131072))
    assert (
        os.fstat(record.fd).st_blocks > before + 3 * inflight_requests.RESIDENT_SLOTS * write_blocks
    )
    for unique in uniques:
        table.forget_request(unique)
    assert (
        os.fstat(record.fd).st_blocks
        < before + 1.1 * inflight_requests.RESIDENT_SLOTS * write_blocks
    )


def test_slots_are_reused_and_their_number_is_limited(record):
    table = inflight_requests.InflightRequests(record, max_requests=3)
    for unique in range(2, 40, 2):
        assert not table.is_full
        take(table, request(unique))
        take(table, request(unique + 1000))
        table.forget_request(unique)
        table.forget_request(unique + 1000)
    for unique in (2, 4, 6):
        take(table, request(unique))
    assert table.is_full
    assert sorted(inflight_requests.InflightRequests(record).requests) == [2, 4, 6]


def test_mount_record_can_be_extended_beside_saved_requests(record):
    take(inflight_requests.InflightRequests(record), request(2))
    record.record_init_answer(b"yes")
    again = mount_record.MountRecord(os.dup(record.fd))
    assert (again.mounted.init_request, again.init_answer()) == (b"offer", b"yes")
    assert list(inflight_requests.InflightRequests(again).requests) == [2]


def test_table_of_another_layout_is_refused_and_unchanged(record, monkeypatch):
    take(inflight_requests.InflightRequests(record), request(2))
    with monkeypatch.context() as other:
        other.setattr(inflight_requests, "_LAYOUT", 2)
        with pytest.raises(ValueError, match=r"another version keeps requests here \(layout 1\)"):
            inflight_requests.InflightRequests(record)
    assert list(inflight_requests.InflightRequests(record).requests) == [2]


def test_table_locked_by_another_relay_is_refused(record):
    reading, writing = os.pipe()
    leave, stay = os.pipe()
    if not (pid := os.fork()):
        os.close(stay)
        fcntl.lockf(record.fd, fcntl.LOCK_EX)
        os.write(writing, b"l")
        os.read(leave, 1)
        os._exit(0)
    os.read(reading, 1)
    try:
        with pytest.raises(TimeoutError, match="another relay"):
            inflight_requests.InflightRequests(record, lock_timeout_s=0.2)
    finally:
        for fd in (stay, leave, reading, writing):
            os.close(fd)
        os.waitpid(pid, 0)
