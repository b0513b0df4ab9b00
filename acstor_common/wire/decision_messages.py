# SPDX-License-Identifier: Apache-2.0
"""Messages between agents and the decision service on the message bus.

Agents cast samples to all instances of the service (fanout of ``TOPIC``).  The service casts a new
v-node table to all agents (fanout of ``AGENT_TOPIC``), and again to an agent whose sample shows an
older epoch.  Tasks are cast to agents again until samples report
them, so receivers must be idempotent; requests to prepare an image are cast to listeners, which
report in Glance.  Topics, methods and field names are stable; a new field needs a default.
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
from acstor_common.model import text_constraints
from acstor_common.ring import hash_ring
from acstor_common.ring import location
from acstor_common.wire import control_wire
from acstor_common.wire import fill_progress

EXCHANGE = "acstor"
SERVICE_TYPE = "acstor"  # service type of the REST API in Keystone's catalog
TOPIC = "acstor-decision"
AGENT_TOPIC = "acstor-agent"
VERSION = "1.0"
SAMPLE_COLLECTED = "sample_collected"
RING_PUBLISHED = "ring_published"
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
"""Interval of samples and of the service's rounds.

A burst that is shorter would move v-nodes back too late; 1,000 hosts send 200 samples a second."""
LEAST_INTERVAL_S = 0.001  # shortest collection, so that bytes per second fit a float
MAX_PAYLOAD = 4 * 1024 * 1024
MAX_CERTIFICATE = 8192
MAX_TARGETS = hash_ring.MAX_HOSTS
MAX_LOCALITY_HOSTS = 4096

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Word = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]  # 63 bits
Moment = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]  # wall clock in seconds; finite
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1 << 40)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=hash_ring.MAX_EPOCH)]
PreviousImages = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_PREVIOUS_IMAGES)]
Label = Annotated[str, msgspec.Meta(max_length=MAX_WHY)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Signature = Annotated[str, text_constraints.full_match("[A-Za-z0-9+/]{86}==")]  # 64 bytes in base64


class TrafficBytes(msgspec.Struct, frozen=True):
    """Bytes received and sent by the host in one collection."""

    received: Bytes = 0
    sent: Bytes = 0


class TimedTraffic(msgspec.Struct, frozen=True):
    """Received bytes of chunks, and the sum of the chunks' latencies."""

    received: Bytes = 0
    took_s: Seconds = 0.0


class PeerTraffic(TrafficBytes, frozen=True):
    """Chunk bytes exchanged with one peer; ``timed`` are received ones a guest waited for."""

    timed: TimedTraffic = TimedTraffic()


class TaskKind(enum.StrEnum):
    """Tasks that an agent does for an image."""

    PRE_SEED = "pre_seed"  # fetch all of it and pin it
    FLATTEN = "flatten"  # copy the image into the host's disks that are based on it
    RECORD_BOOTS = "record_boots"  # record the next boots, whatever was recorded before
    HYDRATE = "hydrate"  # cache it completely before other images
    PAUSE = "pause"  # stop filling the cache with it
    RESUME = "resume"  # end a hydrate or a pause
    UNPIN = "unpin"  # keep it only as long as servers use it
    PREFETCH_BOOT_IMAGE = "prefetch_boot_image"  # if the host expects boots from the image


