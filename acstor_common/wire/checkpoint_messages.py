# SPDX-License-Identifier: Apache-2.0
"""Messages between checkpoint daemons and the decision service on the bus.

Daemons call ``SERVICE_KEY`` for the encryption of a :class:`SealedMessage`, ``REGISTER_CHECKPOINT``
when all replicas are stored, ``KEPT_CHECKPOINTS``, ``INTERVALS`` and ``OWNERS``.  Checkpoints that
a :class:`CheckpointResponse` does not list are deleted.  The service calls ``CHECKPOINT_WANTED`` of
one daemon (``DAEMON_TOPIC``).  All messages are signed, with time and host against replay.
"""

from typing import Annotated
from typing import Final

import msgspec

from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.model import text_constraints
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
MAX_INTERVALS: Final = 4096  # servers of one host with an interval in their metadata
MAX_OWNERS: Final = 1024
MAX_FAILING: Final = 32
MAX_BOX: Final = 64 * 1024
MAX_INTERVAL_S: Final = 366 * 86400
_Interval = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTERVAL_S)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=decision_messages.MAX_NUMBER)]


class RegisteredHolder(msgspec.Struct, frozen=True):
    """A host that keeps a checkpoint, and the ``ip:port`` of its vault."""

    host: str
    address: Annotated[str, msgspec.Meta(max_length=64)]

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        addresses.parse_remote(self.address)


class RecoveryData(msgspec.Struct, frozen=True, kw_only=True):
    """Data from which an agent makes a disk of a checkpoint: REST's ``CheckpointRecovery``."""

    checkpoint_id: str
    instance_id: str
    image_id: str
    owner: str
    vault_disk: str
    manifest_name: str
    holders: list[RegisteredHolder]
    key: str


class RegisteredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with all replicas stored."""

    checkpoint_id: str  # a UUID, chosen by the host
    host: str
    instance_id: str
    project_id: Annotated[str, msgspec.Meta(max_length=64)]
    vault_disk: str  # ID of the disk in vaults
    image_id: str  # base image of the disk
    taken_ms: decision_messages.Bytes  # since 1970, wall clock of the host
    consistency: Annotated[str, text_constraints.full_match("crash|filesystem")]
    number: _Number  # of the checkpoint in the vault's disk, from 1
    size_bytes: decision_messages.Bytes
    changed_bytes: decision_messages.Bytes  # data that differs from the image
    sent_bytes: decision_messages.Bytes  # data sent to the holders
    interval_s: _Interval = 0  # promised interval; 0: none
    manifest_name: text_constraints.Hex64
    holders: Annotated[
        tuple[RegisteredHolder, ...], msgspec.Meta(min_length=1, max_length=MAX_HOLDERS)
    ]
    key: text_constraints.Hex64  # of the disk; decrypts all that the holders store of it
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        _check_ids(self.checkpoint_id, self.instance_id, self.vault_disk, self.image_id)
        if self.host in {holder.host for holder in self.holders}:
            raise ValueError("the host that took a checkpoint cannot be its holder")


def _check_ids(*named: str) -> None:
    for text in named:
        if ids.parse_image_id(text) != text:
            raise ValueError(f"not an id in its canonical form: {text}")


class ServiceKey(msgspec.Struct, frozen=True):
    """The service's public key for :func:`sealed_box.encrypt`, in hex."""

    public: text_constraints.Hex64


class SealedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`RegisteredCheckpoint` in a sealed box (base64), bound to the host's name."""

    host: str
    box: Annotated[str, msgspec.Meta(max_length=MAX_BOX)]
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)


class RetainedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that its holders must retain."""

    checkpoint_id: str
    instance_id: str
    vault_disk: str
    manifest_name: text_constraints.Hex64

    def __post_init__(self) -> None:
        _check_ids(self.checkpoint_id, self.instance_id, self.vault_disk)


class Response(msgspec.Struct, frozen=True):
    """Common fields of the service's responses."""

    why: str = ""  # error; empty: success
    is_transient: bool = False  # a later attempt may succeed
    host: str = ""
    sent_s: decision_messages.Moment = 0.0  # of the request; 0: it was malformed


class CheckpointResponse(Response, frozen=True):
    """Checkpoints of the instance or host that its holders must retain."""

    kept: Annotated[tuple[RetainedCheckpoint, ...], msgspec.Meta(max_length=MAX_KEPT)] = ()
    is_complete: bool = True


class ServerInterval(msgspec.Struct, frozen=True):
    """Checkpoint interval of a server in seconds; 0: never."""

    instance_id: str
    interval_s: _Interval

    def __post_init__(self) -> None:
        ids.parse_image_id(self.instance_id)


class IntervalResponse(Response, frozen=True):
    """A host's interval in s (0: never; None: no aggregate sets one), and its servers' own."""

    of_host: _Interval | None = None
    of_servers: Annotated[tuple[ServerInterval, ...], msgspec.Meta(max_length=MAX_INTERVALS)] = ()


class RetentionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks which checkpoints of a host to retain."""

    host: str
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)


class Failing(msgspec.Struct, frozen=True):
    """A server whose last checkpoints failed, or a vault with an issue."""

    instance_id: str  # empty: the host's vault
    reason: Annotated[str, text_constraints.full_match("[a-z_]{1,32}")]
    holder: str = ""  # the holder at fault; empty: none

    def __post_init__(self) -> None:
        if self.instance_id:
            ids.parse_image_id(self.instance_id)
        if self.holder:
            ids.parse_host_id(self.holder)


class IntervalRequest(RetentionRequest, frozen=True, kw_only=True):
    """Asks for checkpoint intervals, and reports failures."""

    failing: Annotated[tuple[Failing, ...], msgspec.Meta(max_length=MAX_FAILING)] = ()


_Hosts = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_OWNERS)]


class OwnerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks which owners of checkpoints in a vault were removed from the cloud."""

    host: str
    owners: _Hosts
    sent_s: decision_messages.Moment

    def __post_init__(self) -> None:
        for host in (self.host, *self.owners):
            ids.parse_host_id(host)


class OwnerResponse(Response, frozen=True):
    """Revoked or removed hosts without checkpoints."""

    gone: _Hosts = ()


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a checkpoint now."""

    request: decision_messages.Word
    instance_id: str
    host: str
    given_s: decision_messages.Moment

    def __post_init__(self) -> None:
        ids.parse_image_id(self.instance_id)
        ids.parse_host_id(self.host)


class CheckpointReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a CheckpointRequest; checkpoints above ``number`` have all writes before this."""

    request: decision_messages.Word
    host: str
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""  # of a rejection; empty: queued
    number: Annotated[int, msgspec.Meta(ge=0, le=decision_messages.MAX_NUMBER)] = 0
