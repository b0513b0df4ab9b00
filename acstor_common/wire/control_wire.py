# SPDX-License-Identifier: Apache-2.0
"""What is said on the agent's control socket: JSON, one message a line.

A client sends one request and reads replies until one that is not Progress.
The tags (``op`` and ``reply``) are strings that others depend on: they are
never changed and never used for something else.

Agent and client may be of different versions.  A request that an agent does not know, or a field
of one, is refused, since it might matter.  So a field that is added has a default that means what
was done without it, and one that has its default is not sent; a field is never taken away.
Replies are read without what is not known of them.
"""

import enum
from typing import Annotated
from typing import Any

import msgspec

from acstor_common import errors

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_HEAD_BYTES = 1024 * 1024
MAX_HASH_TEXT = 128
MAX_DEADLINE_S = 366 * 86400.0
"""The latest deadline: a year from now."""
Deadline = Annotated[float, msgspec.Meta(ge=0, le=MAX_DEADLINE_S)]


class Fallback(enum.StrEnum):
    """Why Nova did for a disk what it does without acstor."""

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
    HOLES_UNKNOWN = "holes-unknown"
    GATEWAY_UNREACHABLE = "gateway-unreachable"
    GATEWAY_REFUSED = "gateway-refused"
    CHANGES_UNREADABLE = "changes-unreadable"
    SNAPSHOT_FORMAT = "snapshot-format"
    GUEST_SUSPENDED = "guest-suspended"


class FillMode(enum.StrEnum):
    """How fast the agent fills the cache with an image, as the operator wishes."""

    NORMAL = "normal"  # at the rate that the link can spare
    URGENT = "urgent"  # before other images, by a deadline or as fast as possible
    PAUSED = "paused"


class Request(
    msgspec.Struct, tag_field="op", forbid_unknown_fields=True, omit_defaults=True, frozen=True
):
    """Base of all requests."""


class Status(Request, frozen=True, tag="status"):
    """What the agent does and has done."""


class Timelines(Request, frozen=True, tag="timelines"):
    """Where the time of boots on this host went.

    :param wanted_id: of an instance of Nova's or of an image; empty: of all
    """

    wanted_id: str = ""


class Ensure(Request, frozen=True, tag="ensure"):
    """Attach an image now, so that opening it later waits for nobody.

    :param head_bytes: what is to be here of its beginning, so that looking at that waits for nobody
    :param os_hash_algo: of Glance's hash of the image, if that is known; a chunk map that was made
        for another hash is refused, since an id may be used again
    :param os_hash_value: the hash, in hexadecimal digits
    """

    image_id: str
    head_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_HEAD_BYTES)] = 0
    os_hash_algo: Annotated[str, msgspec.Meta(max_length=MAX_HASH_TEXT)] = ""
    os_hash_value: Annotated[str, msgspec.Meta(max_length=MAX_HASH_TEXT)] = ""


class Drop(Request, frozen=True, tag="drop"):
    """Forget an image that no guest uses."""

    image_id: str


class PreSeed(Request, frozen=True, tag="pre-seed"):
    """Bring all of an image to this host, behind everything that guests wait for."""

    image_id: str


class Unpin(Request, frozen=True, tag="unpin"):
    """Keep an image only as long as it is used, though it was pre-seeded."""

    image_id: str


class SetFillMode(Request, frozen=True, tag="set-fill-mode"):
    """Set how fast the agent caches an image completely.

    :param deadline_s: of an urgent image, in seconds from now; 0: as fast as possible
    """

    image_id: str
    mode: FillMode
    deadline_s: Deadline = 0.0

    def __post_init__(self) -> None:
        if self.deadline_s and self.mode is not FillMode.URGENT:
            raise ValueError(f"fill mode {self.mode} takes no deadline")


class SwitchedOff(Request, frozen=True, tag="switched-off"):
    """An instance of Nova's is being switched off: its guest is to wait for nothing any more.

    :param is_taken_back: it stays on after all
    """

    instance_id: str
    is_taken_back: bool = False


class Zeros(Request, frozen=True, tag="zeros"):
    """Which chunks of an image have only zeros, as :meth:`ChunkMap.zero_bitmap` says it."""

    image_id: str


