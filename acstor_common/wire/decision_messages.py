# SPDX-License-Identifier: Apache-2.0
"""What agents and the decision service say to each other over the message bus.

Nothing that came over the bus is used before :func:`decode` has looked at it.
Topics, methods and field names are never changed and never used for something
else; a new field has a default.

Agents cast samples to all instances of the service (fanout of ``TOPIC``).  The
service casts a new v-node table to all agents (fanout of ``AGENT_TOPIC``), and to
one agent alone that shows by a sample that it has an older one.  Whoever wants
the table at once calls ``GET_RING``.

What operators ask for goes as a task to agents (``IMAGE_TASK_GIVEN``) or as a
request to those who prepare images (``IMAGE_WANTED``).  Nobody answers: an agent
tells in its samples what has become of a task, and Glance what of an image.  A task
of which an agent tells nothing is given to it again, so the same request may come
more than once.
"""

import contextlib
import enum
import re
import urllib.parse
from typing import Annotated
from typing import Any
from typing import TypeVar

import msgspec

from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.model import patterns
from acstor_common.ring import hash_ring
from acstor_common.ring import location
from acstor_common.wire import control_wire
from acstor_common.wire import fill_progress

EXCHANGE = "acstor"
SERVICE_TYPE = "acstor"
"""What the REST API of the decision service is called in Keystone's catalog."""
TOPIC = "acstor-decision"
AGENT_TOPIC = "acstor-agent"
VERSION = "1.0"
SAMPLE_COLLECTED = "sample_collected"
RING_PUBLISHED = "ring_published"
GET_RING = "get_ring"
IMAGE_TASK_GIVEN = "image_task_given"
IMAGE_WANTED = "image_wanted"

