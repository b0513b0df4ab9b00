# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of servers' disks; only the response of ``recovery`` has the disk's secret key."""

import datetime
import http
import random
from typing import Annotated

import msgspec

from acstor_common import errors
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import signed_messages
from acstor_decision import nova_client
from acstor_decision.api import operation
from acstor_decision.api.v1 import image_actions
from acstor_decision.db import checkpoint_queries
from acstor_decision.db import models

READ_RULE = f"{operation.READER} or {operation.RECOVERY}"
"""Who may read checkpoints: a recovery lists them first."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a server's disk.

    :param host: host of the server
    :param image_id: backing image of the disk
    :param taken_at: by the clock of that host
    :param registered_at: time when all copies were complete
    :param consistency: crash: as after a power failure; filesystem: the guest froze its filesystems
    :param number: sequence number among the checkpoints of the disk
    :param size_bytes: size of the disk
    :param changed_bytes: data of the disk that differs from the image
    :param sent_bytes: data sent to the holders for this checkpoint
    :param interval_s: largest interval between checkpoints of the server; 0: none is promised
    :param holders: hosts that keep a copy
    :param server_deleted_at: time when the service saw that Nova had deleted the server; null: the
        server exists
    :param recovered_at: start of a recovery that may not be over; null: there is none
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
    server_deleted_at: datetime.datetime | None
    recovered_at: datetime.datetime | None


class Checkpoints(msgspec.Struct, frozen=True):
    """Checkpoints, the newest first."""

    checkpoints: list[Checkpoint]


class CheckpointPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters and page of the list."""

    instance: text_constraints.OptionalUuid = ""
    host: Annotated[str, text_constraints.text_without_nul(255)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    marker: Annotated[str, text_constraints.text_without_nul(36)] = ""  # last id of previous page


class CheckpointRecovery(checkpoint_messages.RecoveryData, frozen=True, kw_only=True):
    """Data that an agent needs to make a disk from a checkpoint.

    :param owner: host that took the checkpoint
    :param vault_disk: name of the disk at the holders
    :param key: key of the disk
    """

    taken_at: datetime.datetime


class CheckpointRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to take a checkpoint of a server."""

    instance_id: text_constraints.Uuid


class AcceptedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that the server's host takes next.

    :param latest: newest checkpoint now; null: there is none
    :param previous_number: the requested one is this host's next with a higher number
    """

    request: int
    instance_id: str
    host: str
    latest: str | None
    previous_number: int


class DeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a deletion.

    :param force: delete the checkpoint even while a host may recover its server from it
    """

    force: bool = False


class DeletedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was deleted; its host deletes the copies later."""

    checkpoint_id: str


def list_checkpoints(call: operation.Call) -> Checkpoints:
    """Return checkpoints."""
    page = call.query
    rows = call.store.list_checkpoints(page.marker, page.limit, page.instance.lower(), page.host)
    return Checkpoints([_shown(row) for row in rows])


def show_checkpoint(call: operation.Call) -> Checkpoint:
    """Return one checkpoint."""
    return _shown(_row(call))


def recovery(call: operation.Call) -> CheckpointRecovery:
    """Return the data for a recovery, with the key; protect the checkpoint meanwhile."""
    checkpoint_id = _id(call)
    holders = checkpoint_queries.holders_of(_row(call))
    if holders is None:
        why = f"the holders of checkpoint {checkpoint_id} are unknown: its row is damaged"
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, why)
    row = call.store.record_recovery(checkpoint_id, call.wall())
    if row is None:
        raise _unknown(checkpoint_id)
    return CheckpointRecovery(
        checkpoint_id=row.checkpoint_id,
        instance_id=row.instance_id,
        image_id=row.image_id,
        owner=row.host,
        vault_disk=row.vault_disk,
        manifest_name=row.manifest_name,
        holders=holders,
        key=row.disk_key,
        taken_at=operation.utc_time(row.taken_ms / 1000),
    )


def create(call: operation.Call) -> AcceptedCheckpoint:
    """Request a checkpoint from the daemon of the server's host."""
    instance_id = ids.ImageId(operation.server_id(call.body.instance_id))
    if call.nova is None:
        raise nova_client.NovaUnreachable("this service has no access to Nova")
    server = call.nova.get_server(instance_id)
    if server is None:
        raise operation.not_found(f"server {instance_id}")
    if not server.host:
        why = f"server {instance_id} is on no host"
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, why)
    request = random.getrandbits(image_actions.REQUEST_BITS)
    latest = call.store.list_checkpoints("", 1, instance_id, "")
    reply = _request_checkpoint(call, instance_id, server.host, request)
    if reply.why:
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, f"{server.host}: {reply.why}")
    return AcceptedCheckpoint(
        request=request,
        instance_id=instance_id,
        host=server.host,
        latest=latest[0].checkpoint_id if latest else None,
        previous_number=reply.number,
    )


