# SPDX-License-Identifier: Apache-2.0
"""Statements about images on hosts; :mod:`acstor_decision.db.database` runs them."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.core import enrolment_rules
from acstor_decision.db import json_columns
from acstor_decision.db import models

_Row = models.HeldImage
KEPT_S = 86400.0  # how long the images of a silent host are kept


class ImageTotals(NamedTuple):
    """One image on all hosts."""

    image_id: str
    hosts: int
    warm_hosts: int  # hosts whose caches lack nothing of it
    using_hosts: int  # hosts whose instances use it, or may use it
    fully_cached_hosts: int  # those of them where it is fully cached
    size_bytes: int  # 0 if no host knows it
    cached_bytes: int
    boot_revision: int
    read: decision_messages.ReadBytes
    fetched: decision_messages.FetchedBytes


class Needed(NamedTuple):
    """Images that hosts use and have not fully cached, without revoked hosts."""

    image_ids: list[str]
    is_complete: bool
    last_sample_s: float | None  # last sample of any host; None: none
    known_since_s: float | None  # time of the first sample of any host
    silent_hosts: int  # hosts with samples, but none since ``up_since_s``


def replace_images(session: orm.Session, samples: Mapping[str, decision_messages.Sample]) -> None:
    """Replace the images of hosts by those that their samples report."""
    images_of = {host: samples[host].images for host in sorted(samples)}
    hosts = [host for host, images in images_of.items() if images is not None]
    if not hosts:
        return
    session.execute(sa.delete(_Row).where(_Row.host.in_(hosts)))
    rows = [
        _row(host, image_id, held)
        for host in hosts
        for image_id, held in sorted((images_of[host] or {}).items())
    ]
    if rows:
        session.execute(sa.insert(_Row), rows)


def forget_silent(session: orm.Session, before_s: float) -> None:
    """Delete the images of hosts without a sample since a time."""
    silent = sa.select(models.Host.host).where(models.Host.seen_s < before_s)
    session.execute(sa.delete(_Row).where(_Row.host.in_(silent)))


def list_needed(session: orm.Session, since_s: float, up_since_s: float, limit: int) -> Needed:
    """Return the images needed by hosts with a sample since a time, ``limit`` at most.

    Hosts known longest come first, so that newly enrolled names cannot displace them.

    :param up_since_s: hosts without a sample since then are silent
    """
    host, enrolled = models.Host, models.Enrolment
    is_revoked = sa.exists().where(
        enrolled.host == host.host, enrolled.state == enrolment_rules.EnrolmentState.REVOKED
    )
    wanted = (
        sa.select(_Row.image_id)
        .join(host, host.host == _Row.host)
        .where(
            _Row.is_used.is_(True),
            _Row.is_fully_cached.is_(False),
            host.seen_s >= since_s,
            ~is_revoked,
        )
        .group_by(_Row.image_id)
        .order_by(sa.func.min(host.first_seen_s), _Row.image_id)
        .limit(limit + 1)
    )
    is_silent = sa.and_(host.seen_s >= since_s, host.seen_s < up_since_s)
    times = sa.select(
        sa.func.max(host.seen_s),
        sa.func.min(host.first_seen_s),
        sa.func.sum(sa.case((is_silent, 1), else_=0)),
    ).where(~is_revoked)
    found = list(session.execute(wanted).scalars())
    last_sample_s, known_since_s, silent = session.execute(times).one()
    return Needed(
        found[:limit], len(found) <= limit, last_sample_s, known_since_s, int(silent or 0)
    )


def list_images(session: orm.Session, after: str, limit: int, since_s: float) -> list[ImageTotals]:
    """Return images above an ID, with totals over live hosts."""
    wanted = _together(since_s).where(_Row.image_id > after).order_by(_Row.image_id).limit(limit)
    return [_on_hosts(*found) for found in session.execute(wanted)]


def get_image(session: orm.Session, image_id: str, since_s: float) -> ImageTotals | None:
    """Return one image; None if no live host has it."""
    found = session.execute(_together(since_s).where(_Row.image_id == image_id)).first()
    return _on_hosts(*found) if found else None


def _together(since_s: float) -> sa.Select[Any]:
    is_warm = sa.case((_Row.missing_bytes == 0, 1), else_=0)
    is_used = sa.case((_Row.is_used, 1), else_=0)
    is_fully_cached = sa.case((sa.and_(_Row.is_used, _Row.is_fully_cached), 1), else_=0)
    # SQLite's integer sums could overflow, which forged samples could exploit
    sums = [sa.func.sum(getattr(_Row, name) * 1.0) for name in ("cached_bytes", *_COUNTED)]
    return (
        sa.select(
            _Row.image_id,
            sa.func.count(),
            sa.func.sum(is_warm),
            sa.func.sum(is_used),
            sa.func.sum(is_fully_cached),
            sa.func.max(_Row.size_bytes),
            sa.func.max(_Row.boot_revision),
            *sums,
        )
        .join(models.Host, models.Host.host == _Row.host)
        .where(models.Host.seen_s >= since_s)
        .group_by(_Row.image_id)
    )


class Uses(NamedTuple):
    """Uses of images by hosts' instances."""

    uses: int  # pairs of a host and an image
    fully_cached: int  # those of them where the image is fully cached
    unfinished: list[models.HeldImage]  # rows of the others, ``limit`` at most