MAX_PEERS = 4096
MAX_IMAGES = 1024
MAX_BOOTS = 32
MAX_PREVIOUS_IMAGES = 16
MAX_WHY = 255
MAX_REASONS = 64
MAX_FAULTS = 16
MAX_GUESTS = 256
MAX_SKETCH = 256
MAX_NUMBER = (1 << 63) - 1
COLLECTION_S = 5.0
"""Between two samples of a host, and two rounds of the service, which all must agree about. 1,000
hosts send 200 samples a second; of a burst that is shorter v-nodes would come back too late."""
LEAST_INTERVAL_S = 0.001
"""Of a collection: bytes a second of a shorter one could be more than a float can be."""
MAX_PAYLOAD = 4 * 1024 * 1024
MAX_CERTIFICATE = 8192
MAX_TARGETS = hash_ring.MAX_HOSTS

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Word = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
"""63 bits."""
Moment = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]
"""A wall clock in s; infinity is none."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=hash_ring.MAX_EPOCH)]
PreviousImages = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_PREVIOUS_IMAGES)]
Label = Annotated[str, msgspec.Meta(max_length=MAX_WHY)]
Signature = Annotated[str, patterns.full_match("[A-Za-z0-9+/]{86}==")]
"""Of 64 bytes, in base64."""


class Traffic(msgspec.Struct, frozen=True):
    """Bytes in one collection.

    :param received: they came to this host
    :param sent: they left it
    """

    received: Bytes = 0
    sent: Bytes = 0


class TimedTraffic(msgspec.Struct, frozen=True):
    """Chunks that came, and how long that took: of each the time from the question to its bytes.

    :param received: bytes
    :param took_s: added up, so chunks that are under way at once count one by one
    """

    received: Bytes = 0
    took_s: Seconds = 0.0


class PeerTraffic(Traffic, frozen=True):
    """Chunk bytes that went to and from one peer.

    :param timed: of those received, the ones that a guest waited for
    """

    timed: TimedTraffic = TimedTraffic()


class TaskKind(enum.StrEnum):
    """What an agent can be asked to do about an image."""

    PRE_SEED = "pre_seed"  # fetch all of it and pin it
    FLATTEN = "flatten"  # copy the image into the host's disks that are based on it
    RECORD_BOOTS = "record_boots"  # record the next boots, whatever was recorded before
    HYDRATE = "hydrate"  # cache it completely before other images
    PAUSE = "pause"  # stop filling the cache with it
    RESUME = "resume"  # end a hydrate or a pause
    UNPIN = "unpin"  # keep it only as long as servers use it
    PREFETCH_BOOT_IMAGE = "prefetch_boot_image"  # if the host expects boots from the image


class TaskState(enum.StrEnum):
    """How far a task is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class ImageTask(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent is asked to do about an image.

    :param request: number of the request; progress reports repeat it
    :param boots: how many boots to record
    :param deadline_s: of a hydrate, in seconds from the request; 0: as fast as possible
    :param due_at_s: the same deadline by the wall clock, since the task may reach an agent late;
        0: ``deadline_s`` counts from its arrival
    :param previous_images: earlier images of its family
    :param is_public: all projects may read it
    """

    request: Word
    kind: TaskKind
    image_id: str
    boots: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    deadline_s: control_wire.Deadline = 0.0
    due_at_s: Annotated[float, msgspec.Meta(ge=0, le=1 << 63)] = 0.0
    previous_images: PreviousImages = ()
    is_public: bool = False

    def __post_init__(self) -> None:
        for image_id in (self.image_id, *self.previous_images):
            ids.parse_image_id(image_id)


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a task.

    :param done: bytes of the image, or boots
    :param total: how many there are to be; 0: not known yet
    :param why: why it failed
    """

    request: Word
    kind: TaskKind
    state: TaskState
    done: Bytes = 0
    total: Bytes = 0
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""


class ImageWanted(msgspec.Struct, frozen=True):
    """A request to prepare an image now.

    :param is_forced: again, even if it is prepared or failed before
    """

    image_id: str
    is_forced: bool = False

    def __post_init__(self) -> None:
        ids.parse_image_id(self.image_id)


class ReadBytes(msgspec.Struct, frozen=True):
    """Bytes that guests read, by where they were then.

    :param local: in the host's own cache, or known to be zeros
    :param boot: in the boot image, in memory
    :param peer: on another host
    :param source: nowhere but at the source
    """

    local: Bytes = 0
    boot: Bytes = 0
    peer: Bytes = 0
    source: Bytes = 0


class FetchedBytes(msgspec.Struct, frozen=True):
    """Bytes that came to the host, ahead of guests or for them, by who gave them."""

    peer: Bytes = 0
    source: Bytes = 0


class HeldImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image on one host; what is counted is counted from the start of the agent's worker.

    :param size_bytes: its length; None if nobody has read it since then
    :param cached_bytes: what of it lies in the cache; None as well
    :param missing_bytes: what of it is neither there nor zeros; None as well
    :param boot_image: what has become of its boot image there
    :param boot_revision: revision of the boot image; 0 if there is none
    :param fill: fill status there; None: the host does not report it
    :param task: what was asked last, if anything
    """

    size_bytes: Bytes | None = None
    cached_bytes: Bytes | None = None
    missing_bytes: Bytes | None = None
    boot_image: Annotated[str, patterns.full_match("[a-z]{0,16}")] = ""
    boot_revision: Bytes = 0
    read: ReadBytes = ReadBytes()
    fetched: FetchedBytes = FetchedBytes()
    fill: fill_progress.FillStatus | None = None
    task: TaskProgress | None = None

    def __post_init__(self) -> None:
        if (self.cached_bytes or 0) + (self.missing_bytes or 0) > (self.size_bytes or 0):
            raise ValueError("more of the image is cached or missing than it has")


class HostFault(msgspec.Struct, frozen=True):
    """A part of a host that does not work, although guests are served.

    :param why: the last failure in words
    :param since_s: wall clock
    """

    why: Label
    since_s: Moment


class HostHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a host does, for those who look at all of them.

    :param version: of acstor there
    :param waiting: requests of guests that have waited for long
    :param longest_wait_s: of those
    :param waits_for: what the oldest of them waits for, as far as that is known
    :param failed_reads: of guests, in the last hour
    :param fallbacks: how often Nova did without acstor in the last hour, by the reason
    :param faults: faults of the host by the part that fails
    :param on_dead_mounts: servers, or processes, that use a mount that has ended
    """

    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    waiting: Bytes = 0
    longest_wait_s: Seconds = 0.0
    waits_for: Label = ""
    failed_reads: Bytes = 0
    fallbacks: Annotated[dict[Label, Bytes], msgspec.Meta(max_length=MAX_REASONS)] = {}
    faults: Annotated[dict[Label, HostFault], msgspec.Meta(max_length=MAX_FAULTS)] = {}
    on_dead_mounts: Annotated[tuple[Label, ...], msgspec.Meta(max_length=MAX_GUESTS)] = ()


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
    :param sketch: MinHash of the chunks held (:mod:`acstor_common.util.minhash`)
    :param peers: chunk bytes by peer
    :param source: what came from the sources for guests who waited, here or elsewhere
    :param images: all images that the host mirrors, by id; None: as it told last
    :param boots: what is new of boots of instances there; a later one of an instance counts
    :param health: None: the agent does not tell
    """

    host: Annotated[str, msgspec.Meta(max_length=255)]
    address: Annotated[str, msgspec.Meta(max_length=64)]
    location: Annotated[str, msgspec.Meta(max_length=255)] = ""
    session: Word
    started_s: Moment
    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    sent_s: Moment
    interval_s: Annotated[float, msgspec.Meta(ge=LEAST_INTERVAL_S, le=3600)]
    link_bytes_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    total: Traffic
    chunks: Traffic = Traffic()
    cache_bytes: Bytes = 0
    cache_limit_bytes: Bytes = 0
    ring_epoch: Epoch = 0
    sketch: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MAX_SKETCH)] = ()
    peers: Annotated[dict[str, PeerTraffic], msgspec.Meta(max_length=MAX_PEERS)] = {}
    source: TimedTraffic = TimedTraffic()
    images: Annotated[dict[str, HeldImage], msgspec.Meta(max_length=MAX_IMAGES)] | None = None
    boots: Annotated[tuple[boot_timeline.Timeline, ...], msgspec.Meta(max_length=MAX_BOOTS)] = ()
    health: HostHealth | None = None

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        addresses.parse(self.address)
        location.parse(self.location)
        for peer in self.peers:
            ids.parse_host_id(peer)
        for image_id in self.images or ():
            ids.parse_image_id(image_id)


class Signed(msgspec.Struct, frozen=True):
    """A message that proves who sent it (:mod:`acstor_common.wire.signed_messages`).

    Agents send their samples and boot traces so, with their certificate; the decision service
    sends tasks and requests for images so, without one.

    :param payload: JSON; the signature is over these very bytes
    :param signature: Ed25519, in base64 (:mod:`acstor_common.identity.signing`)
    :param certificate: PEM of the host that sent it; empty: the decision service
    """

    payload: Annotated[str, msgspec.Meta(max_length=MAX_PAYLOAD)]
    signature: Signature
    certificate: Annotated[str, msgspec.Meta(max_length=MAX_CERTIFICATE)] = ""


class TaskForHosts(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the decision service signs it: a copy of it means nothing to another host.

    :param hosts: whom it is for; empty: all hosts
    :param given_s: wall clock when it was given
    """

    task: ImageTask
    hosts: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_TARGETS)] = ()
    given_s: Moment

    def __post_init__(self) -> None:
        for host in self.hosts:
            ids.parse_host_id(host)


