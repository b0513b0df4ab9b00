# SPDX-License-Identifier: Apache-2.0
"""Requests that a relay has taken and the kernel has no answer to, where a SIGKILL loses none.

They lie in the file of the mount's record, which outlives every process: behind its facts first a
landing place, into which the kernel copies the next request, and then a place for each request that
is under way.

==================  ===========================================================================
A relay dies        What the next one finds and does
==================  ===========================================================================
while a request     The landing place is not empty.  Each of its pages began with a mark that
lands               only the kernel's copy wipes out, so it is known whether the request is
                    whole.  One that is not was refused by the kernel (EIO); it is answered so.
before its answer   The request: a worker gets it, as it was never answered.
while it answers    The answer, noted before: the kernel is told it again, and passes over what
                    it knows.  An answer that is too long for that is one to a read, which is
                    done again, and no harm is in that.
==================  ===========================================================================

The one rule: no request that was answered is ever given to a worker again, for a write would undo
what the guest has written since.
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
ROOM_BYTES = fuse_connection.RELAYED_BYTES + PAGE
"""Room for any message: a kernel gives none to who has too little for the longest."""
ANSWER_BYTES = 184
"""Room for any answer but those to reads and lists."""
HOT_PLACES = 64
"""Places that keep their memory, 9 MB in all; to give back that of a write takes as long as it."""
LOCK_WAIT_S = 10.0
"""How long a relay waits for the end of the one before it."""
WITHOUT_ANSWER = frozenset({2, 36, 41, 42})  # FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET
HEADER = struct.Struct("<IiQ")  # of a request: length, opcode, unique; of an answer: length, error
_REQUEST_HEADER_BYTES = 40
_LOOK_S = 0.05
_COUNT = struct.Struct("<I")
_LAYOUT_AT = 4
_LAYOUT = 1
"""Of the table; another number means that requests lie in it otherwise."""
_MARK_BYTES = 8
_MARK_AT = 8
_LANDING_AT = PAGE
_PLACES_AT = _LANDING_AT + ROOM_BYTES
_REQUEST_AT = 8 + ANSWER_BYTES
_PLACE_BYTES = -(-(_REQUEST_AT + ROOM_BYTES) // PAGE) * PAGE
_BYTES = _PLACES_AT + fuse_connection.MAX_REQUESTS * _PLACE_BYTES  # pages that nobody used are none


class InflightRequests:
    """The table, for one relay at a time.

    :param record: of the mount
    :raises TimeoutError: another relay has it and does not end
    :raises ValueError: another version has it, whose requests this one cannot read
    """

    def __init__(self, record: mount_record.MountRecord) -> None:
        _lock(record.fd)
        at = mount_record.FACTS_BYTES
        os.ftruncate(record.fd, max(os.fstat(record.fd).st_size, at + _BYTES))
        # It is never closed: that would let go of the lock.
        self._map = mmap.mmap(record.fd, _BYTES, offset=at)
        self.room = memoryview(self._map)[_LANDING_AT:_PLACES_AT]
        """Where the kernel's next request goes."""
        self.requests: dict[int, bytes] = {}
        """Those without an answer, by their number."""
        self.answers: list[bytes] = []
        """What a former relay may not have told the kernel."""
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        (self._used,) = _COUNT.unpack_from(self._map, 0)
        (layout,) = _COUNT.unpack_from(self._map, _LAYOUT_AT)
        if layout not in (0, _LAYOUT):
            raise ValueError(
                f"another version keeps requests here (layout {layout}): go back to it"
            )
        _COUNT.pack_into(self._map, _LAYOUT_AT, _LAYOUT)
        for place in range(self._used):
            self._find(place)
        self._find_landed()

    @property
    def is_full(self) -> bool:
        """No request can be taken now."""
        return len(self._places) >= fuse_connection.MAX_REQUESTS

    def save_request(self, length: int) -> bytes:
        """Keep the request of that many bytes that is in the room, and empty the room."""
        request = bytes(self.room[:length])
        _, opcode, unique = HEADER.unpack_from(request)
        if opcode not in WITHOUT_ANSWER:
            self._keep(unique, request)
        self._empty_room(length)
        return request

    def note_answer(self, unique: int, answer: memoryview) -> None:
        """Note what the kernel is about to be answered with."""
        place = self._places.get(unique)
        if place is not None and len(answer) <= ANSWER_BYTES:
            at = _at(place)
            self._map[at + 8 : at + 8 + len(answer)] = answer
            _COUNT.pack_into(self._map, at, len(answer))

    def forget_request(self, unique: int) -> None:
        """Forget a request that the kernel has an answer to."""
        request = self.requests.pop(unique, b"")
        place = self._places.pop(unique, None)
        if place is not None:
            self._clear(place, len(request))

    def _keep(self, unique: int, request: bytes) -> None:
        place = self._free.pop() if self._free else self._used
        if place == self._used:
            self._used += 1
            _COUNT.pack_into(self._map, 0, self._used)
        at = _at(place)
        _COUNT.pack_into(self._map, at, 0)
        begin, end = at + _REQUEST_AT, at + _REQUEST_AT + len(request)
        self._map[begin + 4 : end] = request[4:]
        self._map[begin : begin + 4] = request[:4]  # its length: now it is there
        self._places[unique] = place
        self.requests[unique] = request

    def _clear(self, place: int, length: int) -> None:
        at = _at(place)
        _COUNT.pack_into(self._map, at + _REQUEST_AT, 0)
        if length > PAGE and place >= HOT_PLACES:
            self._map.madvise(mmap.MADV_REMOVE, at, _PLACE_BYTES)
        self._free.append(place)

    def _find(self, place: int) -> None:
        """Find what a former relay has left in a place."""
        at = _at(place)
        (length,) = _COUNT.unpack_from(self._map, at + _REQUEST_AT)
        (answer_length,) = _COUNT.unpack_from(self._map, at)
        if not length:
            self._free.append(place)
            return
        begin = at + _REQUEST_AT
        request = self._map[begin : begin + length]
        _, _, unique = HEADER.unpack_from(request)
        self._places[unique] = place
        if answer_length:
            self.answers.append(self._map[at + 8 : at + 8 + answer_length])
        else:
            self.requests[unique] = request

    def _find_landed(self) -> None:
        """Find what the kernel gave to a former relay that could not keep it any more."""
        self._mark = self._map[_MARK_AT : _MARK_AT + _MARK_BYTES]
        if not any(self._mark):  # this relay is the first
            self._mark = os.urandom(_MARK_BYTES)
        elif self.room[:_MARK_BYTES] != self._mark:
            length, opcode, unique = HEADER.unpack_from(self.room)
            if opcode in WITHOUT_ANSWER or unique in self._places:
                pass
            elif self._is_whole(length):
                self._keep(unique, bytes(self.room[:length]))
            else:
                LOG.error("request %d arrived incomplete; it fails with an error", unique)
                self.answers.append(HEADER.pack(HEADER.size, -errno.EIO, unique))
        self._empty_room(ROOM_BYTES)
        self._map[_MARK_AT : _MARK_AT + _MARK_BYTES] = self._mark

    def _is_whole(self, length: int) -> bool:
        if not _REQUEST_HEADER_BYTES <= length <= ROOM_BYTES:
            return False
        ends = [(at, min(at + _MARK_BYTES, length)) for at in range(0, length, PAGE)]
        return all(self.room[at:end] != self._mark[: end - at] for at, end in ends)

    def _empty_room(self, length: int) -> None:
        """Put marks where a request was; that of the first page is last, for it says "empty"."""
        for at in reversed(range(0, length, PAGE)):
            self.room[at : at + _MARK_BYTES] = self._mark


def _at(place: int) -> int:
    return _PLACES_AT + place * _PLACE_BYTES


def _lock(fd: int) -> None:
    """Wait until no other relay has the table; the lock ends with the process."""
    ends_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() > ends_s:
                raise TimeoutError("another relay serves this mount and does not end") from e
            time.sleep(_LOOK_S)
        else:
            return