class TaskState(enum.StrEnum):
    """State of a task."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class ImageTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task for an agent; a hydrate's deadline is also wall clock, as delivery may be late."""

    request: Word  # number of the request; progress reports repeat it
    kind: TaskKind
    image_id: str
    boots: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    deadline_s: control_wire.Deadline = 0.0  # after the request; 0: as fast as possible
    due_at_s: Annotated[float, msgspec.Meta(ge=0, le=1 << 63)] = 0.0  # 0: see ``deadline_s``
    previous_images: PreviousImages = ()  # earlier images of its family
    is_public: bool = False

    def __post_init__(self) -> None:
        for image_id in (self.image_id, *self.previous_images):
            ids.parse_image_id(image_id)


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a task in bytes of the image, or boots; total 0: unknown."""

    request: Word
    kind: TaskKind
    state: TaskState
    done: Bytes = 0
    total: Bytes = 0
    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY)] = ""


class ImageWanted(msgspec.Struct, frozen=True):
    """A request to prepare an image now, or if forced, again."""

    image_id: str
    is_forced: bool = False

    def __post_init__(self) -> None:
        ids.parse_image_id(self.image_id)


class ReadBytes(msgspec.Struct, frozen=True):
    """Bytes that guests read: from this host (or zeros), its boot image, a peer, a source."""

    local: Bytes = 0
    boot: Bytes = 0
    peer: Bytes = 0
    source: Bytes = 0


class FetchedBytes(msgspec.Struct, frozen=True):
    """Bytes that the host fetched, by origin."""

    peer: Bytes = 0
    source: Bytes = 0


class HeldImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image on one host; counters start with the agent's worker."""

    size_bytes: Bytes | None = None  # None if nothing was read since the start, as are the next two
    cached_bytes: Bytes | None = None
    missing_bytes: Bytes | None = None  # neither cached nor zeros
    boot_image: Annotated[str, text_constraints.full_match("[a-z]{0,16}")] = ""  # state there
    boot_revision: Bytes = 0
    boot_set_bytes: Bytes | None = None  # data that a boot reads; None: not known
    boot_set_cached_bytes: Bytes | None = None  # as chunks or as the boot image's frames
    read: ReadBytes = ReadBytes()
    fetched: FetchedBytes = FetchedBytes()
    fill: fill_progress.FillStatus | None = None
    task: TaskProgress | None = None

    def __post_init__(self) -> None:
        if (self.cached_bytes or 0) + (self.missing_bytes or 0) > (self.size_bytes or 0):
            raise ValueError("more of the image is cached or missing than it has")
        if (self.boot_set_cached_bytes or 0) > (self.boot_set_bytes or 0):
            raise ValueError("more of the boot set is cached than it has")


class HostFault(msgspec.Struct, frozen=True):
    """A component of a host that fails while guests are served, and its last error."""

    why: Label
    since_s: Moment


class HostHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Health of a host; ``on_dead_mounts``: servers or processes with files open on one."""

    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    waiting: Bytes = 0  # guest requests that have waited for long
    longest_wait_s: Seconds = 0.0
    waits_for: Label = ""  # what the oldest of them waits for, if known
    failed_reads: Bytes = 0  # of guests, in the last hour
    fallbacks: Annotated[dict[Label, Bytes], msgspec.Meta(max_length=MAX_REASONS)] = {}  # last hour
    faults: Annotated[dict[Label, HostFault], msgspec.Meta(max_length=MAX_FAULTS)] = {}
    on_dead_mounts: Annotated[tuple[Label, ...], msgspec.Meta(max_length=MAX_GUESTS)] = ()


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One host's sample of one collection; ``images`` None: unchanged.

    A later timeline of an instance in ``boots`` replaces a former one.
    """

    host: Annotated[str, msgspec.Meta(max_length=255)]
    address: Annotated[str, msgspec.Meta(max_length=64)]
    location: Annotated[str, msgspec.Meta(max_length=255)] = ""
    session: Word  # random number of the agent's run
    started_s: Moment
    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]  # in its session, without gaps
    sent_s: Moment  # wall clock of the collection's end
    interval_s: Annotated[float, msgspec.Meta(ge=LEAST_INTERVAL_S, le=3600)]  # of the collection
    link_bytes_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]  # capacity in each direction
    total: TrafficBytes  # all traffic of the links
    chunks: TrafficBytes = TrafficBytes()  # traffic of chunks, with agents and sources
    cache_bytes: Bytes = 0
    cache_limit_bytes: Bytes = 0
    ring_epoch: Epoch = 0
    sketch: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MAX_SKETCH)] = ()
    peers: Annotated[dict[str, PeerTraffic], msgspec.Meta(max_length=MAX_PEERS)] = {}
    source: TimedTraffic = TimedTraffic()  # what a guest waited for, on this host or another
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
    """A signed message: a payload in JSON, whose bytes the Ed25519 signature (base64) covers."""

    payload: Annotated[str, msgspec.Meta(max_length=MAX_PAYLOAD)]
    signature: Signature
    certificate: Annotated[str, msgspec.Meta(max_length=MAX_CERTIFICATE)] = ""  # PEM of a host


