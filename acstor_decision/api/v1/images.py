# SPDX-License-Identifier: Apache-2.0
"""Images: their preparation, copies in caches, and origins of their data."""

import logging
from typing import Annotated

import msgspec

from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.image import lineage
from acstor_common.model import ids
from acstor_common.model import text_constraints
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.api import glance_client
from acstor_decision.api import operation
from acstor_decision.db import image_queries
from acstor_decision.db import models

LOG = logging.getLogger(__name__)

PAGE = 100


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One image.

    :param name: null: Glance does not show the image, or does not answer
    :param state: of its preparation: hashed, ready, refused or failed; null: not begun
    :param message: reason why it was refused or failed
    :param updated_at: last change of the image in Glance
    :param chunk_map: id of the chunk map in Glance; null: there is none
    :param boot_image: id of the boot image in Glance; null: there is none
    :param boot_state: of its boot image: waiting, building, ready, failed or unbootable; null: not
        known
    :param boot_message: reason why there is no boot image
    :param boot_revision: of the newest boot image that a host has used; 0: no host has used one
    :param own_bytes: data of a snapshot that differs from its parent, in chunks without zeros;
        null: not known
    :param shared_bytes: part of its file in the store that shares blocks with the parent's file;
        null: not known, or the store cannot share blocks
    :param hosts: number of hosts that mirror it
    :param warm_hosts: number of hosts whose caches hold all of it
    :param using_hosts: number of hosts whose servers use it, or may use it
    :param fully_cached_hosts: number of these hosts where it is fully cached and pinned
    :param cached_bytes: data in the caches of all hosts
    :param read: bytes that guests read, by their origin
    :param fetched: bytes that hosts fetched, by their origin
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
    fully_cached_hosts: int = 0
    cached_bytes: int = 0
    read: decision_messages.ReadBytes = decision_messages.ReadBytes()
    fetched: decision_messages.FetchedBytes = decision_messages.FetchedBytes()


class ImageDetail(Image, frozen=True, kw_only=True):
    """One image, and its parents.

    :param parents: ids of the images that it descends from, the nearest first, as far as they are
        known; the last one may be deleted, or hidden from the client
    :param depth: number of parents; the image is one complete file in any case
    """

    parents: list[str]
    depth: int


class Images(msgspec.Struct, frozen=True):
    """Images, in the order of their ids."""

    images: list[Image]


class FillOnHost(fill_progress.FillStatus, frozen=True, kw_only=True):
    """Fill status of an image on a host.

    :param state: booting, queued, filling, fully_cached, no_space, paused, failing or evictable
    :param is_used: servers of the host use the image, or may use it
    :param why: reason why it is not fully cached and does not progress
    :param total_bytes: data to cache: each distinct chunk once, without zeros; 0: not known
    :param remaining_bytes: data that is not cached yet; null: not known yet
    :param cached_share: part of the image that is cached, from 0 to 1; null: not known yet
    :param shortfall_bytes: space that the host's cache lacks for the image
    :param rate_bytes_s: fill rate
    :param remaining_s: time to the end at this rate; null: not known
    :param due_in_s: time to the operator's deadline; below 0: the deadline has passed
    :param is_late: it missed the deadline, or will miss it at this rate
    :param is_shared: the hosts that use it keep one copy together, each a part of it
    :param is_pinned: an operator pinned it: the cache keeps it when no server uses it
    :param mode: fill mode that an operator chose: normal, urgent or paused
    """

    cached_share: float | None


class ImageOnHost(msgspec.Struct, frozen=True, kw_only=True):
    """One image on one host; counters begin with the agent's worker.

    :param cached_bytes: null: no guest has read it since then
    :param missing_bytes: data, without zeros, that is not cached; null as well
    :param boot_image: state of its boot image there
    :param boot_set_bytes: data that a boot reads; null: not known there
    :param boot_set_cached_bytes: part of it that is cached
    :param fill: null: the host does not report it
    :param task: last task of the host for this image, with its progress
    """

    host: str
    size_bytes: int | None
    cached_bytes: int | None
    missing_bytes: int | None
    boot_image: str
    boot_revision: int
    boot_set_bytes: int | None
    boot_set_cached_bytes: int | None
    read: decision_messages.ReadBytes
    fetched: decision_messages.FetchedBytes
    fill: FillOnHost | None
    task: decision_messages.TaskProgress | None


class ImageHosts(msgspec.Struct, frozen=True):
    """An image on its hosts, in the order of their ids."""

    image_id: str
    hosts: list[ImageOnHost]


class ImagePage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Page of the list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = PAGE
    marker: Annotated[str, text_constraints.text_without_nul(36)] = ""  # last id of previous page


def list_images(call: operation.Call) -> Images:
    """Return the images in hosts' caches."""
    found: list[Image] = []
    marker, limit = call.query.marker, call.query.limit
    at_once = limit if call.sees_all else max(limit, PAGE)  # a tenant may see none of thousands
    while len(found) < limit:
        rows = call.store.list_images(marker, at_once, operation.up_since_s(call))
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


