# SPDX-License-Identifier: Apache-2.0
"""The tables of the database.

Times are seconds since 1970.  A change here is a new migration beside the others.
"""

import sqlalchemy as sa
from oslo_db.sqlalchemy import models
from sqlalchemy import orm
from sqlalchemy.dialects import mysql

BASE = orm.declarative_base(cls=models.ModelBase)
MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Host(BASE):
    """A host that has been on the ring, or was drained before, with its last sample."""

    __tablename__ = "hosts"
    __table_args__ = MYSQL

    host = sa.Column(sa.String(255), primary_key=True)
    is_drained = sa.Column(sa.Boolean, nullable=False, default=False)
    address = sa.Column(sa.String(64), nullable=False, default="")
    location = sa.Column(sa.String(255), nullable=False, default="")
    first_seen_s = sa.Column(sa.Double)
    seen_s = sa.Column(sa.Double)
    ring_epoch = sa.Column(sa.BigInteger, nullable=False, default=0)
    link_bytes_s = sa.Column(sa.BigInteger, nullable=False, default=0)
    received_bytes_s = sa.Column(sa.Double, nullable=False, default=0.0)
    sent_bytes_s = sa.Column(sa.Double, nullable=False, default=0.0)
    chunks_received_bytes_s = sa.Column(sa.Double, nullable=False, default=0.0)
    chunks_sent_bytes_s = sa.Column(sa.Double, nullable=False, default=0.0)
    cache_bytes = sa.Column(sa.BigInteger, nullable=False, default=0)
    cache_limit_bytes = sa.Column(sa.BigInteger, nullable=False, default=0)
    overloaded_in_a_row = sa.Column(sa.Integer, nullable=False, default=0)
    peers = sa.Column(LONG_TEXT)


class HeldImage(BASE):
    """An image on a host, as its agent told last (``decision_api.HeldImage``)."""

    __tablename__ = "held_images"
    __table_args__ = (sa.Index("held_images_by_image", "image_id"), MYSQL)

    host = sa.Column(sa.String(255), primary_key=True)
    image_id = sa.Column(sa.String(36), primary_key=True)
    size_bytes = sa.Column(sa.BigInteger)
    cached_bytes = sa.Column(sa.BigInteger)
    boot_image = sa.Column(sa.String(16), nullable=False)
    boot_revision = sa.Column(sa.BigInteger, nullable=False)
    read_local_bytes = sa.Column(sa.BigInteger, nullable=False)
    read_boot_bytes = sa.Column(sa.BigInteger, nullable=False)
    read_peer_bytes = sa.Column(sa.BigInteger, nullable=False)
    read_source_bytes = sa.Column(sa.BigInteger, nullable=False)
    fetched_peer_bytes = sa.Column(sa.BigInteger, nullable=False)
    fetched_source_bytes = sa.Column(sa.BigInteger, nullable=False)
    task = sa.Column(sa.Text)


class GivenTask(BASE):
    """The last task that a host was given for an image, until its samples speak of it."""

    __tablename__ = "given_tasks"
    __table_args__ = MYSQL

    host = sa.Column(sa.String(255), primary_key=True)
    image_id = sa.Column(sa.String(36), primary_key=True)
    request = sa.Column(sa.BigInteger, nullable=False)
    given_s = sa.Column(sa.Double, nullable=False)
    task = sa.Column(sa.Text, nullable=False)


class PublishedRing(BASE):
    """A v-node table that was published; the epoch is given to one table only."""

    __tablename__ = "rings"
    __table_args__ = MYSQL

    epoch = sa.Column(sa.BigInteger, primary_key=True, autoincrement=False)
    published_s = sa.Column(sa.Double, nullable=False)
    reason = sa.Column(sa.String(32), nullable=False)
    overloaded = sa.Column(LONG_TEXT, nullable=False, default="")
    moved = sa.Column(sa.Integer, nullable=False)
    vnodes = sa.Column(sa.Integer, nullable=False)
    hosts = sa.Column(sa.Integer, nullable=False)
    instance = sa.Column(sa.String(255), nullable=False)
    table = sa.Column("ring_table", LONG_TEXT, nullable=False)


class Traffic(BASE):
    """One host in one collection, in bytes a second."""

    __tablename__ = "traffic"
    __table_args__ = (sa.Index("traffic_by_time", "collected_s"), MYSQL)

    host = sa.Column(sa.String(255), primary_key=True)
    collected_s = sa.Column(sa.Double, primary_key=True)
    received_bytes_s = sa.Column(sa.Double, nullable=False)
    sent_bytes_s = sa.Column(sa.Double, nullable=False)
    chunks_received_bytes_s = sa.Column(sa.Double, nullable=False)
    chunks_sent_bytes_s = sa.Column(sa.Double, nullable=False)
