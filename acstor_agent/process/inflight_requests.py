# SPDX-License-Identifier: Apache-2.0
"""Requests that a relay keeps until their answer, safe against SIGKILL.

They are in the mount record's file after the facts: a landing area, into which the kernel copies
the next request, then a slot for each outstanding request.

==================  ===========================================================================
The relay dies      The next relay
==================  ===========================================================================
while a request     finds the landing area not empty. Marks in each page, overwritten only by the
lands               kernel's copy, show whether the request is complete. An incomplete one was
                    refused by the kernel (EIO) and is answered so.
before its answer   finds the request, and sends it to a worker.
while it answers    finds the answer, recorded before, and repeats it; the kernel ignores
                    duplicates. Only reads have longer answers, which are not recorded: they are
                    repeated.
==================  ===========================================================================

An answered request is never sent again, because a repeated write could undo later ones.
"""

import errno
import fcntl
import logging
import mmap
import os
import struct
import time

from acstor_agent.mount import fuse_connection
from acstor_agent.mount import mount_record

LOG = logging.getLogger(__name__)

PAGE = 4096
BUFFER_BYTES = fuse_connection.RELAYED_BYTES + PAGE
"""Space for any message; the kernel rejects reads with a shorter buffer."""
MAX_REPLY_BYTES = 184  # space for any answer except those of reads and directory lists
RESIDENT_SLOTS = 64
"""Slots that keep their memory (9 MB in all): freeing it costs as much as a write."""
LOCK_TIMEOUT_S = 10.0
UNANSWERED_OPCODES = frozenset({2, 36, 41, 42})  # FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET
HEADER = struct.Struct("<IiQ")  # of a request: length, opcode, unique; of an answer: length, error
_REQUEST_HEADER_BYTES = 40
_LOOK_S = 0.05
_COUNT = struct.Struct("<I")
_LAYOUT_AT = 4
_LAYOUT = 1
_MARK_BYTES = 8
_MARK_AT = 8
_BUFFER_AT = PAGE
_SLOTS_AT = _BUFFER_AT + BUFFER_BYTES
_REQUEST_AT = 8 + MAX_REPLY_BYTES
_SLOT_BYTES = -(-(_REQUEST_AT + BUFFER_BYTES) // PAGE) * PAGE
_BYTES = _SLOTS_AT + fuse_connection.MAX_REQUESTS * _SLOT_BYTES  # sparse


class InflightRequests:
    """The table, for one relay at a time.

    :raises TimeoutError: another relay has it and does not exit
    :raises ValueError: it is of another version
    """

    def __init__(
        self,
        record: mount_record.MountRecord,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        max_requests: int = fuse_connection.MAX_REQUESTS,
    ) -> None:
        _lock(record.fd, lock_timeout_s)
        self._max_requests = max_requests
        at = mount_record.ENTRIES_BYTES
        os.ftruncate(record.fd, max(os.fstat(record.fd).st_size, at + _BYTES))
        # Never closed, because that would release the lock.
        self._map = mmap.mmap(record.fd, _BYTES, offset=at)
        self.buffer = memoryview(self._map)[_BUFFER_AT:_SLOTS_AT]
        """Buffer for the kernel's next request."""
        self.requests: dict[int, bytes] = {}  # unanswered requests, by their unique number
        self.unsent_replies: list[bytes] = []  # answers that a former relay may not have sent
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        (self._used,) = _COUNT.unpack_from(self._map, 0)
        (layout,) = _COUNT.unpack_from(self._map, _LAYOUT_AT)
        if layout not in (0, _LAYOUT):
            raise ValueError(f"another version keeps requests here (layout {layout}): return to it")
        _COUNT.pack_into(self._map, _LAYOUT_AT, _LAYOUT)
        for slot in range(self._used):
            self._find(slot)
        self._find_landed()

    @property
    def is_full(self) -> bool:
        """Whether no further request can be taken."""
        return len(self._slots) >= self._max_requests

    def save_request(self, length: int) -> bytes:
        """Save the request of this length from the buffer, and clear the buffer."""
        request = bytes(self.buffer[:length])
        _, opcode, unique = HEADER.unpack_from(request)
        if opcode not in UNANSWERED_OPCODES:
            self._keep(unique, request)
        self._clear_buffer(length)
        return request

    def save_reply(self, unique: int, answer: memoryview) -> None:
        """Record an answer before it is sent."""
        slot = self._slots.get(unique)
        if slot is not None and len(answer) <= MAX_REPLY_BYTES:
            at = _at(slot)
            self._map[at + 8 : at + 8 + len(answer)] = answer
            _COUNT.pack_into(self._map, at, len(answer))

    def forget_request(self, unique: int) -> None:
        """Remove an answered request."""
        request = self.requests.pop(unique, b"")
        slot = self._slots.pop(unique, None)
        if slot is not None:
            self._clear(slot, len(request))

    def _keep(self, unique: int, request: bytes) -> None:
        slot = self._free.pop() if self._free else self._used
        if slot == self._used:
            self._used += 1
            _COUNT.pack_into(self._map, 0, self._used)
        at = _at(slot)
        _COUNT.pack_into(self._map, at, 0)
        begin, end = at + _REQUEST_AT, at + _REQUEST_AT + len(request)
        self._map[begin + 4 : end] = request[4:]
        self._map[begin : begin + 4] = request[:4]  # its length last: now it is valid
        self._slots[unique] = slot
        self.requests[unique] = request

    def _clear(self, slot: int, length: int) -> None:
        at = _at(slot)
        _COUNT.pack_into(self._map, at + _REQUEST_AT, 0)
        if length > PAGE and slot >= RESIDENT_SLOTS:
            self._map.madvise(mmap.MADV_REMOVE, at, _SLOT_BYTES)
        self._free.append(slot)

    def _find(self, slot: int) -> None:
        at = _at(slot)
        (length,) = _COUNT.unpack_from(self._map, at + _REQUEST_AT)
        (answer_length,) = _COUNT.unpack_from(self._map, at)
        if not length:
            self._free.append(slot)
            return
        begin = at + _REQUEST_AT
        request = self._map[begin : begin + length]
        _, _, unique = HEADER.unpack_from(request)
        self._slots[unique] = slot
        if answer_length:
            self.unsent_replies.append(self._map[at + 8 : at + 8 + answer_length])
        else:
            self.requests[unique] = request

    def _find_landed(self) -> None:
        self._mark = self._map[_MARK_AT : _MARK_AT + _MARK_BYTES]
        if not any(self._mark):
            self._mark = os.urandom(_MARK_BYTES)
        elif self.buffer[:_MARK_BYTES] != self._mark:
            length, opcode, unique = HEADER.unpack_from(self.buffer)
            if opcode in UNANSWERED_OPCODES or unique in self._slots:
                pass
            elif self._is_whole(length):
                self._keep(unique, bytes(self.buffer[:length]))
            else:
                LOG.error("request %d arrived incomplete; it fails with an error", unique)
                self.unsent_replies.append(HEADER.pack(HEADER.size, -errno.EIO, unique))
        self._clear_buffer(BUFFER_BYTES)
        self._map[_MARK_AT : _MARK_AT + _MARK_BYTES] = self._mark

    def _is_whole(self, length: int) -> bool:
        if not _REQUEST_HEADER_BYTES <= length <= BUFFER_BYTES:
            return False
        ends = [(at, min(at + _MARK_BYTES, length)) for at in range(0, length, PAGE)]
        return all(self.buffer[at:end] != self._mark[: end - at] for at, end in ends)

    def _clear_buffer(self, length: int) -> None:
        """Write the marks; the first page last, because its mark means "empty"."""
        for at in reversed(range(0, length, PAGE)):
            self.buffer[at : at + _MARK_BYTES] = self._mark


def _at(slot: int) -> int:
    return _SLOTS_AT + slot * _SLOT_BYTES


def _lock(fd: int, timeout_s: float) -> None:
    ends_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() > ends_s:
                raise TimeoutError("another relay serves this mount and does not exit") from e
            time.sleep(_LOOK_S)
        else:
            return
