# SPDX-License-Identifier: Apache-2.0
"""Actions on images: prepare, pre-seed, hydrate, flatten, record boots.

The API sends an action to its hosts over the message bus and does not wait for them: hosts report
the progress in their samples, and the leader repeats a task until its hosts acknowledge it.
"""

import http
import random
from collections.abc import Callable
from typing import Annotated
from typing import Any

import msgspec

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_common.wire import control_wire
from acstor_common.wire import decision_messages
from acstor_decision.api import operation
from acstor_decision.api.v1 import hosts
from acstor_decision.api.v1 import images
from acstor_decision.db import image_queries

READING_TASKS = frozenset({decision_messages.TaskKind.PRE_SEED, decision_messages.TaskKind.HYDRATE})
"""Requests of operators to have an image on hosts, which may read it for that."""
REQUEST_BITS = 52
"""Random bits of a task's number: exact even where JSON numbers are floating-point."""

HostNames = Annotated[list[text_constraints.HostName], msgspec.Meta(max_length=1000)]
PreviousImages = Annotated[
    list[text_constraints.Uuid], msgspec.Meta(max_length=decision_messages.MAX_PREVIOUS_IMAGES)
]


class PrepareRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a preparation.

    :param force: prepare the image again, even if it is ready or was refused
    """

    force: bool = False


class PreSeedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts that fetch and pin an image.

    :param hosts: these hosts; empty: all hosts that are up
    :param count: number of hosts, the least loaded of those that lack a part of it; 0: all
    """

    hosts: HostNames = []
    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0


class FlattenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts that copy an image into the disks that are based on it.

    :param hosts: these hosts; empty: all hosts that are up
    """

    hosts: HostNames = []


class HostSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts of an image.

    :param hosts: these hosts; empty: all hosts that use the image or have it pinned
    """

    hosts: HostNames = []


class HydrateRequest(HostSelection, frozen=True, forbid_unknown_fields=True):
    """Hosts that cache an image completely, and by when.

    :param deadline_s: seconds from now until the image must be fully cached; 0: as soon as possible
    """

    deadline_s: control_wire.Deadline = 0.0


class RecordBootsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Boots to record.

    :param hosts: these hosts; empty: all hosts that are up
    :param boots: number of boots on each host
    """

    hosts: HostNames = []
    boots: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class PrefetchBootImageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts by which each host decides whether to prefetch a boot image.

    :param previous_images: earlier images of the family; hosts that use one may want the boot image
    :param is_public: all projects may read the image
    """

    previous_images: PreviousImages = []
    is_public: bool = False


class BroadcastTask(msgspec.Struct, frozen=True):
    """A task that went to all hosts; those that take it report its progress.

    :param request: number of the task in these reports
    """

    image_id: str
    request: int


class AcceptedTask(msgspec.Struct, frozen=True):
    """A task that hosts were given; ``GET /v1/images/{image_id}/hosts`` shows its progress.

    :param request: number of the task there
    :param hosts: hosts that were given the task
    """

    image_id: str
    request: int
    hosts: list[str]


def prepare(call: operation.Call) -> images.Image:
    """Start the preparation of an image; return the image as it is now."""
    image_id = operation.image_id(call.path["image_id"])
    record = _record(call, image_id)
    if why := _unpreparable_reason(record) if record else "":
        raise operation.RequestRefused(
            http.HTTPStatus.CONFLICT, f"image {image_id} cannot be prepared: {why}"
        )
    has_failed = artefacts.state_of(record) is artefacts.State.FAILED if record else False
    wanted = decision_messages.ImageWanted(image_id, call.body.force or has_failed)
    call.bus.request_preparation(wanted, random.getrandbits(REQUEST_BITS))
    return images.show_image(call) if record else images.unknown(image_id)


def pre_seed(call: operation.Call) -> AcceptedTask:
    """Make hosts fetch and pin an image."""
    image_id = _prepared_image_id(call)
    if call.body.count and call.body.hosts:
        raise operation.RequestRefused(http.HTTPStatus.BAD_REQUEST, "specify either hosts or count")
    chosen = _select_hosts(call, call.body.hosts)
    if call.body.count:
        rows = call.store.image_hosts(image_id, operation.up_since_s(call))
        complete = {row.host for row in rows if row.missing_bytes == 0}
        chosen = [name for name in chosen if name not in complete][: call.body.count]
    task = _new_task(decision_messages.TaskKind.PRE_SEED, image_id)
    return _send_task(call, task, chosen, is_for_all=not (call.body.hosts or call.body.count))