class TaskForHosts(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the decision service signs it; no hosts: for all hosts."""

    task: ImageTask
    hosts: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_TARGETS)] = ()
    given_s: Moment

    def __post_init__(self) -> None:
        for host in self.hosts:
            ids.parse_host_id(host)


class ImageWantedAt(msgspec.Struct, frozen=True, kw_only=True):
    """A request to prepare an image as the decision service signs it."""

    wanted: ImageWanted
    request: Word
    given_s: Moment


class RingTable(msgspec.Struct, frozen=True):
    """A v-node table (JSON), signed by the decision service."""

    epoch: Epoch
    table: Annotated[str, msgspec.Meta(max_length=hash_ring.MAX_FILE_BYTES)]
    signature: Annotated[str, text_constraints.full_match("([A-Za-z0-9+/]{86}==)?")] = ""


class NeededImages(msgspec.Struct, frozen=True):
    """Images whose data must stay in the image store; times in seconds since 1970.

    :param images: ids of images that a host uses and has not fully cached; at most 10,000, those of
        the hosts that are known longest first
    :param is_complete: the list has all such images
    :param last_sample_s: time of the last sample of any host; null: there is none
    :param first_sample_s: time of the first sample that the database knows; null: there is none
    :param silent_hosts: number of hosts whose last sample is older than two minutes and younger
        than a day; the list lacks images that they began to use since
    :param now_s: time of this answer
    """

    images: list[str]
    is_complete: bool
    last_sample_s: float | None
    first_sample_s: float | None
    silent_hosts: int
    now_s: float

    def __post_init__(self) -> None:
        for image_id in self.images:
            ids.parse_image_id(image_id)


_T = TypeVar("_T")


class HostLocality(msgspec.Struct, frozen=True):
    """How much of an image one host has.

    :param boot_set_share: part of what a boot reads that is cached; null: not known
    :param image_share: part of the image's data, without zeros, that is cached
    :param link_load: use of the busier direction of the host's links in the last collection
    """

    host: Annotated[str, msgspec.Meta(max_length=255)]
    boot_set_share: Share | None
    image_share: Share
    link_load: Share

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)


class ImageLocality(msgspec.Struct, frozen=True):
    """The hosts that are up and have data of an image cached, at most ``MAX_LOCALITY_HOSTS``.

    If there are more, those with most of the boot set, and then of the image. The order is that of
    the hosts' ids.
    """

    image_id: str
    hosts: Annotated[list[HostLocality], msgspec.Meta(max_length=MAX_LOCALITY_HOSTS)]

    def __post_init__(self) -> None:
        ids.parse_image_id(self.image_id)


def why_insecure(url: str) -> str:
    """Return why the REST API's URL is insecure; "" if it is not.

    >>> why_insecure("https://d.example:9710"), why_insecure("http://127.0.0.1:9710")
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
        f"requests to the decision service at {url} are in clear text: an attacker on the network "
        "can read the token and impersonate the service; serve its REST API over TLS and set "
        "https:// in Keystone's catalog (or in the option that sets its address)"
    )


def encode(payload: msgspec.Struct) -> dict[str, Any]:
    """Return ``payload`` as JSON types."""
    encoded: dict[str, Any] = msgspec.to_builtins(payload)
    return encoded


def decode(payload: object, kind: type[_T]) -> _T:
    """Return a received message, or raise RemoteProtocolError with the claimed sender.

    >>> decode({"sent": 3}, TrafficBytes)
    TrafficBytes(received=0, sent=3)
    """
    try:
        found = msgspec.convert(payload, kind)
        msgspec.json.encode(found)  # rejects lone surrogates
    except (msgspec.ValidationError, UnicodeError, RecursionError) as e:
        raise errors.RemoteProtocolError(_sender(payload), str(e)) from e
    return found


def _sender(payload: object) -> str:
    named = payload.get("host") if isinstance(payload, dict) else None
    text = named if isinstance(named, str) else "a sender without a name"
    return re.sub(r"[^ -~]", "?", text[:64])
