# SPDX-License-Identifier: Apache-2.0
"""The tables of the database.

Times are seconds since 1970.  A change here is a new migration beside the others.
"""

from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import mysql

MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Base(orm.DeclarativeBase):
    """What all tables have in common."""

    type_annotation_map: ClassVar = {int: sa.BigInteger, float: sa.Double}


class Host(Base):
    """A host that has been on the ring, or was drained before, with its last sample."""

    __tablename__ = "hosts"
    __table_args__ = MYSQL

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    is_drained: orm.Mapped[bool] = orm.mapped_column(default=False)
    address: orm.Mapped[str] = orm.mapped_column(sa.String(64), default="")
    location: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    first_seen_s: orm.Mapped[float | None]
    seen_s: orm.Mapped[float | None]
    ring_epoch: orm.Mapped[int] = orm.mapped_column(default=0)
    link_bytes_s: orm.Mapped[int] = orm.mapped_column(default=0)
    received_bytes_s: orm.Mapped[float] = orm.mapped_column(default=0.0)
    sent_bytes_s: orm.Mapped[float] = orm.mapped_column(default=0.0)
    chunks_received_bytes_s: orm.Mapped[float] = orm.mapped_column(default=0.0)
    chunks_sent_bytes_s: orm.Mapped[float] = orm.mapped_column(default=0.0)
    cache_bytes: orm.Mapped[int] = orm.mapped_column(default=0)
    cache_limit_bytes: orm.Mapped[int] = orm.mapped_column(default=0)
    overloaded_in_a_row: orm.Mapped[int] = orm.mapped_column(sa.Integer, default=0)
    peers: orm.Mapped[str | None] = orm.mapped_column(LONG_TEXT)
    health: orm.Mapped[str | None] = orm.mapped_column(LONG_TEXT)


class HeldImage(Base):
    """An image on a host, as its agent told last (``decision_messages.HeldImage``).

    ``is_used`` and ``is_whole`` say again what is in ``whole``, for statements that count.
    """

    __tablename__ = "held_images"
    __table_args__ = (
        sa.Index("held_images_by_image", "image_id"),
        sa.Index("held_images_needed", "is_used", "is_whole", "image_id"),
        MYSQL,
    )

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    size_bytes: orm.Mapped[int | None]
    cached_bytes: orm.Mapped[int | None]
    missing_bytes: orm.Mapped[int | None]
    boot_image: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    boot_revision: orm.Mapped[int]
    read_local_bytes: orm.Mapped[int]
    read_boot_bytes: orm.Mapped[int]
    read_peer_bytes: orm.Mapped[int]
    read_source_bytes: orm.Mapped[int]
    fetched_peer_bytes: orm.Mapped[int]
    fetched_source_bytes: orm.Mapped[int]
    is_used: orm.Mapped[bool]
    is_whole: orm.Mapped[bool]
    whole: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    task: orm.Mapped[str | None] = orm.mapped_column(sa.Text)


class Boot(Base):
    """The last boot of a server on a host, as its agent told it (``boot_timeline.Timeline``)."""

    __tablename__ = "boots"
    __table_args__ = (
        sa.Index("boots_by_server", "server_id"),
        sa.Index("boots_by_time", "told_s"),
        MYSQL,
    )

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    server_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    told_s: orm.Mapped[float]
    timeline: orm.Mapped[str] = orm.mapped_column(LONG_TEXT)