def flatten(call: operation.Call) -> AcceptedTask:
    """Copy an image into the disks that are based on it; Glance may have deleted it."""
    image_id = operation.image_id(call.path["image_id"])
    if not call.store.image_hosts(image_id, operation.up_since_s(call)):
        _record(call, image_id)
    task = _new_task(decision_messages.TaskKind.FLATTEN, image_id)
    return _send_task(
        call, task, _select_hosts(call, call.body.hosts), is_for_all=not call.body.hosts
    )


def record_boots(call: operation.Call) -> AcceptedTask:
    """Record the next boots from an image, for a better boot image."""
    image_id = _prepared_image_id(call)
    task = _new_task(decision_messages.TaskKind.RECORD_BOOTS, image_id, boots=call.body.boots)
    return _send_task(
        call, task, _select_hosts(call, call.body.hosts), is_for_all=not call.body.hosts
    )


def prefetch_boot_image(call: operation.Call) -> BroadcastTask:
    """Announce a new boot image to all hosts; a host without it fetches it at a boot."""
    image_id = operation.image_id(call.path["image_id"])
    task = _new_task(
        decision_messages.TaskKind.PREFETCH_BOOT_IMAGE,
        image_id,
        previous_images=tuple(map(operation.image_id, call.body.previous_images)),
        is_public=call.body.is_public,
    )
    call.bus.send_task(task, None)
    return BroadcastTask(image_id, task.request)


def hydrate(call: operation.Call) -> AcceptedTask:
    """Cache an image completely, before others and without waiting for boots to end."""
    deadline_s = call.body.deadline_s
    due_at_s = call.wall() + deadline_s if deadline_s else 0.0
    kind = decision_messages.TaskKind.HYDRATE
    return _send_to_image_hosts(call, kind, deadline_s=deadline_s, due_at_s=due_at_s)


def pause(call: operation.Call) -> AcceptedTask:
    """Stop filling caches with an image."""
    return _send_to_image_hosts(call, decision_messages.TaskKind.PAUSE)


def resume(call: operation.Call) -> AcceptedTask:
    """Fill caches with an image at the normal rate: ends a hydrate and a pause."""
    return _send_to_image_hosts(call, decision_messages.TaskKind.RESUME)


def unpin(call: operation.Call) -> AcceptedTask:
    """Unpin an image, so that it stays only while servers use it."""
    return _send_to_image_hosts(call, decision_messages.TaskKind.UNPIN)


def _unpreparable_reason(record: image_record.Image) -> str:
    """Return why an image cannot be prepared; "" if it can or if that is unknown."""
    why = image_record.why_not_served(record)
    is_decided = record.text(artefacts.MESSAGE) == artefacts.fit_message(why)
    return why if is_decided or not record.is_convertible else ""


def _send_to_image_hosts(
    call: operation.Call, kind: decision_messages.TaskKind, **more: Any
) -> AcceptedTask:
    image_id = operation.image_id(call.path["image_id"])
    rows = call.store.image_hosts(image_id, operation.up_since_s(call))
    if not rows:
        _record(call, image_id)
    fills = ((row.host, image_queries.fill_of(row)) for row in rows)
    image_hosts = {host for host, fill in fills if fill and (fill.is_used or fill.is_pinned)}
    chosen = _select_hosts(call, call.body.hosts)
    if not call.body.hosts:
        chosen = [name for name in chosen if name in image_hosts]
        if not chosen:
            raise operation.RequestRefused(
                http.HTTPStatus.CONFLICT, f"no host uses image {image_id} or has it pinned"
            )
    return _send_task(call, _new_task(kind, image_id, **more), chosen, is_for_all=False)


