# SPDX-License-Identifier: Apache-2.0
"""Protocol of the agent's control socket: JSON, one message per line; tags are stable.

A client sends one request and reads replies until one that is not Progress.  Agent and client may
differ in version.  An agent rejects unknown requests and fields, because they might matter: a new
field needs a default that keeps the former behaviour, encoders omit defaults, and fields are never
removed.  A client ignores unknown fields of replies.
"""

import enum
from typing import Annotated
from typing import Any

import msgspec

from acstor_common import errors

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_HEAD_BYTES = 1024 * 1024
MAX_HASH_TEXT = 128
MAX_PROFILE_TEXT = 600  # a key and a value of Nova's metadata have 255 characters each
MAX_DEADLINE_S = 366 * 86400.0  # one year
Deadline = Annotated[float, msgspec.Meta(ge=0, le=MAX_DEADLINE_S)]


class Fallback(enum.StrEnum):
    """Why Nova fell back to its own behaviour for a disk."""

    AGENT_UNREACHABLE = "agent-unreachable"
    AGENT_REFUSED = "agent-refused"
    NOT_MAPPED = "not-mapped"
    DISK_FORMAT = "disk-format"
    NOT_ACTIVE = "not-active"
    ENCRYPTED = "encrypted"
    SIGNED = "signed"
    RECORD_DIFFERS = "record-differs"
    OTHER_NAME = "other-name"
    MIRROR_UNREADABLE = "mirror-unreadable"
    MIRROR_LOST = "mirror-lost"
    NOT_CACHED = "not-cached"
    HOLES_UNKNOWN = "holes-unknown"
    GATEWAY_UNREACHABLE = "gateway-unreachable"
    GATEWAY_REFUSED = "gateway-refused"
    DELTA_UNREADABLE = "delta-unreadable"
    SNAPSHOT_FORMAT = "snapshot-format"
    GUEST_SUSPENDED = "guest-suspended"


class FillMode(enum.StrEnum):
    """How fast the agent fills the cache with an image."""

    NORMAL = "normal"  # at the rate that the link leaves free
    URGENT = "urgent"  # before other images, by a deadline or as fast as possible
    PAUSED = "paused"


class ControlRequest(
    msgspec.Struct, tag_field="op", forbid_unknown_fields=True, omit_defaults=True, frozen=True
):
    """Base class of requests."""


class _OfImage(ControlRequest, frozen=True):
    image_id: str


class Status(ControlRequest, frozen=True, tag="status"):
    """Returns the agent's status."""


class Timelines(ControlRequest, frozen=True, tag="timelines"):
    """Returns timelines of the boots of an instance or an image; empty: all boots."""

    wanted_id: str = ""


class AttachImage(ControlRequest, frozen=True, tag="attach-image"):
    """Attach an image to the mirror now, so that opening it does not block.

    Chunk maps with another hash, if given, are rejected, because image IDs can be reused.
    """

    image_id: str
    head_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_HEAD_BYTES)] = 0  # cached first
    os_hash_algo: Annotated[str, msgspec.Meta(max_length=MAX_HASH_TEXT)] = ""
    os_hash_value: Annotated[str, msgspec.Meta(max_length=MAX_HASH_TEXT)] = ""
    instance_id: Annotated[str, msgspec.Meta(max_length=36)] = ""  # that is about to boot
    profile: Annotated[str, msgspec.Meta(max_length=MAX_PROFILE_TEXT)] = ""  # of the instance


class DetachImage(_OfImage, frozen=True, tag="detach-image"):
    """Detach an image that no guest uses."""


class PreSeed(_OfImage, frozen=True, tag="pre-seed"):
    """Fetch all of an image in the background, and pin it."""


class Unpin(_OfImage, frozen=True, tag="unpin"):
    """Remove the pin that :class:`PreSeed` set."""


class SetFillMode(ControlRequest, frozen=True, tag="set-fill-mode"):
    """Set how fast the agent caches an image completely."""

    image_id: str
    mode: FillMode
    deadline_s: Deadline = 0.0  # of an urgent image, in seconds from now; 0: as fast as possible

    def __post_init__(self) -> None:
        if self.deadline_s and self.mode is not FillMode.URGENT:
            raise ValueError(f"fill mode {self.mode} takes no deadline")


