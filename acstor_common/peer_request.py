# SPDX-License-Identifier: Apache-2.0
"""What agents ask each other for: chunks, many in one message, and its bytes.

A Get names up to MAX_BATCH chunks of one image; each of them has a number of its own, is
answered for itself (with its bytes, a refusal or a referral), as soon as that can be done and in
any order, and can be cancelled for itself.

A fault is a ValueError or struct.error here.
"""

import enum
import functools
import struct
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

import blake3

from acstor_common import geometry
from acstor_common import ids

MAX_BATCH = 64
"""Chunks in one message."""
MAX_DATA_BYTES = geometry.MAX_CHUNK_BYTES
PROOF_BYTES = 16
MAX_OFFSET = (1 << 63) - 1

_HEAD = struct.Struct(">16sIBB")  # image, timeout, mode, priority; then the chunks
_CHUNK = struct.Struct(">IQI16s")  # request, offset, length, proof
_REQUEST = struct.Struct(">I")

_IMAGES = 1024
"""Images whose names are remembered in both forms: to make one of the other takes about 3 us."""
_image_bytes = functools.lru_cache(_IMAGES)(ids.image_id_bytes)
_image_id = functools.lru_cache(_IMAGES)(ids.image_id_from_bytes)

MIN_GET_BYTES = _HEAD.size + _CHUNK.size
MAX_GET_BYTES = _HEAD.size + MAX_BATCH * _CHUNK.size
MIN_NUMBERS_BYTES = _REQUEST.size
MAX_NUMBERS_BYTES = MAX_BATCH * _REQUEST.size


class Klass(enum.IntEnum):
    """What a connection is for: a guest waits for DEMAND, nobody waits for BULK yet."""

    DEMAND = 1
    BULK = 2


class Priority(enum.IntEnum):
    """Why the sender wants it, as far as that is another host's business; most urgent first."""

    PEER = 1  # a guest of the sender waits
    SOON = 2  # a guest of the sender is about to read it
    LATER = 3  # nobody waits

    @property
    def klass(self) -> Klass:
        """The class of the connections on which it may be asked for like this."""
        return Klass.DEMAND if self is Priority.PEER else Klass.BULK


class Mode(enum.IntEnum):
    """What a host asks of another one when it asks for a chunk.

    Three questions: give what you hold (HELD), read it through as its home (HOME), read it for me
    who asks as a home (RELAYED).  ``ONLY`` ones are not to be answered with a referral.

    Who is asked in one mode waits only for what is lower in this list, so no two
    hosts can wait for each other, whatever v-node tables they have:

    1. HELD waits for anything under way there, for a bounded time;
    2. HOME waits for another home, or for the source;
    3. RELAYED waits for the source.

    >>> Mode.HOME.may_refer, Mode.HOME.plain, Mode.HELD.reads_source
    (True, <Mode.HOME_ONLY: 3>, False)
    """

    HELD = 0  # give it if it is here or on its way
    HELD_ONLY = 1
    HOME = 2  # you are its home: read it through if it is not here
    HOME_ONLY = 3
    NEW_HOME = 4  # the same, and by the table before mine another host was its home
    NEW_HOME_ONLY = 5
    RELAYED = 6  # I ask as its home: ask nobody but the source

    @property
    def may_refer(self) -> bool:
        """Say whether the answer may be to ask another host."""
        return self in _MAY_REFER

    @property
    def reads_source(self) -> bool:
        """Say whether who is asked is to bring what it has not got."""
        return self >= Mode.HOME

    @property
    def is_home(self) -> bool:
        """Say whether who is asked is taken for the chunk's home."""
        return Mode.HOME <= self <= Mode.NEW_HOME_ONLY

    @property
    def is_relayed(self) -> bool:
        """Say whether who asks does so as a home, for others."""
        return self is Mode.RELAYED

    @property
    def is_moved(self) -> bool:
        """Say whether who is asked is the home since the asker's last table only."""
        return self in _IS_MOVED

    @property
    def plain(self) -> "Mode":
        """The same question that is not to be answered with a referral."""
        return _PLAIN[self]


_M = Mode
_MAY_REFER = frozenset({_M.HELD, _M.HOME, _M.NEW_HOME})
_IS_MOVED = frozenset({_M.NEW_HOME, _M.NEW_HOME_ONLY})
_PLAIN = (
    *(_M.HELD_ONLY, _M.HELD_ONLY, _M.HOME_ONLY, _M.HOME_ONLY),
    *(_M.NEW_HOME_ONLY, _M.NEW_HOME_ONLY, _M.RELAYED),
)


class Request(NamedTuple):
    """Asks for ``length`` bytes of an image from ``offset`` on: one whole chunk.

    :param proof: shows the host that is asked, and nobody else, that the sender knows the chunk's
        CID; see :func:`proof_of`
    :param timeout_ms: how long the sender waits for the answer
    """

    request_id: int
    image_id: ids.ImageId
    offset: int
    length: int
    proof: bytes
    mode: Mode
    priority: Priority
    timeout_ms: int


