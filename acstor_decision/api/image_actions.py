# SPDX-License-Identifier: Apache-2.0
"""What can be done about images: prepare them, bring them to hosts, hurry them, record their boots.

Who does it is told over the bus and nobody waits for him; how far it is stands
in the image (preparation) or in what its hosts tell (everything else).  Who leads
the service gives a task again to hosts that tell nothing of it.
"""

import http
import random
from collections.abc import Callable
from typing import Annotated
from typing import Any

import msgspec

from acstor_common import artefacts
from acstor_common import control_wire
from acstor_common import decision_api
from acstor_common import ids
from acstor_common import image_record
from acstor_decision.api import hosts
from acstor_decision.api import images
from acstor_decision.api import operation
from acstor_decision.db import held_images

REQUEST_BITS = 52
"""A request is an integer that JSON readers with floating-point numbers get right."""

HostNames = Annotated[list[str], msgspec.Meta(max_length=1000)]
Formers = Annotated[list[str], msgspec.Meta(max_length=decision_api.MAX_FORMERS)]


class Prepare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to prepare an image.

    :param force: again, even if it is prepared or was refused
    """

    force: bool = False


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts are to have an image.

    :param hosts: these; none: all that are up
    :param count: only so many, the least busy of those that have not all of it; 0: all
    """

    hosts: HostNames = []
    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0


class Hydrate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose disks are to depend on nobody.

    :param hosts: of these; none: of all that are up
    """

    hosts: HostNames = []


class WhereKept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts are asked about an image that they keep, or are to keep.

    :param hosts: these; none: all that use it, or keep it because they were asked to
    """

    hosts: HostNames = []


class Hurry(WhereKept, frozen=True, forbid_unknown_fields=True):
    """Which hosts are to make an image whole first.

    :param within_s: within this time from now, however late a host hears of it; 0: as fast as it
        comes
    """

    within_s: control_wire.Within = 0.0


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to record.

    :param hosts: these; none: all that are up
    :param boots: on each host
    """

    hosts: HostNames = []
    boots: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class BootAhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts may want a boot image before a guest asks for it; each decides for itself.

    :param after: images of the family that came before; hosts that use one may want it
    :param is_open: every project may read the image: so may others
    """

    after: Formers = []
    is_open: bool = False


class Told(msgspec.Struct, frozen=True):
    """What hosts were told of; those that take it tell how far it is, as of what they are asked.

    :param request: names it there
    """

    image_id: str
    request: int


class Asked(msgspec.Struct, frozen=True):
    """What hosts were asked for; ``GET /v1/images/{image_id}/hosts`` tells how far each is.

    :param request: names it there
    :param hosts: who was asked
    """

    image_id: str
    request: int
    hosts: list[str]


def prepare(call: operation.Call) -> images.Image:
    """Have an image prepared; answer with the image as it is now."""
    image_id = operation.image_id(call.path["image_id"])
    record = _visible(call, image_id)
    if why := _why_not_prepared(record) if record else "":
        raise operation.Refused(
            http.HTTPStatus.CONFLICT, f"image {image_id} cannot be prepared: {why}"
        )
    has_failed = artefacts.state_of(record) is artefacts.State.FAILED if record else False
    wanted = decision_api.ImageWanted(image_id, call.body.force or has_failed)
    call.bus.want(wanted, random.getrandbits(REQUEST_BITS))
    return images.one(call) if record else images.unknown(image_id)


def pre_seed(call: operation.Call) -> Asked:
    """Have an image brought to hosts, behind everything that guests wait for."""
    image_id = _prepared(call)
    if call.body.count and call.body.hosts:
        raise operation.Refused(http.HTTPStatus.BAD_REQUEST, "give either hosts or their count")
    chosen = _chosen(call, call.body.hosts)
    if call.body.count:
        rows = call.store.image_hosts(image_id, operation.since_s(call))
        warm = {row.host for row in rows if row.missing_bytes == 0}
        chosen = [name for name in chosen if name not in warm][: call.body.count]
    task = _task(decision_api.TaskKind.PRE_SEED, image_id)
    return _give(call, task, chosen, is_for_all=not (call.body.hosts or call.body.count))


