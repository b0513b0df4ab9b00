# SPDX-License-Identifier: Apache-2.0
"""State machine of one chunk of a mirror (Nicolae 2016, 3.2).

A chunk starts REMOTE and follows TRANSITIONS. Every event that the network or the cache can cause
is legal in every state: bytes may arrive late or twice. An illegal event is a bug of the caller:
reading or completing bytes that are not local, or requesting bytes that are. (The paper's Algorithm
1 marks a chunk READ before its bytes arrive, so a second reader would see a hole.)
"""

import enum
import mmap
from collections.abc import Iterator

from acstor_common import errors


class ChunkState(enum.Enum):
    """Where the bytes of a chunk are, and how they were used."""

    REMOTE = enum.auto()  # not local, as far as this mirror knows
    PREFETCH = enum.auto()  # requested ahead of need, not stored yet
    LOCAL = enum.auto()  # prefetched, not read by a guest yet
    READ = enum.auto()  # stored, and read by a guest
    WRITTEN = enum.auto()  # changed by a guest; never leaves this host


class ChunkEvent(enum.Enum):
    """Events of a chunk; "stored" means that its bytes are readable locally."""

    PREFETCH_SENT = enum.auto()  # a prefetch request is sent
    PREFETCH_ARRIVED = enum.auto()  # its response was stored
    PREFETCH_FAILED = enum.auto()  # it failed or was given up
    DEMAND_ARRIVED = enum.auto()  # bytes that a guest waits for were stored or found in the cache
    GUEST_READ = enum.auto()  # a guest read local bytes
    PART_WRITTEN = enum.auto()  # a guest changed a part of local bytes
    WHOLE_WRITTEN = enum.auto()  # a guest wrote all its bytes
    EVICTED = enum.auto()  # the public cache, which never holds written bytes, evicted it


_S = ChunkState
_E = ChunkEvent

TRANSITIONS: dict[ChunkState, dict[ChunkEvent, ChunkState]] = {
    _S.REMOTE: {
        _E.PREFETCH_SENT: _S.PREFETCH,
        _E.PREFETCH_ARRIVED: _S.REMOTE,  # late: it was given up
        _E.PREFETCH_FAILED: _S.REMOTE,
        _E.DEMAND_ARRIVED: _S.READ,
        _E.WHOLE_WRITTEN: _S.WRITTEN,
        _E.EVICTED: _S.REMOTE,
    },
    _S.PREFETCH: {
        _E.PREFETCH_ARRIVED: _S.LOCAL,
        _E.PREFETCH_FAILED: _S.REMOTE,
        _E.DEMAND_ARRIVED: _S.READ,  # another origin was faster
        _E.WHOLE_WRITTEN: _S.WRITTEN,
        _E.EVICTED: _S.PREFETCH,  # another image's copy; the prefetch goes on
    },
    _S.LOCAL: {
        _E.PREFETCH_ARRIVED: _S.LOCAL,
        _E.PREFETCH_FAILED: _S.LOCAL,
        _E.DEMAND_ARRIVED: _S.READ,
        _E.GUEST_READ: _S.READ,
        _E.PART_WRITTEN: _S.WRITTEN,
        _E.WHOLE_WRITTEN: _S.WRITTEN,
        _E.EVICTED: _S.REMOTE,
    },
    _S.READ: {
        _E.PREFETCH_ARRIVED: _S.READ,
        _E.PREFETCH_FAILED: _S.READ,
        _E.DEMAND_ARRIVED: _S.READ,
        _E.GUEST_READ: _S.READ,
        _E.PART_WRITTEN: _S.WRITTEN,
        _E.WHOLE_WRITTEN: _S.WRITTEN,
        _E.EVICTED: _S.REMOTE,
    },
    _S.WRITTEN: {
        _E.PREFETCH_ARRIVED: _S.WRITTEN,  # late: its bytes are dropped
        _E.PREFETCH_FAILED: _S.WRITTEN,
        _E.DEMAND_ARRIVED: _S.WRITTEN,
        _E.GUEST_READ: _S.WRITTEN,
        _E.PART_WRITTEN: _S.WRITTEN,
        _E.WHOLE_WRITTEN: _S.WRITTEN,
        _E.EVICTED: _S.WRITTEN,
    },
}


