# SPDX-License-Identifier: Apache-2.0
"""Statements about hosts; :mod:`acstor_decision.db.database` runs them."""

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import orm

from acstor_decision.db import models

_Row = models.Host


def list_hosts(session: orm.Session) -> list[models.Host]:
    """Return all known hosts, sorted by ID."""
    return list(session.execute(sa.select(_Row).order_by(_Row.host)).scalars())


def list_exchanging(session: orm.Session, limit: int, since_s: float) -> list[models.Host]:
    """Return live hosts that exchange chunks, those with the most chunk traffic first."""
    traffic = _Row.chunks_received_bytes_s + _Row.chunks_sent_bytes_s
    wanted = sa.select(_Row).where(_Row.seen_s >= since_s, traffic > 0)
    return list(session.execute(wanted.order_by(traffic.desc(), _Row.host).limit(limit)).scalars())


def get_host(session: orm.Session, host: str) -> models.Host | None:
    """Return one host."""
    return session.get(_Row, host)


def addresses_of(session: orm.Session, hosts: Collection[str]) -> dict[str, str]:
    """Return the addresses of these hosts' agents, where known."""
    wanted = sa.select(_Row.host, _Row.address).where(_Row.host.in_(hosts), _Row.address != "")
    return {host: address for host, address in session.execute(wanted)}


def list_drained(session: orm.Session) -> frozenset[str]:
    """Return the hosts that must not be homes."""
    wanted = sa.select(_Row.host).where(_Row.is_drained.is_(True))
    return frozenset(session.execute(wanted).scalars())


def set_drained(session: orm.Session, host: str, is_drained: bool) -> bool:
    """Drain a host or enable it again; return whether it is known."""
    if session.get(_Row, host) is None:
        return False
    session.execute(sa.update(_Row).where(_Row.host == host).values(is_drained=is_drained))
    return True
