# SPDX-License-Identifier: Apache-2.0
"""Requests for chunks between agents; a fault is a ValueError or struct.error.

A Get names up to MAX_BATCH chunks of one image.  Adjacent chunks form one request (a run) with one
proof.  Each chunk has its own number, is answered independently (data, refusal or referral) in any
order, and can be cancelled.
"""

import enum
import functools
import struct
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

import blake3

from acstor_common.model import geometry
from acstor_common.model import ids

MAX_BATCH = 64  # chunks in one message
MAX_DATA_BYTES = geometry.MAX_CHUNK_BYTES
"""Bytes of one request, for which the receiver allocates memory."""
PROOF_BYTES = 16
MAX_OFFSET = (1 << 63) - 1
MAX_NUMBER = (1 << 32) - 1

_HEAD = struct.Struct(">16sIBB")  # image, timeout, mode, priority; then the runs
_RUN = struct.Struct(">IQII16s")  # request, offset, length, chunk length, proof
_REQUEST = struct.Struct(">I")

_IMAGES = 1024  # images with cached conversions of their IDs, which take about 3 us each
_image_bytes = functools.lru_cache(_IMAGES)(ids.image_id_bytes)
_image_id = functools.lru_cache(_IMAGES)(ids.image_id_from_bytes)

MIN_GET_BYTES = _HEAD.size + _RUN.size
MAX_GET_BYTES = _HEAD.size + MAX_BATCH * _RUN.size
MIN_NUMBERS_BYTES = _REQUEST.size
MAX_NUMBERS_BYTES = MAX_BATCH * _REQUEST.size


class ConnectionClass(enum.IntEnum):
    """Class of a connection: a guest waits for DEMAND, not for BULK."""

    DEMAND = 1
    BULK = 2


class Priority(enum.IntEnum):
    """Priority of a request, the most urgent first."""

    PEER = 1  # a guest of the sender waits
    READAHEAD = 2  # a guest of the sender will read it soon
    PREFETCH = 3  # background

    @property
    def connection_class(self) -> ConnectionClass:
        """The class of connections for this priority."""
        return ConnectionClass.DEMAND if self is Priority.PEER else ConnectionClass.BULK


class Mode(enum.IntEnum):
    """Mode of a request; ``ONLY`` modes exclude a referral.

    To prevent deadlock with any v-node tables, a host waits only for later modes: HELD for a
    bounded time for any pending fetch; HOME for another home or the source; RELAYED for the source.

    >>> Mode.HOME.may_refer, Mode.HOME.plain, Mode.HELD.reads_source
    (True, <Mode.HOME_ONLY: 3>, False)
    """

    HELD = 0  # cached or pending chunks
    HELD_ONLY = 1
    HOME = 2  # read-through as home
    HOME_ONLY = 3
    NEW_HOME = 4  # the same; by the requester's previous table the home was another host
    NEW_HOME_ONLY = 5
    RELAYED = 6  # from a home: ask only the source

    @property
    def may_refer(self) -> bool:
        """Whether the answer may be a referral."""
        return self in _MAY_REFER

    @property
    def reads_source(self) -> bool:
        """Whether the receiver must fetch missing chunks."""
        return self >= Mode.HOME

    @property
    def is_home(self) -> bool:
        """Whether the requester considers the receiver the chunk's home."""
        return Mode.HOME <= self <= Mode.NEW_HOME_ONLY

    @property
    def is_relayed(self) -> bool:
        """Whether the requester is itself a home."""
        return self is Mode.RELAYED

    @property
    def is_moved(self) -> bool:
        """Whether the receiver is the home only since the requester's last table."""
        return self in _IS_MOVED

    @property
    def plain(self) -> "Mode":
        """The same mode without referral."""
        return _PLAIN[self]


_M = Mode
_MAY_REFER = frozenset({_M.HELD, _M.HOME, _M.NEW_HOME})
_IS_MOVED = frozenset({_M.NEW_HOME, _M.NEW_HOME_ONLY})
_PLAIN = (
    *(_M.HELD_ONLY, _M.HELD_ONLY, _M.HOME_ONLY, _M.HOME_ONLY),
    *(_M.NEW_HOME_ONLY, _M.NEW_HOME_ONLY, _M.RELAYED),
)


