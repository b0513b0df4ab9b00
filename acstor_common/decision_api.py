# SPDX-License-Identifier: Apache-2.0
"""What agents and the decision service say to each other over the message bus.

The one rule: nothing that came over the bus is used before :func:`decode` has
looked at it.  Topics, methods and field names are never changed and never used
for something else; a new field has a default.

Agents cast samples to all instances of the service (fanout of ``TOPIC``).  The
service casts a new v-node table to all agents (fanout of ``AGENT_TOPIC``), and to
one agent alone that shows by a sample that it has an older one.  Whoever wants
the table at once calls ``GET_RING``.
"""

import re
from typing import Annotated
from typing import Any
from typing import TypeVar

import msgspec

from acstor_common import errors
from acstor_common import ids
from acstor_common import location
from acstor_common import ring

EXCHANGE = "acstor"
TOPIC = "acstor-decision"
AGENT_TOPIC = "acstor-agent"
VERSION = "1.0"
SAMPLE_COLLECTED = "sample_collected"
RING_PUBLISHED = "ring_published"
GET_RING = "get_ring"

MAX_PEERS = 4096
MAX_SKETCH = 256
MAX_NUMBER = (1 << 63) - 1

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Word = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
"""63 bits."""


class Traffic(msgspec.Struct, frozen=True):
    """Bytes in one collection.

    :param received: they came to this host
    :param sent: they left it
    """

    received: Bytes = 0
    sent: Bytes = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One collection of one host.

    :param address: where the agent listens, as in the ring
    :param location: where the host stands, outermost place first (``pod1/rack3``); may be empty
    :param session: chosen at random when the agent started
    :param started_s: wall clock when the agent started
    :param number: of this sample in its session, from 1 on, without gaps
    :param sent_s: wall clock when the collection ended
    :param interval_s: how long the collection took
    :param link_bytes_s: what the host's links carry each way, together
    :param total: what the links carried
    :param chunks: what of it were chunks that agents exchange or read from sources
    :param cache_bytes: chunks in the public cache
    :param cache_limit_bytes: upper bound of the public cache
    :param ring_epoch: epoch of the v-node table in force there
    :param sketch: MinHash of the chunks held (:mod:`acstor_common.sketch`)
    :param peers: chunk bytes by peer
    """

    host: Annotated[str, msgspec.Meta(max_length=255)]
    address: Annotated[str, msgspec.Meta(max_length=64)]
    location: Annotated[str, msgspec.Meta(max_length=255)] = ""
    session: Word
    started_s: Annotated[float, msgspec.Meta(ge=0)]
    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    sent_s: Annotated[float, msgspec.Meta(ge=0)]
    interval_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    link_bytes_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    total: Traffic
    chunks: Traffic = Traffic()
    cache_bytes: Bytes = 0
    cache_limit_bytes: Bytes = 0
    ring_epoch: Bytes = 0
    sketch: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MAX_SKETCH)] = ()
    peers: Annotated[dict[str, Traffic], msgspec.Meta(max_length=MAX_PEERS)] = {}

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        ring.parse_address(self.address)
        location.parse(self.location)
        for peer in self.peers:
            ids.parse_host_id(peer)


class RingTable(msgspec.Struct, frozen=True):
    """A v-node table on its way to agents.

    :param table: the table in JSON (doc/source/format/ring.rst)
    """

    epoch: Bytes
    table: Annotated[str, msgspec.Meta(max_length=ring.MAX_FILE_BYTES)]


_T = TypeVar("_T")


def encode(payload: msgspec.Struct) -> dict[str, Any]:
    """Return ``payload`` as what a message may carry: JSON's own types.

    >>> encode(Traffic(received=1))
    {'received': 1, 'sent': 0}
    """
    encoded: dict[str, Any] = msgspec.to_builtins(payload)
    return encoded


def decode(payload: object, kind: type[_T]) -> _T:
    """Return what a message carries, checked.

    >>> decode({"sent": 3}, Traffic)
    Traffic(received=0, sent=3)

    :raises errors.RemoteProtocolError: it is not a ``kind``; names the sender as far as it says
    """
    try:
        return msgspec.convert(payload, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        raise errors.RemoteProtocolError(_sender(payload), str(e)) from e


def _sender(payload: object) -> str:
    named = payload.get("host") if isinstance(payload, dict) else None
    text = named if isinstance(named, str) else "a sender without a name"
    return re.sub(r"[^ -~]", "?", text[:64])