class Checkpoint(Base):
    """A checkpoint of a server's disk that hosts keep
    (``checkpoint_messages.RegisteredCheckpoint``).

    ``told_s`` is when it was registered; ``gone_s`` since when Nova does not know the server;
    ``off_hosts_s`` since when the server is on no host, as one that is shelved;
    ``recovered_s`` when it was last given out for a recovery that is not known to be over.
    ``disk_key`` opens what the holders have of the disk.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (
        sa.Index("checkpoints_by_instance", "instance_id", "told_s"),
        sa.Index("checkpoints_by_host", "host"),
        sa.Index("checkpoints_by_time", "told_s"),
        MYSQL,
    )

    checkpoint_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    instance_id: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    project_id: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    vault_disk: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    taken_ms: orm.Mapped[int]
    told_s: orm.Mapped[float]
    consistency: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    number: orm.Mapped[int]
    size_bytes: orm.Mapped[int]
    changed_bytes: orm.Mapped[int]
    sent_bytes: orm.Mapped[int]
    interval_s: orm.Mapped[int]
    manifest_name: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    holders: orm.Mapped[str] = orm.mapped_column(LONG_TEXT)
    disk_key: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    gone_s: orm.Mapped[float | None]
    off_hosts_s: orm.Mapped[float | None]
    recovered_s: orm.Mapped[float | None]


class CheckpointFailures(Base):
    """The checkpoint failures of a host and its vault, as it reports them: Failing, in JSON."""

    __tablename__ = "checkpoint_failures"
    __table_args__ = MYSQL

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    told_s: orm.Mapped[float]
    failing: orm.Mapped[str] = orm.mapped_column(LONG_TEXT)


class GivenTask(Base):
    """The last task that a host was given for an image, until its samples speak of it."""

    __tablename__ = "given_tasks"
    __table_args__ = MYSQL

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    request: orm.Mapped[int]
    given_s: orm.Mapped[float]
    task: orm.Mapped[str] = orm.mapped_column(sa.Text)


class AuthorityKey(Base):
    """A key of the certificate authority (``ca``) or of who signs tables (``signer``).

    The key with the highest number whose ``signs_from_s`` has come is the one in use; the others
    are trusted until ``trusted_until_s``, or for good if it is None.
    """

    __tablename__ = "authority_keys"
    __table_args__ = MYSQL

    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16), primary_key=True)
    number: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    secret_key: orm.Mapped[str] = orm.mapped_column(sa.Text)
    certificate: orm.Mapped[str] = orm.mapped_column(sa.Text, default="")
    made_s: orm.Mapped[float]
    signs_from_s: orm.Mapped[float]
    trusted_until_s: orm.Mapped[float | None]


class Enrolment(Base):
    """A host that asked for a certificate, or that an operator spoke of before it did.

    ``public_key`` is that of its last certificate, ``former_key`` that of the one before until the
    host has shown that it has the last one.  ``allowed_fingerprint`` is that of the one key that an
    operator lets in, until it has come.
    """

    __tablename__ = "enrolments"
    __table_args__ = MYSQL

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    state: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    user_id: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    address: orm.Mapped[str] = orm.mapped_column(sa.String(64), default="")
    public_key: orm.Mapped[str] = orm.mapped_column(sa.Text, default="")
    former_key: orm.Mapped[str] = orm.mapped_column(sa.Text, default="")
    asked_s: orm.Mapped[float | None]
    issued_s: orm.Mapped[float | None]
    not_after_s: orm.Mapped[float | None]
    revoked_before_s: orm.Mapped[int] = orm.mapped_column(default=0)
    allowed_fingerprint: orm.Mapped[str] = orm.mapped_column(sa.String(64), default="")


class RefusedEnrolments(Base):
    """How many requests for a certificate were refused, by the reason (``enrolment.Verdict``)."""

    __tablename__ = "refused_enrolments"
    __table_args__ = MYSQL

    reason: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    times: orm.Mapped[int]


class Listener(Base):
    """A listener beside Glance, and when it reported last that it runs."""

    __tablename__ = "listeners"
    __table_args__ = MYSQL

    listener: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    reported_s: orm.Mapped[float]


class PublishedRing(Base):
    """A v-node table that was published; the epoch is given to one table only."""

    __tablename__ = "rings"
    __table_args__ = MYSQL

    epoch: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    published_s: orm.Mapped[float]
    reason: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    overloaded: orm.Mapped[str] = orm.mapped_column(LONG_TEXT, default="")
    moved: orm.Mapped[int] = orm.mapped_column(sa.Integer)
    vnodes: orm.Mapped[int] = orm.mapped_column(sa.Integer)
    hosts: orm.Mapped[int] = orm.mapped_column(sa.Integer)
    instance: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    table: orm.Mapped[str] = orm.mapped_column("ring_table", LONG_TEXT)


class Traffic(Base):
    """One host in one collection, in bytes a second."""

    __tablename__ = "traffic"
    __table_args__ = (sa.Index("traffic_by_time", "collected_s"), MYSQL)

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    collected_s: orm.Mapped[float] = orm.mapped_column(primary_key=True)
    received_bytes_s: orm.Mapped[float]
    sent_bytes_s: orm.Mapped[float]
    chunks_received_bytes_s: orm.Mapped[float]
    chunks_sent_bytes_s: orm.Mapped[float]
