# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of servers' disks: what there is, another one now, and what recovery needs.

The key of a disk is in one answer alone, that of ``recovery``, and who gets that can
read all that the disk had.
"""

import datetime
import http
import random
from typing import Annotated

import msgspec

from acstor_common import checkpoint_messages
from acstor_common import errors
from acstor_common import ids
from acstor_common import sealed
from acstor_common import signing
from acstor_decision import nova
from acstor_decision.api import image_actions
from acstor_decision.api import operation
from acstor_decision.db import checkpoints
from acstor_decision.db import models

SEES = f"{operation.READER} or {operation.RECOVERY}"
"""Who recovers looks first which checkpoints there are."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a server's disk.

    :param host: that the server was on
    :param image_id: that the disk began as
    :param taken_at: by the clock of that host
    :param registered_at: when all its copies were there
    :param consistency: crash: as after a power failure; filesystem: the guest held them still
    :param number: counts the checkpoints of the disk
    :param size_bytes: of the disk
    :param changed_bytes: what of it differs from the image
    :param sent_bytes: what went to the holders for it
    :param interval_s: how often one was promised; 0: not at all
    :param holders: hosts that keep it
    :param forgotten_from: since when Nova does not know the server; null: it does
    :param recovered_at: when it was given out for a recovery that may not be over; null: it was not
    """

    checkpoint_id: str
    instance_id: str
    project_id: str
    host: str
    image_id: str
    taken_at: datetime.datetime
    registered_at: datetime.datetime
    consistency: str
    number: int
    size_bytes: int
    changed_bytes: int
    sent_bytes: int
    interval_s: int
    holders: list[str]
    forgotten_from: datetime.datetime | None
    recovered_at: datetime.datetime | None


class Checkpoints(msgspec.Struct, frozen=True):
    """Checkpoints, the newest first."""

    checkpoints: list[Checkpoint]


class CheckpointPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checkpoints are wanted.

    :param instance: of this server alone
    :param host: of servers that were on this host
    :param limit: checkpoints at most
    :param marker: the last one that is known already; the answer begins behind it
    """

    instance: Annotated[str, msgspec.Meta(max_length=36)] = ""
    host: Annotated[str, msgspec.Meta(max_length=255)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    marker: Annotated[str, msgspec.Meta(max_length=36)] = ""


class CheckpointRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told to make a disk of a checkpoint.

    :param owner: the host that took it
    :param vault_disk: what the holders know the disk by
    :param key: of the disk
    """

    checkpoint_id: str
    instance_id: str
    image_id: str
    owner: str
    vault_disk: str
    manifest_name: str
    holders: list[checkpoint_messages.Holder]
    key: str
    taken_at: datetime.datetime


class WantedCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which server a checkpoint is wanted."""

    instance_id: str


class AskedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The host that was asked for a checkpoint, and gives it the next turn.

    :param latest: the newest one that there is now; null: there is none
    :param after: one of this host with a higher number is what was asked for: its moment is later
    """

    request: int
    instance_id: str
    host: str
    latest: str | None
    after: int


class Deletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a checkpoint is deleted.

    :param force: even while a host may be recovering its server from it
    """

    force: bool = False


class ForgottenCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was deleted; its host takes the copies away when it asks next."""

    checkpoint_id: str


def every(call: operation.Call) -> Checkpoints:
    """Answer with checkpoints."""
    page = call.query
    if page.instance:
        operation.server_id(page.instance)
    rows = call.store.checkpoints(page.marker, page.limit, page.instance.lower(), page.host)
    return Checkpoints([_shown(row) for row in rows])


def one(call: operation.Call) -> Checkpoint:
    """Answer with one checkpoint."""
    return _shown(_row(call))


def recovery(call: operation.Call) -> CheckpointRecovery:
    """Answer with what recovery needs, the key too; it stays as long as that may take."""
    checkpoint_id = _id(call)
    row = call.store.note_recovery(checkpoint_id, call.wall())
    if row is None:
        raise _unknown(checkpoint_id)
    return CheckpointRecovery(
        checkpoint_id=row.checkpoint_id,
        instance_id=row.instance_id,
        image_id=row.image_id,
        owner=row.host,
        vault_disk=row.vault_disk,
        manifest_name=row.manifest_name,
        holders=checkpoints.holders_of(row),
        key=row.disk_key,
        taken_at=_moment(row.taken_ms / 1000),
    )


def create(call: operation.Call) -> AskedCheckpoint:
    """Have the daemon of the server's host asked for a checkpoint."""
    instance_id = ids.ImageId(operation.server_id(call.body.instance_id))
    if call.nova is None:
        raise nova.NovaUnreachable("nobody is asked here")
    server = call.nova.server(instance_id)
    if server is None:
        raise operation.not_found(f"server {instance_id}")
    if not server.host:
        why = f"server {instance_id} is on no host"
        raise operation.Refused(http.HTTPStatus.CONFLICT, why)
    request = random.getrandbits(image_actions.REQUEST_BITS)
    latest = call.store.checkpoints("", 1, instance_id, "")
    heard = _heard(call, instance_id, server.host, request)
    if heard.why:
        raise operation.Refused(http.HTTPStatus.CONFLICT, f"{server.host}: {heard.why}")
    return AskedCheckpoint(
        request=request,
        instance_id=instance_id,
        host=server.host,
        latest=latest[0].checkpoint_id if latest else None,
        after=heard.number,
    )


def _heard(
    call: operation.Call, instance_id: str, host: str, request: int
) -> checkpoint_messages.Heard:
    """Ask the daemon of a host; return what it says, once it has proven who it is."""
    try:
        signed = call.bus.want_checkpoint(instance_id, host, request)
        if signed is None:
            why = f"no acstor-checkpointd of {host} answers; its log there says more"
            raise operation.Refused(http.HTTPStatus.CONFLICT, why)
        trust = call.authority.trust()
        certificate, heard = sealed.open_from_host(
            signed, signing.CHECKPOINT_HEARD, trust.ca, checkpoint_messages.Heard
        )
        fault = trust.fault(certificate, call.wall())
        if not fault and (certificate.host, heard.host, heard.request) != (host, host, request):
            fault = "it is to another request, or of another host"
    except (errors.NotAuthentic, errors.RemoteProtocolError) as e:
        fault = str(e)
    if fault:
        raise operation.Refused(http.HTTPStatus.CONFLICT, f"the answer of {host}: {fault}")
    return heard


def delete(call: operation.Call) -> ForgottenCheckpoint:
    """Forget a checkpoint that no host may be recovering its server from."""
    row, now_s = _row(call), call.wall()
    if not call.body.force and checkpoints.is_recovered(row, now_s):
        assert row.recovered_s is not None
        why = (
            f"checkpoint {row.checkpoint_id} was given out for recovery at "
            f"{_moment(row.recovered_s)}, and the host that recovers may lack some of it. It can "
            f"be deleted when the server has a checkpoint of that host, and from "
            f"{_moment(row.recovered_s + checkpoints.RECOVERY_S)} on; --force deletes it now"
        )
        raise operation.Refused(http.HTTPStatus.CONFLICT, why)
    call.store.forget_checkpoint(row.checkpoint_id)
    return ForgottenCheckpoint(row.checkpoint_id)


def _row(call: operation.Call) -> models.Checkpoint:
    checkpoint_id = _id(call)
    row = call.store.checkpoint(checkpoint_id)
    if row is None:
        raise _unknown(checkpoint_id)
    return row


def _id(call: operation.Call) -> str:
    return operation.server_id(call.path["checkpoint_id"])


def _unknown(checkpoint_id: str) -> operation.Refused:
    return operation.not_found(f"checkpoint {checkpoint_id}")


def _shown(row: models.Checkpoint) -> Checkpoint:
    return Checkpoint(
        checkpoint_id=row.checkpoint_id,
        instance_id=row.instance_id,
        project_id=row.project_id,
        host=row.host,
        image_id=row.image_id,
        taken_at=_moment(row.taken_ms / 1000),
        registered_at=_moment(row.told_s),
        consistency=row.consistency,
        number=row.number,
        size_bytes=row.size_bytes,
        changed_bytes=row.changed_bytes,
        sent_bytes=row.sent_bytes,
        interval_s=row.interval_s,
        holders=[holder.host for holder in checkpoints.holders_of(row)],
        forgotten_from=None if row.gone_s is None else _moment(row.gone_s),
        recovered_at=None if row.recovered_s is None else _moment(row.recovered_s),
    )


def _moment(at_s: float) -> datetime.datetime:
    """Return a moment; one that no calendar has is its end."""
    try:
        return datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.datetime.max.replace(tzinfo=datetime.UTC)


_ONE = "/v1/checkpoints/{checkpoint_id}"
OPERATIONS = (
    operation.Operation(
        "checkpoint:list",
        "GET",
        "/v1/checkpoints",
        "List the checkpoints of servers",
        Checkpoints,
        every,
        SEES,
        query=CheckpointPage,
    ),
    operation.Operation("checkpoint:get", "GET", _ONE, "Show a checkpoint", Checkpoint, one, SEES),
    operation.Operation(
        "checkpoint:create",
        "POST",
        "/v1/checkpoints",
        "Have a checkpoint of a server taken now",
        AskedCheckpoint,
        create,
        operation.ADMIN,
        body=WantedCheckpoint,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.Operation(
        "checkpoint:delete",
        "POST",
        f"{_ONE}/delete",
        "Delete a checkpoint",
        ForgottenCheckpoint,
        delete,
        operation.ADMIN,
        body=Deletion,
    ),
    operation.Operation(
        "checkpoint:recovery",
        "GET",
        f"{_ONE}/recovery",
        "Show what a disk is made of a checkpoint with, its key too",
        CheckpointRecovery,
        recovery,
        operation.RECOVERY,
    ),
)