def show_image(call: operation.Call) -> ImageDetail:
    """Return one image."""
    image_id = operation.image_id(call.path["image_id"])
    shown = records(call, [image_id]).get(image_id)
    held = call.store.get_image(image_id, operation.up_since_s(call))
    if shown is None and not (call.sees_all and held):
        raise operation.not_found(f"image {image_id}")
    found = _image(held, shown) if held else unknown(image_id, shown)
    parents = _parents(call, shown)
    fields = msgspec.structs.asdict(found)
    return ImageDetail(**fields, parents=parents, depth=len(parents))


def _parents(call: operation.Call, shown: image_record.Image | None) -> list[str]:
    found: list[str] = []
    own_id = shown and shown.id
    while shown and len(found) < lineage.MAX_GENERATIONS:
        base = artefacts.lineage_of(shown).base
        if base is None or base in (own_id, *found):
            break
        found.append(base)
        shown = records(call, [base]).get(base)
    return found


def unknown(image_id: ids.ImageId, record: image_record.Image | None = None) -> Image:
    """Return an image that no host has."""
    nothing = decision_messages.ReadBytes(), decision_messages.FetchedBytes()
    return _image(image_queries.ImageTotals(image_id, 0, 0, 0, 0, 0, 0, 0, *nothing), record)


def on_hosts(call: operation.Call) -> ImageHosts:
    """Return an image on each host that mirrors it or has a task for it."""
    image_id = operation.image_id(call.path["image_id"])
    rows = call.store.image_hosts(image_id, operation.up_since_s(call))
    if not rows and not records(call, [image_id]):
        raise operation.not_found(f"image {image_id}")
    return ImageHosts(image_id, [_on_host(row) for row in rows])


def records(call: operation.Call, wanted: list[str]) -> glance_client.Records:
    """Return Glance's records; none if it fails and the client sees all hosts.

    :raises glance_client.GlanceUnreachable: it fails for other clients
    """
    try:
        return call.images.get_images(wanted, call.auth)
    except glance_client.GlanceUnreachable as e:
        if not call.sees_all:
            raise
        LOG.warning("%s; showing images without their names", e)
        return {}


def _image(held: image_queries.ImageTotals, record: image_record.Image | None) -> Image:
    known = record or image_record.Image()
    lineage = artefacts.lineage_of(known)
    state, boot_state = artefacts.state_of(known), artefacts.boot_state_of(known)
    return Image(
        image_id=held.image_id,
        name=known.name if record else None,
        status=known.status if record else None,
        size_bytes=held.size_bytes or known.size_bytes,
        state=state.value if state else None,
        message=known.text(artefacts.MESSAGE) if state else "",
        updated_at=known.text("updated_at") or None,
        chunk_map=artefacts.pointer_of(known, artefacts.Kind.CHUNK_MAP),
        boot_image=artefacts.pointer_of(known, artefacts.Kind.BOOT_IMAGE),
        boot_state=boot_state.value if boot_state else None,
        boot_message=known.text(artefacts.BOOT_MESSAGE) if boot_state else "",
        own_bytes=lineage.own_bytes,
        shared_bytes=lineage.shared_bytes,
        boot_revision=held.boot_revision,
        hosts=held.hosts,
        warm_hosts=held.warm_hosts,
        using_hosts=held.using_hosts,
        fully_cached_hosts=held.fully_cached_hosts,
        cached_bytes=held.cached_bytes,
        read=held.read,
        fetched=held.fetched,
    )


def _on_host(row: models.HeldImage) -> ImageOnHost:
    return ImageOnHost(
        host=row.host,
        size_bytes=row.size_bytes,
        cached_bytes=row.cached_bytes,
        missing_bytes=row.missing_bytes,
        boot_image=row.boot_image,
        boot_revision=row.boot_revision,
        boot_set_bytes=row.boot_set_bytes,
        boot_set_cached_bytes=row.boot_set_cached_bytes,
        read=image_queries.read_of(row),
        fetched=image_queries.fetched_of(row),
        fill=_fill(image_queries.fill_of(row)),
        task=image_queries.task_of(row),
    )


def _fill(status: fill_progress.FillStatus | None) -> FillOnHost | None:
    if status is None:
        return None
    share = fill_progress.cached_share(status.total_bytes, status.remaining_bytes)
    return FillOnHost(**msgspec.structs.asdict(status), cached_share=share)


OPERATIONS = (
    operation.Operation(
        "image:list",
        "GET",
        "/v1/images",
        "List the images in hosts' caches",
        Images,
        list_images,
        query=ImagePage,
    ),
    operation.Operation(
        "image:get",
        "GET",
        "/v1/images/{image_id}",
        "Show an image and its parents",
        ImageDetail,
        show_image,
    ),
    operation.Operation(
        "image:hosts",
        "GET",
        "/v1/images/{image_id}/hosts",
        "Show an image on each host, with the progress of its task",
        ImageHosts,
        on_hosts,
    ),
)
