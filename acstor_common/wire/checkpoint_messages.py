# SPDX-License-Identifier: Apache-2.0
"""What checkpoint daemons and the decision service say to each other over the message bus.

A daemon calls ``REGISTER_CHECKPOINT`` when all copies of a checkpoint are where they are to be:
the payload is a :class:`SealedMessage`, sealed as a host's samples are, for the purpose
``checkpoint``, and in it a :class:`RegisteredCheckpoint`, which nobody reads on the way, for it
has the disk's key.  With what it is concealed says the answer to ``SERVICE_KEY``: a
:class:`ServiceKey`, sealed by the service. The answer is an :class:`CheckpointResponse`, sealed by
    it as well: what it does
not say to stay is dropped.  To learn what may go a daemon calls ``KEPT_CHECKPOINTS`` with an
:class:`RetentionRequest`, sealed likewise, and gets such an answer; to learn how often checkpoints
    are wanted ``INTERVALS`` with
an :class:`IntervalRequest`, and gets an :class:`IntervalResponse`, sealed for the purpose
``checkpoint intervals``.  To learn who is gone that it keeps checkpoints for
a host calls ``OWNERS`` with an :class:`OwnerRequest`, and gets a :class:`OwnerResponse`, sealed
for the purpose ``checkpoint owners``.  The service calls
``CHECKPOINT_WANTED`` of the daemon of one host (server of ``DAEMON_TOPIC``): a
:class:`CheckpointRequest`, sealed for the purpose ``checkpoint wanted``.  The answer is a
    :class:`CheckpointReply`, sealed by
the host for the purpose ``checkpoint heard``.

Nothing is used before its signature was checked, and a copy of an old message
means nothing: it says when it was sent, and by or to which host.
"""

from typing import Annotated
from typing import Final

import msgspec

from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.model import patterns
from acstor_common.wire import decision_messages

DAEMON_TOPIC: Final = "acstor-checkpoint"
REGISTER_CHECKPOINT: Final = "register_checkpoint"
KEPT_CHECKPOINTS: Final = "kept_checkpoints"
INTERVALS: Final = "checkpoint_intervals"
OWNERS: Final = "checkpoint_owners"
SERVICE_KEY: Final = "checkpoint_service_key"
CHECKPOINT_WANTED: Final = "checkpoint_wanted"

MAX_HOLDERS: Final = 16
MAX_KEPT: Final = 16_384
MAX_INTERVALS: Final = 4096
"""Servers of one host whose metadata says how often."""
MAX_OWNERS: Final = 1024
MAX_FAILING: Final = 32
MAX_BOX: Final = 64 * 1024
MAX_INTERVAL_S: Final = 366 * 86400
_Interval = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTERVAL_S)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=decision_messages.MAX_NUMBER)]


class Holder(msgspec.Struct, frozen=True):
    """A host that keeps a checkpoint.

    :param address: of its vault, ``ip:port``
    """

    host: str
    address: Annotated[str, msgspec.Meta(max_length=64)]

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        addresses.parse_remote(self.address)


class RegisteredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose copies are all there.

    :param checkpoint_id: a UUID, chosen by the host
    :param host: that took it, and sends this
    :param vault_disk: what the holders know the disk by
    :param image_id: that the disk began as
    :param taken_ms: since 1970, wall clock of the host
    :param consistency: ``crash`` or ``filesystem``
    :param number: counts the checkpoints of the vault's disk, from 1 on
    :param size_bytes: of the disk
    :param changed_bytes: what of it differs from the image
    :param sent_bytes: what went to the holders for it
    :param interval_s: how often one is promised; 0: nothing is
    :param key: of the disk; it opens all that the holders have of it
    :param sent_s: wall clock when this was sent
    """

    checkpoint_id: str
    host: str
    instance_id: str
    project_id: Annotated[str, msgspec.Meta(max_length=64)]
    vault_disk: str
    image_id: str
    taken_ms: decision_messages.Bytes
    consistency: Annotated[str, patterns.full_match("crash|filesystem")]
    number: _Number
    size_bytes: decision_messages.Bytes
    changed_bytes: decision_messages.Bytes
    sent_bytes: decision_messages.Bytes
    interval_s: _Interval = 0
    manifest_name: patterns.Hex64
    holders: Annotated[tuple[Holder, ...], msgspec.Meta(min_length=1, max_length=MAX_HOLDERS)]
    key: patterns.Hex64
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        _check_ids(self.checkpoint_id, self.instance_id, self.vault_disk, self.image_id)
        if self.host in {holder.host for holder in self.holders}:
            raise ValueError("the host that took a checkpoint is none that keeps it")


def _check_ids(*named: str) -> None:
    for one in named:
        if ids.parse_image_id(one) != one:
            raise ValueError(f"not written as ids are: {one}")


class ServiceKey(msgspec.Struct, frozen=True):
    """What a checkpoint is concealed with.

    :param public: see :func:`concealing.public_of`, in hex
    """

    public: patterns.Hex64


class SealedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`RegisteredCheckpoint` that only the service can read.

    :param host: that took the checkpoint, and sends this
    :param box: see :func:`concealing.conceal`, in base64; bound to the host's name
    :param sent_s: wall clock when this was sent
    """

    host: str
    box: Annotated[str, msgspec.Meta(max_length=MAX_BOX)]
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)


class RetainedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is to stay where it is kept."""

    checkpoint_id: str
    instance_id: str
    vault_disk: str
    manifest_name: patterns.Hex64

    def __post_init__(self) -> None:
        _check_ids(self.checkpoint_id, self.instance_id, self.vault_disk)


class Response(msgspec.Struct, frozen=True):
    """What every answer of the service says.

    :param why: it is not registered, or nothing can be told; empty: it is
    :param may_pass: asking again later may help
    :param host: that is answered
    :param sent_s: of the question: it tells that from others of this host; 0: it made no sense
    """

    why: str = ""
    may_pass: bool = False
    host: str = ""
    sent_s: decision_messages.Moment = 0.0


class CheckpointResponse(Response, frozen=True):
    """What the service says of checkpoints.

    :param kept: those that stay: of the instance, or all of a host that asked
    :param is_complete: there are no others
    """

    kept: Annotated[tuple[RetainedCheckpoint, ...], msgspec.Meta(max_length=MAX_KEPT)] = ()
    is_complete: bool = True


class ServerInterval(msgspec.Struct, frozen=True):
    """How often checkpoints of a server are taken, in seconds; 0: never."""

    instance_id: str
    interval_s: _Interval

    def __post_init__(self) -> None:
        ids.parse_image_id(self.instance_id)


class IntervalResponse(Response, frozen=True):
    """How often checkpoints of a host's servers are wanted.

    :param of_host: seconds, as the host's aggregates say; 0: never; None: they say nothing
    :param of_servers: those alone whose metadata says something that counts
    """

    of_host: _Interval | None = None
    of_servers: Annotated[tuple[ServerInterval, ...], msgspec.Meta(max_length=MAX_INTERVALS)] = ()


class RetentionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A host's question which of its checkpoints stay."""

    host: str
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)


class Failing(msgspec.Struct, frozen=True):
    """A server whose last attempts at a checkpoint failed, or a vault that has an issue.

    :param instance_id: of the server; empty: it is the vault of the host
    :param reason: a word for operators
    :param holder: the host by which it failed; empty: by none
    """

    instance_id: str
    reason: Annotated[str, patterns.full_match("[a-z_]{1,32}")]
    holder: str = ""

    def __post_init__(self) -> None:
        if self.instance_id:
            ids.parse_image_id(self.instance_id)
        if self.holder:
            ids.parse_host_id(self.holder)


class IntervalRequest(RetentionRequest, frozen=True, kw_only=True):
    """A host's question how often checkpoints are wanted.

    :param failing: servers of the host and its vault, some of them where there are more
    """

    failing: Annotated[tuple[Failing, ...], msgspec.Meta(max_length=MAX_FAILING)] = ()


_Hosts = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_OWNERS)]


class OwnerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A host's question which hosts, for which it keeps checkpoints, are gone for good."""

    host: str
    owners: _Hosts
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        for host in (self.host, *self.owners):
            ids.parse_host_id(host)


class OwnerResponse(Response, frozen=True):
    """The answer.

    :param gone: those of the hosts that are revoked or forgotten, and have no checkpoint any more
    """

    gone: _Hosts = ()


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is wanted now.

    :param request: its number
    :param host: whose daemon is to take it
    :param given_s: wall clock when this was sent
    """

    request: decision_messages.Word
    instance_id: str
    host: str
    given_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_image_id(self.instance_id)
        ids.parse_host_id(self.host)


class CheckpointReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says of a checkpoint that is wanted of it.

    :param request: that it answers
    :param why: none will be taken; empty: it has the next turn
    :param number: of the disk's checkpoint that was begun last; 0: none was.  The moment of each
        later one is after the request
    """

    request: decision_messages.Word
    host: str
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    number: Annotated[int, msgspec.Meta(ge=0, le=decision_messages.MAX_NUMBER)] = 0