class Get(NamedTuple):
    """Asks for chunks of one image.

    :param requests: 1 to MAX_BATCH of them, no number and no chunk twice, in one mode, of one
        priority, with one timeout
    """

    requests: tuple[Request, ...]


class Cancel(NamedTuple):
    """Nobody waits for these answers any more; they may come all the same.

    :param request_ids: 1 to MAX_BATCH of them, none twice
    """

    request_ids: tuple[int, ...]


class Hurry(NamedTuple):
    """Guests of the sender wait for these answers now, as if they had been asked for as PEER.

    :param request_ids: as in Cancel
    """

    request_ids: tuple[int, ...]


def batches(requests: Iterable[Request]) -> Iterator[Get]:
    """Yield messages with all of ``requests``, as few as may be.

    >>> one = Request(1, ids.ImageId("i"), 0, 1, bytes(16), Mode.HELD, Priority.PEER, 9)
    >>> asked = [one, one._replace(request_id=2, offset=1), one._replace(request_id=3)]
    >>> [[request.request_id for request in get.requests] for get in batches(asked)]
    [[1, 2], [3]]
    """
    kinds: dict[tuple[object, ...], dict[int, Request]] = {}
    for request in requests:
        _, image_id, offset, _, _, mode, priority, timeout_ms = request
        kind = image_id, mode, priority, timeout_ms
        batch = kinds.get(kind)
        if batch is not None and (offset in batch or len(batch) == MAX_BATCH):
            yield Get(tuple(batch.values()))
            batch = None
        if batch is None:
            batch = kinds[kind] = {}
        batch[offset] = request
    for batch in kinds.values():
        yield Get(tuple(batch.values()))


_PROOF_CONTEXT = "acstor 2026-11 peer protocol 3: proof that a CID is known"


def proof_of(cid: ids.Cid, asker: ids.HostId, asked: ids.HostId) -> bytes:
    """Return what shows ``asked`` that ``asker`` knows the CID of the chunk that it asks for.

    BLAKE3 in its key derivation mode.  The CID cannot be found from it, and no other host takes it:
    who is asked learns nothing that he could ask others with.

    >>> cid = ids.Cid(bytes(range(32)))
    >>> proof_of(cid, ids.HostId("h1"), ids.HostId("h2")).hex()
    'fddc43e45a4b9ee03d6d49519c8f67ae'
    """
    material = b"%b%b\0%b" % (cid, asker.encode("ascii"), asked.encode("ascii"))
    return blake3.blake3(material, derive_key_context=_PROOF_CONTEXT).digest(length=PROOF_BYTES)


def encode_get(get: Get) -> bytes:
    """Return the body of a Get."""
    _check(get.requests)
    first = get.requests[0]
    shared = first.image_id, first.timeout_ms, first.mode, first.priority
    body = [_HEAD.pack(_image_bytes(first.image_id), *shared[1:])]
    for request_id, image_id, offset, length, proof, mode, priority, timeout_ms in get.requests:
        if (image_id, timeout_ms, mode, priority) != shared:
            raise ValueError("a Get of several kinds")
        body.append(_CHUNK.pack(request_id, offset, length, proof))
    return b"".join(body)


def decode_get(body: bytes) -> Get:
    """Return the Get whose body this is."""
    image, timeout_ms, mode_code, priority_code = _HEAD.unpack_from(body)
    if rest := (len(body) - _HEAD.size) % _CHUNK.size:
        raise ValueError(f"{rest} bytes of a chunk in a Get")
    image_id, mode, priority = _image_id(image), Mode(mode_code), Priority(priority_code)
    requests = tuple(
        [
            Request(request_id, image_id, offset, length, proof, mode, priority, timeout_ms)
            for request_id, offset, length, proof in _CHUNK.iter_unpack(body[_HEAD.size :])
        ]
    )
    _check(requests)
    return Get(requests)


def _check(requests: tuple[Request, ...]) -> None:
    count = len(requests)
    if not 1 <= count <= MAX_BATCH:
        raise ValueError(f"a Get of {count} chunks")
    if requests[0].timeout_ms < 1:
        raise ValueError("a Get without time")
    for _, _, offset, length, proof, _, _, _ in requests:
        if not 1 <= length <= MAX_DATA_BYTES:
            raise ValueError(f"a Get of {length} bytes")
        if not 0 <= offset <= MAX_OFFSET - length:
            raise ValueError(f"a Get at offset {offset}")
        if len(proof) != PROOF_BYTES:
            raise ValueError(f"a proof of {len(proof)} bytes")
    if len({request[0] for request in requests}) < count:
        raise ValueError("a number twice in a Get")
    if len({request[2] for request in requests}) < count:
        raise ValueError("a chunk twice in a Get")


def encode_numbers(message: Cancel | Hurry) -> bytes:
    """Return the body of what says something of requests."""
    _check_ids(message.request_ids)
    return struct.pack(f">{len(message.request_ids)}I", *message.request_ids)


def decode_numbers(body: bytes) -> tuple[int, ...]:
    """Return the requests of which the message says something whose body this is."""
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