class PowerOff(ControlRequest, frozen=True, tag="power-off"):
    """Nova is powering an instance off: fail its guest's pending reads."""

    instance_id: str
    is_cancelled: bool = False  # the instance stays on


class Zeros(_OfImage, frozen=True, tag="zeros"):
    """Returns which chunks of an image are zeros (:meth:`ChunkMap.zero_bitmap`)."""


class Flatten(ControlRequest, frozen=True, tag="flatten"):
    """Copy all data that a disk reads from its image into the disk's file."""

    disk_id: str


class MakeDisk(ControlRequest, frozen=True, tag="make-disk"):
    """Create a writable disk from an image, padded with zeros to ``size_bytes``."""

    disk_id: str
    image_id: str
    size_bytes: int | None = None


class DropDisk(ControlRequest, frozen=True, tag="drop-disk"):
    """Delete a disk that is not open."""

    disk_id: str


class AttachCheckpoint(ControlRequest, frozen=True, tag="attach-checkpoint"):
    """Create a read-only qcow2 disk from a checkpoint; its data is fetched on demand."""

    checkpoint_id: str  # also the ID of the disk
    instance_id: str
    image_id: str
    owner: str  # the host that took the checkpoint
    vault_disk: str  # ID of the disk in vaults
    manifest_name: str
    holders: tuple[tuple[str, str], ...]  # names and addresses of the hosts whose vaults have it
    key: str
    backing_file: str  # path of the raw base image
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0  # largest disk; 0: the limit for images


class ListRestoredDisks(ControlRequest, frozen=True, tag="list-restored-disks"):
    """Returns disks created from checkpoints, and their progress."""


class CountFallback(ControlRequest, frozen=True, tag="count-fallback"):
    """Count fallbacks of Nova since the last report."""

    reason: Fallback
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class SetRing(ControlRequest, frozen=True, tag="set-ring"):
    """Use this v-node table (JSON) if its epoch is higher."""

    ring: msgspec.Raw


class SetDiskPolicy(ControlRequest, frozen=True, tag="set-disk-policy"):
    """Set the scheduling policy of the agent's disk I/O."""

    policy: str


class GetRing(ControlRequest, frozen=True, tag="ring"):
    """Returns the v-node table in force."""


class Reply(msgspec.Struct, tag_field="reply", frozen=True):
    """Base class of replies."""


class Done(Reply, frozen=True, tag="done"):
    """The request succeeded."""

    result: Any = None


class Failed(Reply, frozen=True, tag="failed"):
    """The request failed; ``kind`` is the error's class in acstor_common.errors."""

    kind: str
    error: str


class Progress(Reply, frozen=True, tag="progress"):
    """The request is in progress."""

    done_bytes: int
    total_bytes: int


AnyRequest = (
    Status
    | Timelines
    | AttachImage
    | DetachImage
    | PreSeed
    | Unpin
    | SetFillMode
    | PowerOff
    | Zeros
    | Flatten
    | MakeDisk
    | DropDisk
    | AttachCheckpoint
    | ListRestoredDisks
    | CountFallback
    | SetRing
    | SetDiskPolicy
    | GetRing
)
AnyReply = Done | Failed | Progress

_request_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_reply_decoder: msgspec.json.Decoder[AnyReply] = msgspec.json.Decoder(AnyReply)
_encoder = msgspec.json.Encoder()


def encode(message: ControlRequest | Reply) -> bytes:
    r"""Return a message as a line.

    >>> encode(AttachImage("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"))
    b'{"op":"attach-image","image_id":"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"}\n'
    """
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> AnyRequest:
    """Return the request in a line, or raise RemoteProtocolError."""
    try:
        return _request_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise errors.RemoteProtocolError("control client", str(e)) from e


def decode_reply(line: bytes) -> AnyReply:
    """Return the reply in a line, or raise RemoteProtocolError."""
    try:
        return _reply_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise errors.RemoteProtocolError("acstor-agent", str(e)) from e