def _request_checkpoint(
    call: operation.Call, instance_id: str, host: str, request: int
) -> checkpoint_messages.CheckpointReply:
    """Ask the daemon of a host; return its response after verifying its signature."""
    try:
        signed = call.bus.request_checkpoint(instance_id, host, request)
        if signed is None:
            why = f"acstor-checkpointd of {host} does not answer: see its log there"
            raise operation.RequestRefused(http.HTTPStatus.CONFLICT, why)
        trust = call.authority.load_trust_state()
        certificate, reply = signed_messages.verify_from_host(
            signed, signing.CHECKPOINT_HEARD, trust.ca, checkpoint_messages.CheckpointReply
        )
        fault = trust.why_untrusted(certificate, call.wall())
        if not fault and (certificate.host, reply.host, reply.request) != (host, host, request):
            fault = "it belongs to another request or another host"
    except (errors.NotAuthenticated, errors.RemoteProtocolError) as e:
        fault = str(e)
    if fault:
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, f"the response of {host}: {fault}")
    return reply


def delete(call: operation.Call) -> DeletedCheckpoint:
    """Delete a checkpoint unless a recovery may be using it."""
    row, now_s = _row(call), call.wall()
    if not call.body.force and checkpoint_queries.is_protected(row, now_s):
        assert row.recovered_s is not None
        since = operation.utc_time(row.recovered_s)
        until = operation.utc_time(row.recovered_s + checkpoint_queries.PROTECTION_S)
        why = (
            f"a recovery from checkpoint {row.checkpoint_id} began at {since} "
            f"and may still read it. It can be deleted once the server has a checkpoint of its new "
            f"host, and from {until} on; "
            "--force "
            "deletes it now"
        )
        raise operation.RequestRefused(http.HTTPStatus.CONFLICT, why)
    call.store.delete_checkpoint(row.checkpoint_id)
    return DeletedCheckpoint(row.checkpoint_id)


def _row(call: operation.Call) -> models.Checkpoint:
    checkpoint_id = _id(call)
    row = call.store.get_checkpoint(checkpoint_id)
    if row is None:
        raise _unknown(checkpoint_id)
    return row


def _id(call: operation.Call) -> str:
    return operation.server_id(call.path["checkpoint_id"])


def _unknown(checkpoint_id: str) -> operation.RequestRefused:
    return operation.not_found(f"checkpoint {checkpoint_id}")


def _shown(row: models.Checkpoint) -> Checkpoint:
    return Checkpoint(
        checkpoint_id=row.checkpoint_id,
        instance_id=row.instance_id,
        project_id=row.project_id,
        host=row.host,
        image_id=row.image_id,
        taken_at=operation.utc_time(row.taken_ms / 1000),
        registered_at=operation.utc_time(row.registered_s),
        consistency=row.consistency,
        number=row.number,
        size_bytes=row.size_bytes,
        changed_bytes=row.changed_bytes,
        sent_bytes=row.sent_bytes,
        interval_s=row.interval_s,
        holders=[holder.host for holder in checkpoint_queries.holders_of(row) or ()],
        server_deleted_at=None if row.gone_s is None else operation.utc_time(row.gone_s),
        recovered_at=None if row.recovered_s is None else operation.utc_time(row.recovered_s),
    )


_ONE = "/v1/checkpoints/{checkpoint_id}"
OPERATIONS = (
    operation.Operation(
        "checkpoint:list",
        "GET",
        "/v1/checkpoints",
        "List checkpoints of servers",
        Checkpoints,
        list_checkpoints,
        READ_RULE,
        query=CheckpointPage,
    ),
    operation.Operation(
        "checkpoint:get", "GET", _ONE, "Show a checkpoint", Checkpoint, show_checkpoint, READ_RULE
    ),
    operation.Operation(
        "checkpoint:create",
        "POST",
        "/v1/checkpoints",
        "Take a checkpoint of a server now",
        AcceptedCheckpoint,
        create,
        operation.ADMIN,
        body=CheckpointRequest,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.Operation(
        "checkpoint:delete",
        "POST",
        f"{_ONE}/delete",
        "Delete a checkpoint",
        DeletedCheckpoint,
        delete,
        operation.ADMIN,
        body=DeleteRequest,
    ),
    operation.Operation(
        "checkpoint:recovery",
        "GET",
        f"{_ONE}/recovery",
        "Show the data that a recovery needs, with the key of the disk",
        CheckpointRecovery,
        recovery,
        operation.RECOVERY,
    ),
)
