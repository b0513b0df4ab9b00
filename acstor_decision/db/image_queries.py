# SPDX-License-Identifier: Apache-2.0
"""The statements about images on hosts; :mod:`acstor_decision.db.database` runs them."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision.core import enrolment_rules
from acstor_decision.db import models

ROW = models.HeldImage
KEPT_S = 86400.0
"""For how long it is remembered what a host that fell silent has told of its images."""


class ImageTotals(NamedTuple):
    """One image on all hosts.

    :param warm_hosts: those that need no other host and no store for any of it
    :param using_hosts: those whose instances use it, or may use it
    :param whole_hosts: those of them where it is whole, and stays so as long as it is used
    :param size_bytes: its length; 0 if no host knows it
    """

    image_id: str
    hosts: int
    warm_hosts: int
    using_hosts: int
    whole_hosts: int
    size_bytes: int
    cached_bytes: int
    boot_revision: int
    read: decision_messages.ReadBytes
    fetched: decision_messages.FetchedBytes


class Needed(NamedTuple):
    """The images that hosts use and that are not whole there; hosts that are revoked do not count.

    :param is_complete: there are no others
    :param heard_s: when a host was heard last; None: there is none
    :param known_since_s: when the first of the hosts was heard first
    :param silent_hosts: those that were heard, but not lately
    """

    image_ids: list[str]
    is_complete: bool
    heard_s: float | None
    known_since_s: float | None
    silent_hosts: int


def replace_images(session: orm.Session, samples: Mapping[str, decision_messages.Sample]) -> None:
    """Let what hosts tell of their images take the place of what they told before."""
    told = {host: samples[host].images for host in sorted(samples)}
    hosts = [host for host, images in told.items() if images is not None]
    if not hosts:
        return
    session.execute(sa.delete(ROW).where(ROW.host.in_(hosts)))
    rows = [
        _row(host, image_id, held)
        for host in hosts
        for image_id, held in sorted((told[host] or {}).items())
    ]
    if rows:
        session.execute(sa.insert(ROW), rows)


def forget_silent(session: orm.Session, before_s: float) -> None:
    """Forget what hosts told that were not heard since a time: they are gone, or will tell anew."""
    silent = sa.select(models.Host.host).where(models.Host.seen_s < before_s)
    session.execute(sa.delete(ROW).where(ROW.host.in_(silent)))


def list_needed(session: orm.Session, since_s: float, lately_s: float, limit: int) -> Needed:
    """Return the images that hosts need which were heard since a time, ``limit`` at most.

    If there are more, those of the hosts that are known longest: names that somebody enrols to
    claim images push out nothing that other hosts need.

    :param lately_s: who was not heard since then is silent
    """
    host, enrolled = models.Host, models.Enrolment
    is_revoked = sa.exists().where(
        enrolled.host == host.host, enrolled.state == enrolment_rules.EnrolmentState.REVOKED
    )
    wanted = (
        sa.select(ROW.image_id)
        .join(host, host.host == ROW.host)
        .where(ROW.is_used.is_(True), ROW.is_whole.is_(False), host.seen_s >= since_s, ~is_revoked)
        .group_by(ROW.image_id)
        .order_by(sa.func.min(host.first_seen_s), ROW.image_id)
        .limit(limit + 1)
    )
    is_silent = sa.and_(host.seen_s >= since_s, host.seen_s < lately_s)
    times = sa.select(
        sa.func.max(host.seen_s),
        sa.func.min(host.first_seen_s),
        sa.func.sum(sa.case((is_silent, 1), else_=0)),
    ).where(~is_revoked)
    found = list(session.execute(wanted).scalars())
    heard_s, known_since_s, silent = session.execute(times).one()
    return Needed(found[:limit], len(found) <= limit, heard_s, known_since_s, int(silent or 0))


def list_images(session: orm.Session, after: str, limit: int, since_s: float) -> list[ImageTotals]:
    """Return images behind one of them, with what the living hosts hold of them together."""
    wanted = _together(since_s).where(ROW.image_id > after).order_by(ROW.image_id).limit(limit)
    return [_on_hosts(*found) for found in session.execute(wanted)]


def get_image(session: orm.Session, image_id: str, since_s: float) -> ImageTotals | None:
    """Return one image; None if no living host holds it."""
    found = session.execute(_together(since_s).where(ROW.image_id == image_id)).first()
    return _on_hosts(*found) if found else None


def _together(since_s: float) -> sa.Select[Any]:
    is_warm = sa.case((ROW.missing_bytes == 0, 1), else_=0)
    is_used = sa.case((ROW.is_used, 1), else_=0)
    is_whole = sa.case((sa.and_(ROW.is_used, ROW.is_whole), 1), else_=0)
    # As integers, SQLite's sums would overflow, and whoever forges a sample could see to that.
    sums = [sa.func.sum(getattr(ROW, name) * 1.0) for name in ("cached_bytes", *_COUNTED)]
    return (
        sa.select(
            ROW.image_id,
            sa.func.count(),
            sa.func.sum(is_warm),
            sa.func.sum(is_used),
            sa.func.sum(is_whole),
            sa.func.max(ROW.size_bytes),
            sa.func.max(ROW.boot_revision),
            *sums,
        )
        .join(models.Host, models.Host.host == ROW.host)
        .where(models.Host.seen_s >= since_s)
        .group_by(ROW.image_id)
    )


class Uses(NamedTuple):
    """Images on the hosts whose instances use them, or may.

    :param uses: pairs of a host and an image
    :param whole: those of them where the image is whole
    :param unfinished: rows of the others, ``limit`` at most
    """

    uses: int
    whole: int
    unfinished: list[models.HeldImage]


def count_uses(session: orm.Session, since_s: float, limit: int) -> Uses:
    """Return how many images are whole where they are used, and where some are not.

    :param since_s: hosts that were not heard since then do not count
    """
    is_ours = sa.and_(models.Host.seen_s >= since_s, ROW.is_used)
    count = sa.func.count
    totals = sa.select(count(), count(sa.case((ROW.is_whole, 1)))).select_from(ROW)
    join = models.Host, models.Host.host == ROW.host
    all_, whole = session.execute(totals.join(*join).where(is_ours)).one()
    wanted = sa.select(ROW).join(*join).where(is_ours, ROW.is_whole.is_(False))
    rows = session.execute(wanted.order_by(ROW.image_id, ROW.host).limit(limit)).scalars()
    return Uses(int(all_), int(whole), list(rows))


def list_hosts(session: orm.Session, image_id: str, since_s: float) -> list[models.HeldImage]:
    """Return an image on each of the living hosts."""
    wanted = (
        sa.select(ROW)
        .join(models.Host, models.Host.host == ROW.host)
        .where(ROW.image_id == image_id, models.Host.seen_s >= since_s)
        .order_by(ROW.host)
    )
    return list(session.execute(wanted).scalars())


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
        **dict(zip(_COUNTED, counted, strict=True)),
        "is_used": held.fill is None or held.fill.is_used,  # who says nothing may use it
        "is_whole": held.fill is not None and held.fill.is_fully_cached,
        "whole": msgspec.json.encode(held.fill).decode() if held.fill else None,
        "task": msgspec.json.encode(held.task).decode() if held.task else None,
    }


def read_of(row: models.HeldImage) -> decision_messages.ReadBytes:
    """Return what guests of a host read of an image."""
    return decision_messages.ReadBytes(*(getattr(row, name) for name in _READ))


def fetched_of(row: models.HeldImage) -> decision_messages.FetchedBytes:
    """Return what came to a host of an image."""
    return decision_messages.FetchedBytes(*(getattr(row, name) for name in _FETCHED))


def fill_of(row: models.HeldImage) -> fill_progress.FillStatus | None:
    """Return how far an image is from being whole on a host; None: the host says nothing of it."""
    return msgspec.json.decode(row.whole or "null", type=fill_progress.FillStatus | None)


def _on_hosts(image_id: str, *numbers: Any) -> ImageTotals:
    """MariaDB adds up to decimals, and nothing adds up to None."""
    hosts, warm, using, whole, size, revision, cached, *counted = (
        int(number or 0) for number in numbers
    )
    read, fetched = counted[: len(_READ)], counted[len(_READ) :]
    return ImageTotals(
        image_id,
        hosts,
        warm,
        using,
        whole,
        size,
        cached,
        revision,
        decision_messages.ReadBytes(*read),
        decision_messages.FetchedBytes(*fetched),
    )