def count_chunks(length: int, chunk_bytes: int) -> int:
    """Return the number of chunks of a request."""
    return -(-length // chunk_bytes) if chunk_bytes else 1


class ChunkRequest(NamedTuple):
    """Requests a chunk or a run of chunks of an image."""

    request_id: int  # number of the first chunk; the others have consecutive numbers
    image_id: ids.ImageId
    offset: int
    length: int
    proof: bytes  # that the requester knows the CIDs, for the receiver alone (:func:`proof_of`)
    mode: Mode
    priority: Priority
    timeout_ms: int  # how long the requester waits
    chunk_bytes: int = 0  # of a run: the length of each chunk but the last; 0: one chunk

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return count_chunks(self.length, self.chunk_bytes)

    @property
    def numbers(self) -> range:
        """Numbers of the chunks."""
        return range(self.request_id, self.request_id + self.chunk_count)

    @property
    def offsets(self) -> range:
        """Offsets of the chunks in the image."""
        return range(self.offset, self.offset + self.length, self.chunk_bytes or self.length)

    def length_of(self, number: int, chunks: int = 1) -> int:
        """Return the length of consecutive chunks, the first with this number."""
        if not self.chunk_bytes:
            return self.length
        before = (number - self.request_id) * self.chunk_bytes
        return min(chunks * self.chunk_bytes, self.length - before)

    @property
    def lengths(self) -> dict[int, int]:
        """Lengths of the chunks, by number."""
        if not self.chunk_bytes:
            return {self.request_id: self.length}
        found = dict.fromkeys(self.numbers, self.chunk_bytes)
        found[self.numbers[-1]] = self.length - (len(found) - 1) * self.chunk_bytes
        return found


class Get(NamedTuple):
    """Requests of one image, mode, priority and timeout; 1 to MAX_BATCH chunks in all."""

    requests: tuple[ChunkRequest, ...]


class Cancel(NamedTuple):
    """The sender no longer needs these chunks; they may still come."""

    request_ids: tuple[int, ...]


class RaisePriority(NamedTuple):
    """Raises the priority of these chunks to PEER."""

    request_ids: tuple[int, ...]


def batches(requests: Iterable[ChunkRequest]) -> Iterator[Get]:
    """Pack requests into as few messages as possible.

    >>> one = ChunkRequest(1, ids.ImageId("i"), 0, 1, bytes(16), Mode.HELD, Priority.PEER, 9)
    >>> asked = [one, one._replace(request_id=2, offset=1), one._replace(request_id=3)]
    >>> [[request.request_id for request in get.requests] for get in batches(asked)]
    [[1, 2], [3]]
    """
    kinds: dict[tuple[object, ...], tuple[list[ChunkRequest], set[int]]] = {}
    for request in requests:
        kind = request.image_id, request.mode, request.priority, request.timeout_ms
        batch, offsets = kinds.setdefault(kind, ([], set()))
        its = request.offsets
        if batch and (len(offsets) + len(its) > MAX_BATCH or not offsets.isdisjoint(its)):
            yield Get(tuple(batch))
            batch, offsets = kinds[kind] = [], set()
        batch.append(request)
        offsets.update(its)
    for batch, _ in kinds.values():
        yield Get(tuple(batch))


_PROOF_CONTEXT = "acstor 2026-11 peer protocol 3: proof that CIDs are known"


def proof_of(cids: bytes, requester: ids.HostId, responder: ids.HostId) -> bytes:
    """Return the proof for ``responder`` that ``requester`` knows a request's joined CIDs.

    BLAKE3 in key derivation mode; it reveals no CID, and the receiver cannot reuse it.

    >>> cid = ids.Cid(bytes(range(32)))
    >>> proof_of(cid, ids.HostId("h1"), ids.HostId("h2")).hex()
    '66c346027299b6578dc1e691d4778198'
    """
    names = requester.encode("ascii"), responder.encode("ascii")
    material = b"%b%b%b\0%b" % (len(cids).to_bytes(4, "big"), cids, *names)
    return blake3.blake3(material, derive_key_context=_PROOF_CONTEXT).digest(length=PROOF_BYTES)


def encode_get(get: Get) -> bytes:
    """Return the body of a Get."""
    _check(get.requests)
    first = get.requests[0]
    shared = first.image_id, first.timeout_ms, first.mode, first.priority
    body = [_HEAD.pack(_image_bytes(first.image_id), *shared[1:])]
    for request in get.requests:
        request_id, image_id, offset, length, proof, mode, priority, timeout_ms, size = request
        if (image_id, timeout_ms, mode, priority) != shared:
            raise ValueError("a Get of several kinds")
        body.append(_RUN.pack(request_id, offset, length, size, proof))
    return b"".join(body)


def decode_get(body: bytes) -> Get:
    """Return the Get of a body."""
    image, timeout_ms, mode_code, priority_code = _HEAD.unpack_from(body)
    if rest := (len(body) - _HEAD.size) % _RUN.size:
        raise ValueError(f"{rest} bytes of a request in a Get")
    image_id, mode, priority = _image_id(image), Mode(mode_code), Priority(priority_code)
    requests = tuple(
        [
            ChunkRequest(
                request_id, image_id, offset, length, proof, mode, priority, timeout_ms, size
            )
            for request_id, offset, length, size, proof in _RUN.iter_unpack(body[_HEAD.size :])
        ]
    )
    _check(requests)
    return Get(requests)


def _check(requests: tuple[ChunkRequest, ...]) -> None:
    if not 1 <= len(requests) <= MAX_BATCH:
        raise ValueError(f"a Get of {len(requests)} requests")
    if requests[0].timeout_ms < 1:
        raise ValueError("a Get without a timeout")
    chunks = 0
    for request in requests:
        _check_run(request)
        chunks += request.chunk_count
    if chunks > MAX_BATCH:
        raise ValueError(f"a Get of {chunks} chunks")
    if len(requests) == 1:
        return
    if len({number for request in requests for number in request.numbers}) < chunks:
        raise ValueError("a number twice in a Get")
    if len({offset for request in requests for offset in request.offsets}) < chunks:
        raise ValueError("a chunk twice in a Get")


def _check_run(request: ChunkRequest) -> None:
    """Check a request; count only what is known to be small."""
    request_id, _, offset, length, proof, _, _, _, size = request
    is_run = size > 0
    if not 1 <= length <= MAX_DATA_BYTES or is_run != (1 < request.chunk_count <= MAX_BATCH):
        raise ValueError(f"a Get of {length} bytes, {size} in a chunk")
    if not 0 <= offset <= MAX_OFFSET - length:
        raise ValueError(f"a Get at offset {offset}")
    if not 0 <= request_id <= MAX_NUMBER - request.chunk_count + 1:
        raise ValueError(f"a Get of number {request_id}")
    if len(proof) != PROOF_BYTES:
        raise ValueError(f"a proof of {len(proof)} bytes")


def encode_numbers(message: Cancel | RaisePriority) -> bytes:
    """Return the body of a Cancel or RaisePriority."""
    _check_ids(message.request_ids)
    return struct.pack(f">{len(message.request_ids)}I", *message.request_ids)


def decode_numbers(body: bytes) -> tuple[int, ...]:
    """Return the request numbers of a body."""
    if len(body) % _REQUEST.size:
        raise ValueError(f"{len(body)} bytes of numbers of requests")
    request_ids = struct.unpack(f">{len(body) // _REQUEST.size}I", body)
    _check_ids(request_ids)
    return request_ids


def _check_ids(request_ids: tuple[int, ...]) -> None:
    if not 1 <= len(request_ids) <= MAX_BATCH:
        raise ValueError(f"{len(request_ids)} numbers of requests")
    if len(set(request_ids)) < len(request_ids):
        raise ValueError("a number of a request twice")
