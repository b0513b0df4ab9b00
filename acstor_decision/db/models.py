# SPDX-License-Identifier: Apache-2.0
"""Tables of the database, with times in seconds since 1970; a change needs a migration."""

from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import mysql

MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class Base(orm.DeclarativeBase):
    """Base of all tables."""

    type_annotation_map: ClassVar = {int: sa.BigInteger, float: sa.Double}


class Host(Base):
    """A host that sent a sample, with its last sample."""

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
    """An image on a host, as last reported; its flags repeat parts of ``fill``, for counting."""

    __tablename__ = "held_images"
    __table_args__ = (
        sa.Index("held_images_by_image", "image_id"),
        sa.Index("held_images_needed", "is_used", "is_fully_cached", "image_id"),
        MYSQL,
    )

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    size_bytes: orm.Mapped[int | None]
    cached_bytes: orm.Mapped[int | None]
    missing_bytes: orm.Mapped[int | None]
    boot_image: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    boot_revision: orm.Mapped[int]
    boot_set_bytes: orm.Mapped[int | None]
    boot_set_cached_bytes: orm.Mapped[int | None]
    read_local_bytes: orm.Mapped[int]
    read_boot_bytes: orm.Mapped[int]
    read_peer_bytes: orm.Mapped[int]
    read_source_bytes: orm.Mapped[int]
    fetched_peer_bytes: orm.Mapped[int]
    fetched_source_bytes: orm.Mapped[int]
    is_used: orm.Mapped[bool]
    is_fully_cached: orm.Mapped[bool]
    fill: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    task: orm.Mapped[str | None] = orm.mapped_column(sa.Text)


class Boot(Base):
    """The last boot of a server on a host (``boot_timeline.Timeline``)."""

    __tablename__ = "boots"
    __table_args__ = (
        sa.Index("boots_by_server", "server_id"),
        sa.Index("boots_by_time", "reported_s"),
        MYSQL,
    )

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    server_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    reported_s: orm.Mapped[float]
    timeline: orm.Mapped[str] = orm.mapped_column(LONG_TEXT)


class Checkpoint(Base):
    """A checkpoint of a server's disk (``checkpoint_messages.RegisteredCheckpoint``)."""

    __tablename__ = "checkpoints"
    __table_args__ = (
        sa.Index("checkpoints_by_instance", "instance_id", "registered_s"),
        sa.Index("checkpoints_by_host", "host"),
        sa.Index("checkpoints_by_time", "registered_s"),
        MYSQL,
    )

    checkpoint_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    instance_id: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    project_id: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    vault_disk: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    taken_ms: orm.Mapped[int]
    registered_s: orm.Mapped[float]
    consistency: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    number: orm.Mapped[int]
    size_bytes: orm.Mapped[int]
    changed_bytes: orm.Mapped[int]
    sent_bytes: orm.Mapped[int]
    interval_s: orm.Mapped[int]
    manifest_name: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    holders: orm.Mapped[str] = orm.mapped_column(LONG_TEXT)
    disk_key: orm.Mapped[str] = orm.mapped_column(sa.String(64))  # decrypts the holders' data
    gone_s: orm.Mapped[float | None]  # Nova does not know the server since then
    off_hosts_s: orm.Mapped[float | None]  # it is on no host since then, as when shelved
    recovered_s: orm.Mapped[float | None]  # start of a recovery that may not be over


class CheckpointFailures(Base):
    """Checkpoint failures of a host and its vault: a list of Failing, in JSON."""

    __tablename__ = "checkpoint_failures"
    __table_args__ = MYSQL

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    reported_s: orm.Mapped[float]
    failing: orm.Mapped[str] = orm.mapped_column(LONG_TEXT)


class PendingTask(Base):
    """The last task of a host for an image, until a sample acknowledges it."""

    __tablename__ = "pending_tasks"
    __table_args__ = MYSQL

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    request: orm.Mapped[int]
    sent_s: orm.Mapped[float]
    task: orm.Mapped[str] = orm.mapped_column(sa.Text)


class AuthorityKey(Base):
    """A key of the certificate authority (``ca``) or of the table signer (``signer``).

    The highest number whose ``signs_from_s`` has passed is in use.
    """

    __tablename__ = "authority_keys"
    __table_args__ = MYSQL

    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16), primary_key=True)
    number: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    secret_key: orm.Mapped[str] = orm.mapped_column(sa.Text)
    certificate: orm.Mapped[str] = orm.mapped_column(sa.Text, default="")
    made_s: orm.Mapped[float]
    signs_from_s: orm.Mapped[float]
    trusted_until_s: orm.Mapped[float | None]  # None: without limit


class Enrolment(Base):
    """A host that requested a certificate or that an operator allowed or revoked.

    ``public_key`` is that of its last certificate; ``former_key`` the previous one until the host
    has used the last one; ``allowed_fingerprint`` that of the only key that may enrol.
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
    """Number of refused certificate requests, by ``enrolment_rules.Verdict``."""

    __tablename__ = "refused_enrolments"
    __table_args__ = MYSQL

    reason: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    times: orm.Mapped[int]


class Listener(Base):
    """A Glance listener and the time of its last report."""

    __tablename__ = "listeners"
    __table_args__ = MYSQL

    listener: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    reported_s: orm.Mapped[float]


class GrantableImage(Base):
    """An image that hosts may read by grants, and when Nova or an operator last named it."""

    __tablename__ = "grantable_images"
    __table_args__ = MYSQL

    image_id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    named_s: orm.Mapped[float]


class PublishedRing(Base):
    """A published v-node table."""

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


class HostTraffic(Base):
    """Traffic of one host in one collection, in bytes a second."""

    __tablename__ = "traffic"
    __table_args__ = (sa.Index("traffic_by_time", "collected_s"), MYSQL)

    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    collected_s: orm.Mapped[float] = orm.mapped_column(primary_key=True)
    received_bytes_s: orm.Mapped[float]
    sent_bytes_s: orm.Mapped[float]
    chunks_received_bytes_s: orm.Mapped[float]
    chunks_sent_bytes_s: orm.Mapped[float]