def _new_task(
    kind: decision_messages.TaskKind, image_id: ids.ImageId, **more: Any
) -> decision_messages.ImageTask:
    request = random.getrandbits(REQUEST_BITS)
    return decision_messages.ImageTask(request=request, kind=kind, image_id=image_id, **more)


def _send_task(
    call: operation.Call, task: decision_messages.ImageTask, chosen: list[str], *, is_for_all: bool
) -> AcceptedTask:
    if task.kind in READING_TASKS:  # a host that has the task requests a grant at once
        call.store.record_named_image(task.image_id, call.wall())
    call.bus.send_task(task, None if is_for_all else chosen)
    call.store.record_task(chosen, task, call.wall())
    return AcceptedTask(task.image_id, task.request, chosen)


def _record(call: operation.Call, image_id: ids.ImageId) -> image_record.Image | None:
    """Return an image in Glance, or raise RequestRefused; None without a client's token."""
    if call.auth is None:
        return None
    found = call.images.get_images([image_id], call.auth).get(image_id)
    if found is None:
        raise operation.not_found(f"image {image_id}")
    return found


def _prepared_image_id(call: operation.Call) -> ids.ImageId:
    image_id = operation.image_id(call.path["image_id"])
    record = _record(call, image_id)
    if record is not None and artefacts.pointer_of(record, artefacts.Kind.CHUNK_MAP) is None:
        raise operation.RequestRefused(
            http.HTTPStatus.CONFLICT,
            f"image {image_id} has no chunk map yet: prepare it first "
            f"(openstack acstor image prepare {image_id})",
        )
    return image_id


def _select_hosts(call: operation.Call, wanted: HostNames) -> list[str]:
    up = [row for row in call.store.list_hosts() if hosts.is_up(call, row)]
    up.sort(key=lambda row: (max(row.received_bytes_s, row.sent_bytes_s), row.host))
    names = [row.host for row in up]
    if missing := sorted(set(wanted).difference(names)):
        raise operation.RequestRefused(
            http.HTTPStatus.CONFLICT,
            f"hosts send no samples: {', '.join(missing[:5])}. Is acstor-agent running there? "
            "(openstack acstor host list)",
        )
    return list(dict.fromkeys(wanted)) if wanted else names


def _image_action(
    name: str,
    summary: str,
    answer: type[msgspec.Struct],
    handler: Callable[[operation.Call], msgspec.Struct],
    body: type[msgspec.Struct],
    rule: str = operation.ADMIN,
) -> operation.Operation:
    return operation.Operation(
        f"image:{name}",
        "POST",
        f"/v1/images/{{image_id}}/{name.replace('_', '-')}",
        summary,
        answer,
        handler,
        rule=rule,
        body=body,
        status=http.HTTPStatus.ACCEPTED,
    )


OPERATIONS = (
    _image_action(
        "prepare",
        "Prepare an image: make its chunk map and its boot image",
        images.Image,
        prepare,
        PrepareRequest,
    ),
    _image_action(
        "pre_seed",
        "Let hosts fetch all of an image and pin it",
        AcceptedTask,
        pre_seed,
        PreSeedRequest,
    ),
    _image_action(
        "flatten",
        "Copy an image into the writable disks that are based on it",
        AcceptedTask,
        flatten,
        FlattenRequest,
    ),
    _image_action(
        "hydrate",
        "Cache an image completely, before others",
        AcceptedTask,
        hydrate,
        HydrateRequest,
    ),
    _image_action("pause", "Stop filling caches with an image", AcceptedTask, pause, HostSelection),
    _image_action(
        "resume",
        "Fill caches with an image at the normal rate again",
        AcceptedTask,
        resume,
        HostSelection,
    ),
    _image_action(
        "unpin",
        "Keep an image only as long as servers use it",
        AcceptedTask,
        unpin,
        HostSelection,
    ),
    _image_action(
        "record_boots",
        "Record the next boots from an image",
        AcceptedTask,
        record_boots,
        RecordBootsRequest,
    ),
    _image_action(
        "prefetch_boot_image",
        "Announce a new boot image to hosts, which may prefetch it",
        BroadcastTask,
        prefetch_boot_image,
        PrefetchBootImageRequest,
        rule=f"role:acstor-prepare or role:service or {operation.ADMIN}",
    ),
)