def hydrate(call: operation.Call) -> Asked:
    """Have disks that began as an image depend on it no more; Glance need not have it any more."""
    image_id = operation.image_id(call.path["image_id"])
    if not call.store.image_hosts(image_id, operation.since_s(call)):
        _visible(call, image_id)
    task = _task(decision_api.TaskKind.HYDRATE, image_id)
    return _give(call, task, _chosen(call, call.body.hosts), is_for_all=not call.body.hosts)


def record_boots(call: operation.Call) -> Asked:
    """Have the next boots from an image recorded, for a better boot image."""
    image_id = _prepared(call)
    task = _task(decision_api.TaskKind.RECORD_BOOTS, image_id, boots=call.body.boots)
    return _give(call, task, _chosen(call, call.body.hosts), is_for_all=not call.body.hosts)


def boot_ahead(call: operation.Call) -> Told:
    """Tell all hosts of a boot image that was made.  Who does not hear of it does without."""
    image_id = operation.image_id(call.path["image_id"])
    after = tuple(map(operation.image_id, call.body.after))
    kind, is_open = decision_api.TaskKind.BOOT_AHEAD, call.body.is_open
    task = _task(kind, image_id, after=after, is_open=is_open)
    call.bus.give(task, None)
    return Told(image_id, task.request)


def hurry(call: operation.Call) -> Asked:
    """Have an image become whole before others, and before the end of its boots."""
    within_s = call.body.within_s
    by_s = call.wall() + within_s if within_s else 0.0
    return _ask_keepers(call, decision_api.TaskKind.HURRY, within_s=within_s, by_s=by_s)


def pause(call: operation.Call) -> Asked:
    """Have an image not filled for the time being."""
    return _ask_keepers(call, decision_api.TaskKind.PAUSE)


def resume(call: operation.Call) -> Asked:
    """Have an image become whole as it comes: ends a hurry and a pause."""
    return _ask_keepers(call, decision_api.TaskKind.RESUME)


def unpin(call: operation.Call) -> Asked:
    """Have an image kept only as long as it is used, though it was pre-seeded."""
    return _ask_keepers(call, decision_api.TaskKind.UNPIN)


def _why_not_prepared(record: image_record.Record) -> str:
    """Say why an image cannot be prepared; empty if it can, or if only a listener knows."""
    why = image_record.why_not_served(record)
    is_decided = image_record.text_of(record, artefacts.MESSAGE) == artefacts.fitting(why)
    return why if is_decided or not image_record.is_convertible(record) else ""


def _ask_keepers(call: operation.Call, kind: decision_api.TaskKind, **more: Any) -> Asked:
    """Ask the hosts that were named, or all that use an image or are to keep it.

    :raises operation.Refused: there is no such image, or no such host
    """
    image_id = operation.image_id(call.path["image_id"])
    rows = call.store.image_hosts(image_id, operation.since_s(call))
    if not rows:
        _visible(call, image_id)
    told = ((row.host, held_images.whole_of(row)) for row in rows)
    keepers = {host for host, whole in told if whole and (whole.is_used or whole.is_asked)}
    chosen = _chosen(call, call.body.hosts)
    if not call.body.hosts:
        chosen = [name for name in chosen if name in keepers]
        if not chosen:
            raise operation.Refused(
                http.HTTPStatus.CONFLICT, f"no host uses image {image_id}, or is to keep it"
            )
    return _give(call, _task(kind, image_id, **more), chosen, is_for_all=False)


def _task(
    kind: decision_api.TaskKind, image_id: ids.ImageId, **more: Any
) -> decision_api.ImageTask:
    request = random.getrandbits(REQUEST_BITS)
    return decision_api.ImageTask(request=request, kind=kind, image_id=image_id, **more)


def _give(
    call: operation.Call, task: decision_api.ImageTask, chosen: list[str], *, is_for_all: bool
) -> Asked:
    call.bus.give(task, None if is_for_all else chosen)
    call.store.note_given(chosen, task, call.wall())
    return Asked(task.image_id, task.request, chosen)