def count_uses(session: orm.Session, since_s: float, limit: int) -> Uses:
    """Count the uses of images on hosts with a sample since a time."""
    is_ours = sa.and_(models.Host.seen_s >= since_s, _Row.is_used)
    count = sa.func.count
    totals = sa.select(count(), count(sa.case((_Row.is_fully_cached, 1)))).select_from(_Row)
    join = models.Host, models.Host.host == _Row.host
    all_, fully_cached = session.execute(totals.join(*join).where(is_ours)).one()
    wanted = sa.select(_Row).join(*join).where(is_ours, _Row.is_fully_cached.is_(False))
    rows = session.execute(wanted.order_by(_Row.image_id, _Row.host).limit(limit)).scalars()
    return Uses(int(all_), int(fully_cached), list(rows))


def list_hosts(session: orm.Session, image_id: str, since_s: float) -> list[models.HeldImage]:
    """Return an image on each live host."""
    wanted = (
        sa.select(_Row)
        .join(models.Host, models.Host.host == _Row.host)
        .where(_Row.image_id == image_id, models.Host.seen_s >= since_s)
        .order_by(_Row.host)
    )
    return list(session.execute(wanted).scalars())


class Locality(NamedTuple):
    """Cached data of an image on one host, and the traffic of the host's links."""

    host: str
    boot_set_bytes: int | None
    boot_set_cached_bytes: int | None
    cached_bytes: int | None
    missing_bytes: int | None
    link_bytes_s: int
    received_bytes_s: float
    sent_bytes_s: float


def list_locality(
    session: orm.Session, image_id: str, since_s: float, limit: int
) -> list[Locality]:
    """Return an image on live hosts with data of it, those with most of the boot set first."""
    host, zero = models.Host, sa.literal(0)
    boot_set = sa.func.coalesce(_Row.boot_set_cached_bytes, zero)
    cached = sa.func.coalesce(_Row.cached_bytes, zero)
    wanted = (
        sa.select(
            *(_Row.host, _Row.boot_set_bytes, _Row.boot_set_cached_bytes, _Row.cached_bytes),
            *(_Row.missing_bytes, host.link_bytes_s, host.received_bytes_s, host.sent_bytes_s),
        )
        .join(host, host.host == _Row.host)
        .where(
            _Row.image_id == image_id,
            host.seen_s >= since_s,
            sa.or_(boot_set > 0, cached > 0),
        )
        .order_by(boot_set.desc(), cached.desc(), _Row.host)
        .limit(limit)
    )
    return [Locality(*row) for row in session.execute(wanted)]


_READ = ("read_local_bytes", "read_boot_bytes", "read_peer_bytes", "read_source_bytes")
_FETCHED = ("fetched_peer_bytes", "fetched_source_bytes")
_COUNTED = (*_READ, *_FETCHED)


def _row(host: str, image_id: str, held: decision_messages.HeldImage) -> dict[str, Any]:
    counted = (*msgspec.structs.astuple(held.read), *msgspec.structs.astuple(held.fetched))
    return {
        "host": host,
        "image_id": image_id,
        "size_bytes": held.size_bytes,
        "cached_bytes": held.cached_bytes,
        "missing_bytes": held.missing_bytes,
        "boot_image": held.boot_image,
        "boot_revision": held.boot_revision,
        "boot_set_bytes": held.boot_set_bytes,
        "boot_set_cached_bytes": held.boot_set_cached_bytes,
        **dict(zip(_COUNTED, counted, strict=True)),
        "is_used": held.fill is None or held.fill.is_used,  # unreported: it may be used
        "is_fully_cached": held.fill is not None and held.fill.is_fully_cached,
        "fill": msgspec.json.encode(held.fill).decode() if held.fill else None,
        "task": msgspec.json.encode(held.task).decode() if held.task else None,
    }


def read_of(row: models.HeldImage) -> decision_messages.ReadBytes:
    """Return the bytes that guests of a host read of an image."""
    return decision_messages.ReadBytes(*(getattr(row, name) for name in _READ))


def fetched_of(row: models.HeldImage) -> decision_messages.FetchedBytes:
    """Return the bytes that a host fetched of an image."""
    return decision_messages.FetchedBytes(*(getattr(row, name) for name in _FETCHED))


def fill_of(row: models.HeldImage) -> fill_progress.FillStatus | None:
    """Return the fill status of an image on a host; None if it is unknown."""
    return json_columns.decode(row, "fill", fill_progress.FillStatus)


def task_of(row: models.HeldImage) -> decision_messages.TaskProgress | None:
    """Return the progress of the last task for an image on a host; None if it is unknown."""
    return json_columns.decode(row, "task", decision_messages.TaskProgress)


def _on_hosts(image_id: str, *numbers: Any) -> ImageTotals:
    hosts, warm, using, fully_cached, size, revision, cached, *counted = (
        int(number or 0) for number in numbers
    )
    read, fetched = counted[: len(_READ)], counted[len(_READ) :]
    return ImageTotals(
        image_id,
        hosts,
        warm,
        using,
        fully_cached,
        size,
        cached,
        revision,
        decision_messages.ReadBytes(*read),
        decision_messages.FetchedBytes(*fetched),
    )