class ImageWantedAt(msgspec.Struct, frozen=True, kw_only=True):
    """A request to prepare an image as the decision service signs it.

    :param request: its number, as of a task
    :param given_s: wall clock when it was given
    """

    wanted: ImageWanted
    request: Word
    given_s: Moment


class RingTable(msgspec.Struct, frozen=True):
    """A v-node table on its way to agents.

    :param table: the table in JSON (doc/source/format/ring.rst)
    :param signature: the decision service's over the bytes of ``table``, purpose ``table``
    """

    epoch: Epoch
    table: Annotated[str, msgspec.Meta(max_length=hash_ring.MAX_FILE_BYTES)]
    signature: Annotated[str, patterns.full_match("([A-Za-z0-9+/]{86}==)?")] = ""


_T = TypeVar("_T")


def way_fault(url: str) -> str:
    """Return what is wrong with asking the REST API at ``url``; "" if nothing is.

    >>> way_fault("https://d.example:9710"), way_fault("http://127.0.0.1:9710")
    ('', '')
    """
    where = urllib.parse.urlsplit(url)
    host = where.hostname or ""
    with contextlib.suppress(ValueError):
        if addresses.is_loopback(host):
            return ""
    if where.scheme != "http" or host == "localhost":
        return ""
    return (
        f"the decision service is asked in clear text at {url}: who is on the way reads the token "
        "and can pretend to be the service; serve its REST API over TLS and name https:// in "
        "Keystone's catalog (or in the option that names its address)"
    )


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
        found = msgspec.convert(payload, kind)
        msgspec.json.encode(found)  # a lone surrogate could be neither checked nor passed on
    except (msgspec.ValidationError, UnicodeError, RecursionError) as e:
        raise errors.RemoteProtocolError(_sender(payload), str(e)) from e
    return found


def _sender(payload: object) -> str:
    named = payload.get("host") if isinstance(payload, dict) else None
    text = named if isinstance(named, str) else "a sender without a name"
    return re.sub(r"[^ -~]", "?", text[:64])