def _visible(call: operation.Call, image_id: ids.ImageId) -> image_record.Record | None:
    """Return what Glance says of an image; None where there is nobody to ask it for.

    :raises operation.Refused: Glance shows no such image
    """
    if call.auth is None:
        return None
    found = call.images.records([image_id], call.auth).get(image_id)
    if found is None:
        raise operation.not_found(f"image {image_id}")
    return found


def _prepared(call: operation.Call) -> ids.ImageId:
    """Return the image that the path names.

    :raises operation.Refused: there is none, or agents can do nothing with it yet
    """
    image_id = operation.image_id(call.path["image_id"])
    record = _visible(call, image_id)
    if record is not None and artefacts.pointer_of(record, artefacts.Kind.CHUNK_MAP) is None:
        raise operation.Refused(
            http.HTTPStatus.CONFLICT,
            f"image {image_id} has no chunk map yet: have it prepared first "
            f"(openstack acstor image prepare {image_id})",
        )
    return image_id


def _chosen(call: operation.Call, wanted: HostNames) -> list[str]:
    """Return the hosts that were named, or all that are up, the least busy first.

    :raises operation.Refused: one that was named is not up
    """
    up = [row for row in call.store.hosts() if hosts.is_up(call, row)]
    up.sort(key=lambda row: (max(row.received_bytes_s, row.sent_bytes_s), row.host))
    names = [row.host for row in up]
    if missing := sorted(set(wanted).difference(names)):
        raise operation.Refused(
            http.HTTPStatus.CONFLICT,
            f"no sample comes from {', '.join(missing[:5])}: is the agent there running? "
            "(openstack acstor host list)",
        )
    return list(dict.fromkeys(wanted)) if wanted else names


def _of_keepers(
    name: str,
    summary: str,
    handler: Callable[[operation.Call], Asked],
    body: type[WhereKept],
) -> operation.Operation:
    return operation.Operation(
        f"image:{name}",
        "POST",
        f"/v1/images/{{image_id}}/{name}",
        summary,
        Asked,
        handler,
        rule=operation.ADMIN,
        body=body,
        status=http.HTTPStatus.ACCEPTED,
    )


OPERATIONS = (
    operation.Operation(
        "image:prepare",
        "POST",
        "/v1/images/{image_id}/prepare",
        "Have an image prepared: its chunk map and its boot image made",
        images.Image,
        prepare,
        rule=operation.ADMIN,
        body=Prepare,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.Operation(
        "image:pre_seed",
        "POST",
        "/v1/images/{image_id}/pre-seed",
        "Have all of an image brought to hosts",
        Asked,
        pre_seed,
        rule=operation.ADMIN,
        body=Where,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.Operation(
        "image:hydrate",
        "POST",
        "/v1/images/{image_id}/hydrate",
        "Have the writable disks that began as an image depend on it no more",
        Asked,
        hydrate,
        rule=operation.ADMIN,
        body=Hydrate,
        status=http.HTTPStatus.ACCEPTED,
    ),
    _of_keepers("hurry", "Have an image become whole before others", hurry, Hurry),
    _of_keepers("pause", "Have an image not filled for the time being", pause, WhereKept),
    _of_keepers("resume", "Have an image become whole as it comes again", resume, WhereKept),
    _of_keepers("unpin", "Have an image kept only as long as it is used", unpin, WhereKept),
    operation.Operation(
        "image:record_boots",
        "POST",
        "/v1/images/{image_id}/record-boots",
        "Have the next boots from an image recorded",
        Asked,
        record_boots,
        rule=operation.ADMIN,
        body=Record,
        status=http.HTTPStatus.ACCEPTED,
    ),
    operation.Operation(
        "image:boot_ahead",
        "POST",
        "/v1/images/{image_id}/boot-ahead",
        "Tell hosts of a boot image that was made, so that they have it before it is needed",
        Told,
        boot_ahead,
        rule=f"role:acstor-prepare or role:service or {operation.ADMIN}",
        body=BootAhead,
        status=http.HTTPStatus.ACCEPTED,
    ),
)
