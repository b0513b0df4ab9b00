# SPDX-License-Identifier: Apache-2.0
"""The life of one chunk of a mirror, written as a table (Nicolae 2016, 3.2).

A chunk starts REMOTE and moves only along the arrows of TRANSITIONS.  Every
rule about chunk states is in this file: no other file compares two states to
decide what happens next.  Nothing here waits, reads a clock or opens a file.

Whatever the network or the cache may do at any time is legal in every state:
bytes may come late, twice or after they were given up, and a chunk that was
cached before its image was attached may be evicted while it is REMOTE.  What
cannot happen is a bug of the caller: to read or to complete bytes that are not
here (the paper's Algorithm 1 marks a chunk READ before the repository's bytes
came: a second reader would see a hole), or to ask for what is here already.

EVICTED speaks of the copy in the public cache.  Written bytes never lie there,
so it leaves WRITTEN alone, and a chunk that was read and evicted is REMOTE again.
"""

import enum
import mmap
from collections.abc import Iterator

from acstor_common import errors


class ChunkState(enum.Enum):
    """Where the bytes of a chunk are, and what they were used for."""

    REMOTE = enum.auto()  # no bytes here that this mirror knows of
    PREFETCH = enum.auto()  # asked from a peer ahead of need, not stored yet
    LOCAL = enum.auto()  # stored by prefetch, no guest has read it
    READ = enum.auto()  # stored, and a guest needed it
    WRITTEN = enum.auto()  # a guest changed it; never leaves this host


class ChunkEvent(enum.Enum):
    """What may happen to a chunk; ``stored`` means that the bytes can be read here now."""

    PREFETCH_SENT = enum.auto()  # it is going to be asked for, and nobody waits for it
    PREFETCH_ARRIVED = enum.auto()  # an answer to that was stored
    PREFETCH_FAILED = enum.auto()  # there will be no answer, or it came too late
    DEMAND_ARRIVED = enum.auto()  # what a guest waits for was stored, or was found in the cache
    GUEST_READ = enum.auto()  # a guest was given bytes that were here
    PART_WRITTEN = enum.auto()  # a guest changed a part of bytes that were here
    WHOLE_WRITTEN = enum.auto()  # a guest gave all its bytes: none need be here
    EVICTED = enum.auto()  # the public cache let it go


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
        _E.DEMAND_ARRIVED: _S.READ,  # another place was faster
        _E.WHOLE_WRITTEN: _S.WRITTEN,
        _E.EVICTED: _S.PREFETCH,  # another image's copy; ours is still on its way
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


def next_state(state: ChunkState, event: ChunkEvent) -> ChunkState:
    """Return the state that follows ``state`` when ``event`` happens.

    >>> next_state(ChunkState.REMOTE, ChunkEvent.PREFETCH_SENT)
    <ChunkState.PREFETCH: 2>

    :raises errors.IllegalTransition: ``event`` cannot happen in ``state``; this is a bug in the
        caller, never a fault of a peer
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise errors.IllegalTransition(state.name, event.name) from None


# One byte a chunk: the state's number, or _FORGIVEN for a LOCAL chunk that counts no more.
_STATES = tuple(ChunkState)
_REMOTE, _PREFETCH, _LOCAL, _READ, _WRITTEN = range(len(_STATES))
_FORGIVEN = len(_STATES)
_STATE_OF_CODE = (*_STATES, ChunkState.LOCAL)
_LOCAL_BYTE = bytes([_LOCAL])
_MAPPED_CHUNKS = 1 << 20
"""Clearing the codes of so many takes 0.3 ms."""


def _code_after(code: int, event: ChunkEvent) -> int | None:
    """Return the code that follows; None where the event is illegal."""
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
    """Return codes of chunks that are all REMOTE; those of many take memory when they change."""
    if count < _MAPPED_CHUNKS:
        return bytearray(count)
    return mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ChunkStates:
    """The states of all chunks of one image: one byte a chunk, and counts derived from them.

    The counts change in :meth:`apply_event` and :meth:`accept_unmatched` only, so they can be no others than a
    count over all chunks would give.  One event takes about 0.3 us.

    >>> states = ChunkStates(3)
    >>> states.apply(1, ChunkEvent.PREFETCH_SENT), states.under_way
    (<ChunkState.PREFETCH: 2>, 1)
    >>> states.apply(1, ChunkEvent.PREFETCH_ARRIVED), states.unmatched
    (<ChunkState.LOCAL: 3>, 1)

    :param count: chunks of the image
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._codes = _remote(count)
        self._counts = [0] * len(_STATE_OF_CODE)
        self._counts[_REMOTE] = count
        self.matched = 0
        """Prefetches that were right: chunks that a guest needed while they were under way or here.

        It only grows."""
        self.evicted_unread = 0
        """Prefetched chunks that the cache let go before a guest read them.  It only grows."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ChunkState]:
        return map(self.state_of, range(self._count))

    @property
    def unmatched(self) -> int:
        """Chunks that are LOCAL and were not forgiven (the paper's *unmatched*)."""
        return self._counts[_LOCAL]

    @property
    def under_way(self) -> int:
        """Chunks that are in PREFETCH."""
        return self._counts[_PREFETCH]

    def state_of(self, chunk_no: int) -> ChunkState:
        """Return the state of a chunk."""
        return _STATE_OF_CODE[self._codes[chunk_no]]

    def can_happen(self, chunk_no: int, event: ChunkEvent) -> bool:
        """Say whether ``event`` is legal in the chunk's state."""
        return _CODE_AFTER[event][self._codes[chunk_no]] is not None

    def apply_event(self, chunk_no: int, event: ChunkEvent) -> ChunkState:
        """Let ``event`` happen to a chunk and return its new state.

        :raises errors.IllegalTransition: it cannot happen in the chunk's state
        """
        before = self._codes[chunk_no]
        after = _CODE_AFTER[event][before]
        if after is None:
            raise errors.IllegalTransition(_STATE_OF_CODE[before].name, event.name)
        if after != before:
            self._codes[chunk_no] = after
            self._counts[before] -= 1
            self._counts[after] += 1
            self._judge(before, after, event)
        return _STATE_OF_CODE[after]

    def accept_unmatched(self) -> None:
        """Stop counting the chunks that are LOCAL now as unmatched; they stay LOCAL."""
        at = -1
        for _ in range(self._counts[_LOCAL]):
            at = self._codes.find(_LOCAL_BYTE, at + 1)
            self._codes[at] = _FORGIVEN
        self._counts[_FORGIVEN] += self._counts[_LOCAL]
        self._counts[_LOCAL] = 0

    def _judge(self, before: int, after: int, event: ChunkEvent) -> None:
        """Note whether a prefetch turned out to be right or in vain."""
        if before not in (_PREFETCH, _LOCAL, _FORGIVEN):
            return
        if after == _READ or event is ChunkEvent.PART_WRITTEN:
            self.matched += 1
        elif after == _REMOTE and event is ChunkEvent.EVICTED:
            self.evicted_unread += 1
