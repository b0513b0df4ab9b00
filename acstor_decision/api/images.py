# SPDX-License-Identifier: Apache-2.0
"""Images: how far they are prepared, what hosts hold of them, where their bytes came from.

Who may not see all hosts sees the images that Glance shows to him, what all
hosts did with them together, and no host.
"""

import logging
from typing import Annotated

import msgspec

from acstor_common import artefacts
from acstor_common import decision_api
from acstor_common import ids
from acstor_common import image_record
from acstor_common import lineage
from acstor_common import whole_image
from acstor_decision.api import image_service
from acstor_decision.api import operation
from acstor_decision.db import held_images
from acstor_decision.db import models

LOG = logging.getLogger(__name__)

PAGE = 100


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One image.

    :param name: null: Glance shows no such image (any more), or does not answer
    :param state: of its preparation: hashed, ready, refused or failed; null: not begun
    :param message: why it was refused, or failed
    :param updated_at: when Glance's record of it changed last
    :param chunk_map: id of the chunk map in Glance; null: there is none
    :param boot_image: id of the boot image in Glance; null: there is none
    :param boot_state: how far that is: waiting, building, ready, failed or unbootable; null:
        nothing says so
    :param boot_message: why it is not there
    :param boot_revision: of the newest boot image that a host has used; 0: none has
    :param own_bytes: what it has that the image that it was made from has not at the same place, in
        chunks that are not zeros; null: not known
    :param shared_bytes: of its file in the store, what was let share room with that image's; null:
        not known, or nothing can be shared there
    :param hosts: hosts that mirror it
    :param warm_hosts: hosts that have all of it but its zeros
    :param using_hosts: hosts whose instances use it, or may use it
    :param whole_hosts: those of them where it is whole, and stays so as long as it is used
    :param cached_bytes: what lies in the caches of all hosts
    :param read: what guests read of it, by where the bytes were
    :param fetched: what came to hosts, by who gave it
    """

    image_id: str
    name: str | None
    status: str | None
    size_bytes: int
    state: str | None
    message: str
    updated_at: str | None
    chunk_map: str | None
    boot_image: str | None
    boot_state: str | None
    boot_message: str
    own_bytes: int | None = None
    shared_bytes: int | None = None
    boot_revision: int = 0
    hosts: int = 0
    warm_hosts: int = 0
    using_hosts: int = 0
    whole_hosts: int = 0
    cached_bytes: int = 0
    read: decision_api.ReadBytes = decision_api.ReadBytes()
    fetched: decision_api.FetchedBytes = decision_api.FetchedBytes()


class ImageAndParents(Image, frozen=True, kw_only=True):
    """One image, and what it was made from.

    :param parents: ids of the images that it was made from, one of the other, the nearest first, as
        far as is known; the last one may be deleted, or not be shown to who asks
    :param depth: how many those are.  The image is one whole file, however many
    """

    parents: list[str]
    depth: int


class Images(msgspec.Struct, frozen=True):
    """Images, in the order of their ids."""

    images: list[Image]


class WholeOnHost(whole_image.Whole, frozen=True, kw_only=True):
    """How far an image is from being whole on a host.

    :param state: booting, queued, filling, whole, no room, paused, failing or not kept
    :param is_used: instances of the host use it, or may use it
    :param why: it does not become whole, if so
    :param total_bytes: what of it is to be there: each content once, without zeros; 0: not known
    :param left_bytes: what of that is not there yet; null: not known yet
    :param share: how much of it is there, from 0 to 1; null: not known yet
    :param lacking_bytes: what the host's cache lacks for it
    :param bytes_s: how fast it comes
    :param left_s: how long the rest takes at that speed; null: it does not come, or nobody can tell
    :param due_in_s: until it is to be whole, as an operator asked; below 0: since when it is late
    :param is_late: it was not whole then, or will not be at that speed
    :param is_shared: hosts keep it together, each its share: whole means all of them have theirs
    :param is_asked: an operator wants it kept, whether it is used or not
    :param pace: as an operator wishes: usual, hurry or paused
    """

    share: float | None


class ImageOnHost(msgspec.Struct, frozen=True, kw_only=True):
    """One image on one host, counted from the start of the agent's worker.

    :param cached_bytes: null: nobody has read it since then
    :param missing_bytes: what of it is neither there nor zeros; null as well
    :param boot_image: what has become of its boot image there
    :param whole: null: the host says nothing of that
    :param task: what was asked of the host last, and how far it is
    """

    host: str
    size_bytes: int | None
    cached_bytes: int | None
    missing_bytes: int | None
    boot_image: str
    boot_revision: int
    read: decision_api.ReadBytes
    fetched: decision_api.FetchedBytes
    whole: WholeOnHost | None
    task: decision_api.TaskProgress | None


class ImageHosts(msgspec.Struct, frozen=True):
    """An image on its hosts, in the order of their ids."""

    image_id: str
    hosts: list[ImageOnHost]


class ImagePage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the list is wanted.

    :param limit: images at most
    :param marker: the last image that is known already; the answer begins behind it
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = PAGE
    marker: Annotated[str, msgspec.Meta(max_length=36)] = ""


def every(call: operation.Call) -> Images:
    """Answer with the images that hosts hold."""
    found: list[Image] = []
    marker, limit = call.query.marker, call.query.limit
    while len(found) < limit:
        rows = call.store.images(marker, limit, operation.since_s(call))
        if not rows:
            break
        marker = rows[-1].image_id
        shown = records(call, [row.image_id for row in rows])
        found += [
            _image(row, shown.get(row.image_id))
            for row in rows
            if call.sees_all or row.image_id in shown
        ]
    return Images(found[:limit])


def one(call: operation.Call) -> ImageAndParents:
    """Answer with one image."""
    image_id = operation.image_id(call.path["image_id"])
    shown = records(call, [image_id]).get(image_id)
    held = call.store.image(image_id, operation.since_s(call))
    if shown is None and not (call.sees_all and held):
        raise operation.not_found(f"image {image_id}")
    found = _image(held, shown) if held else unknown(image_id, shown)
    parents = _parents(call, shown)
    told = msgspec.structs.asdict(found)
    return ImageAndParents(**told, parents=parents, depth=len(parents))


def _parents(call: operation.Call, shown: image_record.Record | None) -> list[str]:
    """Return the images that an image was made from, as far as Glance shows them to who asks."""
    found: list[str] = []
    own_id = shown and shown.get("id")
    while shown and len(found) < lineage.MOST_GENERATIONS:
        base = artefacts.lineage_of(shown).base
        if base is None or base in (own_id, *found):
            break
        found.append(base)
        shown = records(call, [base]).get(base)
    return found


def unknown(image_id: ids.ImageId, record: image_record.Record | None = None) -> Image:
    """Return an image that no host holds."""
    nothing = decision_api.ReadBytes(), decision_api.FetchedBytes()
    return _image(held_images.OnHosts(image_id, 0, 0, 0, 0, 0, 0, 0, *nothing), record)


def on_hosts(call: operation.Call) -> ImageHosts:
    """Answer with an image on each host that mirrors it or was asked for it."""
    image_id = operation.image_id(call.path["image_id"])
    rows = call.store.image_hosts(image_id, operation.since_s(call))
    if not rows and not records(call, [image_id]):
        raise operation.not_found(f"image {image_id}")
    return ImageHosts(image_id, [_on_host(row) for row in rows])


def records(call: operation.Call, wanted: list[str]) -> image_service.Records:
    """Return what Glance tells of images; who sees all can do without it.

    :raises image_service.ImageServiceUnreachable: he cannot
    """
    try:
        return call.images.records(wanted, call.auth)
    except image_service.ImageServiceUnreachable as e:
        if not call.sees_all:
            raise
        LOG.warning("%s; images are shown without their names", e)
        return {}


def _image(held: held_images.OnHosts, record: image_record.Record | None) -> Image:
    known = record or {}
    told = artefacts.lineage_of(known)
    state, boot_state = artefacts.state_of(known), artefacts.boot_state_of(known)
    return Image(
        image_id=held.image_id,
        name=image_record.text_of(known, "name") if known else None,
        status=image_record.text_of(known, "status") if known else None,
        size_bytes=held.size_bytes or image_record.size_bytes_of(known),
        state=state.value if state else None,
        message=image_record.text_of(known, artefacts.MESSAGE) if state else "",
        updated_at=image_record.text_of(known, "updated_at") or None,
        chunk_map=artefacts.pointer_of(known, artefacts.Kind.CHUNK_MAP),
        boot_image=artefacts.pointer_of(known, artefacts.Kind.BOOT_IMAGE),
        boot_state=boot_state.value if boot_state else None,
        boot_message=image_record.text_of(known, artefacts.BOOT_MESSAGE) if boot_state else "",
        own_bytes=told.own_bytes,
        shared_bytes=told.shared_bytes,
        boot_revision=held.boot_revision,
        hosts=held.hosts,
        warm_hosts=held.warm_hosts,
        using_hosts=held.using_hosts,
        whole_hosts=held.whole_hosts,
        cached_bytes=held.cached_bytes,
        read=held.read,
        fetched=held.fetched,
    )


def _on_host(row: models.HeldImage) -> ImageOnHost:
    progress = decision_api.TaskProgress | None
    return ImageOnHost(
        host=row.host,
        size_bytes=row.size_bytes,
        cached_bytes=row.cached_bytes,
        missing_bytes=row.missing_bytes,
        boot_image=row.boot_image,
        boot_revision=row.boot_revision,
        read=held_images.read_of(row),
        fetched=held_images.fetched_of(row),
        whole=_whole(held_images.whole_of(row)),
        task=msgspec.json.decode(row.task or "null", type=progress),
    )


def _whole(told: whole_image.Whole | None) -> WholeOnHost | None:
    if told is None:
        return None
    share = whole_image.share(told.total_bytes, told.left_bytes)
    return WholeOnHost(**msgspec.structs.asdict(told), share=share)


OPERATIONS = (
    operation.Operation(
        "image:list",
        "GET",
        "/v1/images",
        "List the images that hosts hold",
        Images,
        every,
        query=ImagePage,
    ),
    operation.Operation(
        "image:get",
        "GET",
        "/v1/images/{image_id}",
        "Show an image, and what it was made from",
        ImageAndParents,
        one,
    ),
    operation.Operation(
        "image:hosts",
        "GET",
        "/v1/images/{image_id}/hosts",
        "Show what each host holds of an image, and what it was asked for",
        ImageHosts,
        on_hosts,
    ),
)