# One byte a chunk: the state's number, or _FORGIVEN for a LOCAL chunk no longer counted.
_STATES = tuple(ChunkState)
_REMOTE, _PREFETCH, _LOCAL, _READ, _WRITTEN = range(len(_STATES))
_FORGIVEN = len(_STATES)
_STATE_OF_CODE = (*_STATES, ChunkState.LOCAL)
_LOCAL_BYTE = bytes([_LOCAL])
_MAPPED_CHUNKS = 1 << 20
"""Clearing the codes of so many chunks takes 0.3 ms; a mapping costs memory only where written."""


def _code_after(code: int, event: ChunkEvent) -> int | None:
    state = _STATE_OF_CODE[code]
    after = TRANSITIONS[state].get(event)
    if after is None:
        return None
    return code if after is state else _STATES.index(after)


_CODE_AFTER = {
    event: tuple(_code_after(code, event) for code in range(len(_STATE_OF_CODE)))
    for event in ChunkEvent
}


def _remote(count: int) -> bytearray | mmap.mmap:
    if count < _MAPPED_CHUNKS:
        return bytearray(count)
    return mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ChunkStates:
    """The states of all chunks of an image, one byte each, and counts of them.

    >>> states = ChunkStates(3)
    >>> states.apply_event(1, ChunkEvent.PREFETCH_SENT), states.in_flight
    (<ChunkState.PREFETCH: 2>, 1)
    >>> states.apply_event(1, ChunkEvent.PREFETCH_ARRIVED), states.unmatched
    (<ChunkState.LOCAL: 3>, 1)
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._codes = _remote(count)
        self._counts = [0] * len(_STATE_OF_CODE)
        self._counts[_REMOTE] = count
        self.matched = 0
        """Prefetched chunks that a guest needed, before or after they arrived; never decreases."""
        self.evicted_unread = 0
        """Prefetched chunks evicted before a guest read them; never decreases."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ChunkState]:
        return map(self.state_of, range(self._count))

    @property
    def unmatched(self) -> int:
        """Number of LOCAL chunks that count (the paper's *unmatched*)."""
        return self._counts[_LOCAL]

    @property
    def in_flight(self) -> int:
        """Number of chunks in PREFETCH."""
        return self._counts[_PREFETCH]

    def state_of(self, chunk_no: int) -> ChunkState:
        """Return the state of a chunk."""
        return _STATE_OF_CODE[self._codes[chunk_no]]

    def can_happen(self, chunk_no: int, event: ChunkEvent) -> bool:
        """Return whether ``event`` is legal in the chunk's state."""
        return _CODE_AFTER[event][self._codes[chunk_no]] is not None

    def apply_event(self, chunk_no: int, event: ChunkEvent) -> ChunkState:
        """Apply ``event`` to a chunk, or raise IllegalTransition; return its new state."""
        before = self._codes[chunk_no]
        after = _CODE_AFTER[event][before]
        if after is None:
            raise errors.IllegalTransition(_STATE_OF_CODE[before].name, event.name)
        if after != before:
            self._codes[chunk_no] = after
            self._counts[before] -= 1
            self._counts[after] += 1
            self._count_prefetch(before, after, event)
        return _STATE_OF_CODE[after]

    def accept_unmatched(self) -> None:
        """Stop counting the present LOCAL chunks as unmatched; they stay LOCAL."""
        at = -1
        for _ in range(self._counts[_LOCAL]):
            at = self._codes.find(_LOCAL_BYTE, at + 1)
            self._codes[at] = _FORGIVEN
        self._counts[_FORGIVEN] += self._counts[_LOCAL]
        self._counts[_LOCAL] = 0

    def _count_prefetch(self, before: int, after: int, event: ChunkEvent) -> None:
        if before not in (_PREFETCH, _LOCAL, _FORGIVEN):
            return
        if after == _READ or event is ChunkEvent.PART_WRITTEN:
            self.matched += 1
        elif after == _REMOTE and event is ChunkEvent.EVICTED:
            self.evicted_unread += 1