class Flatten(Request, frozen=True, tag="flatten"):
    """Copy all data that a disk still reads from its image into the disk's own file."""

    disk_id: str


class MakeDisk(Request, frozen=True, tag="make-disk"):
    """Make a writable disk that begins as an image, with zeros behind its end.

    :param size_bytes: length of the disk, at least the image's, which it is if not given
    """

    disk_id: str
    image_id: str
    size_bytes: int | None = None


class DropDisk(Request, frozen=True, tag="drop-disk"):
    """Delete a disk that nobody has open, with all that was written to it."""

    disk_id: str


class AttachCheckpoint(Request, frozen=True, tag="attach-checkpoint"):
    """Make a disk of a checkpoint, which can be read at once; what it lacks comes as it is read.

    It is a qcow2 file that nobody writes to, and lies on what has the image.

    :param checkpoint_id: that the decision service gave it; the disk has the same
    :param instance_id: whose disk it was
    :param image_id: that the disk began as
    :param owner: the host that took the checkpoint
    :param vault_disk: what the holders know the disk by
    :param manifest_name: 64 hex digits
    :param holders: names and addresses of hosts that keep it
    :param key: of the disk, 64 hex digits
    :param backing_file: path of what has the image, raw
    :param max_bytes: a larger disk is refused; 0: what images are served up to
    """

    checkpoint_id: str
    instance_id: str
    image_id: str
    owner: str
    vault_disk: str
    manifest_name: str
    holders: tuple[tuple[str, str], ...]
    key: str
    backing_file: str
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0


class Recovered(Request, frozen=True, tag="recovered"):
    """Which disks were made of checkpoints, and how far they are."""


class CountFallback(Request, frozen=True, tag="count-fallback"):
    """Count that Nova fell back to what it does without acstor.

    :param times: how often since it was last told
    """

    reason: Fallback
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class SetRing(Request, frozen=True, tag="set-ring"):
    """Use this v-node table (the ring's JSON format) from now on, if its epoch is higher."""

    ring: msgspec.Raw


class SetDiskPolicy(Request, frozen=True, tag="set-disk-policy"):
    """Let this policy decide from now on in which order the agent uses its own disk."""

    policy: str


class GetRing(Request, frozen=True, tag="ring"):
    """The v-node table in force."""


class Reply(msgspec.Struct, tag_field="reply", frozen=True):
    """Base of all replies."""


class Done(Reply, frozen=True, tag="done"):
    """The request was carried out."""

    result: Any = None


class Failed(Reply, frozen=True, tag="failed"):
    """The request was not carried out.

    :param kind: name of the error's class in acstor_common.errors
    """

    kind: str
    error: str


class Progress(Reply, frozen=True, tag="progress"):
    """The request is being carried out."""

    done_bytes: int
    total_bytes: int


AnyRequest = (
    Status
    | Timelines
    | Ensure
    | Drop
    | PreSeed
    | Unpin
    | SetFillMode
    | SwitchedOff
    | Zeros
    | Flatten
    | MakeDisk
    | DropDisk
    | AttachCheckpoint
    | Recovered
    | CountFallback
    | SetRing
    | SetDiskPolicy
    | GetRing
)
AnyReply = Done | Failed | Progress

_request_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_reply_decoder: msgspec.json.Decoder[AnyReply] = msgspec.json.Decoder(AnyReply)
_encoder = msgspec.json.Encoder()


def encode(message: Request | Reply) -> bytes:
    r"""Return a message as a line.

    >>> encode(Ensure("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"))
    b'{"op":"ensure","image_id":"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"}\n'
    """
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> AnyRequest:
    """Return the request in a line.

    :raises errors.RemoteProtocolError: it is not a request
    """
    try:
        return _request_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise errors.RemoteProtocolError("control client", str(e)) from e


def decode_reply(line: bytes) -> AnyReply:
    """Return the reply in a line.

    :raises errors.RemoteProtocolError: it is not a reply
    """
    try:
        return _reply_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise errors.RemoteProtocolError("acstor-agent", str(e)) from e
