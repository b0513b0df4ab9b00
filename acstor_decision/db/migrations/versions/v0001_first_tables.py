# SPDX-License-Identifier: Apache-2.0
"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Create the tables."""
    _create_hosts()
    _create_images()
    _create_checkpoints()
    _create_certificates()
    _create_tasks_and_rings()


def _create_hosts() -> None:
    op.create_table(
        "hosts",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("is_drained", sa.Boolean, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("location", sa.String(255), nullable=False),
        sa.Column("first_seen_s", sa.Double),
        sa.Column("seen_s", sa.Double),
        sa.Column("ring_epoch", sa.BigInteger, nullable=False),
        sa.Column("link_bytes_s", sa.BigInteger, nullable=False),
        sa.Column("received_bytes_s", sa.Double, nullable=False),
        sa.Column("sent_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_received_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_sent_bytes_s", sa.Double, nullable=False),
        sa.Column("cache_bytes", sa.BigInteger, nullable=False),
        sa.Column("cache_limit_bytes", sa.BigInteger, nullable=False),
        sa.Column("overloaded_in_a_row", sa.Integer, nullable=False),
        sa.Column("peers", LONG_TEXT),
        sa.Column("health", LONG_TEXT),
        **MYSQL,
    )
    op.create_table(
        "traffic",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("collected_s", sa.Double, primary_key=True),
        sa.Column("received_bytes_s", sa.Double, nullable=False),
        sa.Column("sent_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_received_bytes_s", sa.Double, nullable=False),
        sa.Column("chunks_sent_bytes_s", sa.Double, nullable=False),
        sa.Index("traffic_by_time", "collected_s"),
        **MYSQL,
    )


def _create_images() -> None:
    op.create_table(
        "held_images",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("image_id", sa.String(36), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("cached_bytes", sa.BigInteger),
        sa.Column("missing_bytes", sa.BigInteger),
        sa.Column("boot_image", sa.String(16), nullable=False),
        sa.Column("boot_revision", sa.BigInteger, nullable=False),
        sa.Column("boot_set_bytes", sa.BigInteger),
        sa.Column("boot_set_cached_bytes", sa.BigInteger),
        sa.Column("read_local_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_boot_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_peer_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_source_bytes", sa.BigInteger, nullable=False),
        sa.Column("fetched_peer_bytes", sa.BigInteger, nullable=False),
        sa.Column("fetched_source_bytes", sa.BigInteger, nullable=False),
        sa.Column("is_used", sa.Boolean, nullable=False),
        sa.Column("is_fully_cached", sa.Boolean, nullable=False),
        sa.Column("fill", sa.Text),
        sa.Column("task", sa.Text),
        sa.Index("held_images_by_image", "image_id"),
        sa.Index("held_images_needed", "is_used", "is_fully_cached", "image_id"),
        **MYSQL,
    )
    op.create_table(
        "boots",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("server_id", sa.String(36), primary_key=True),
        sa.Column("reported_s", sa.Double, nullable=False),
        sa.Column("timeline", LONG_TEXT, nullable=False),
        sa.Index("boots_by_server", "server_id"),
        sa.Index("boots_by_time", "reported_s"),
        **MYSQL,
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("checkpoint_id", sa.String(36), primary_key=True),
        sa.Column("instance_id", sa.String(36), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("vault_disk", sa.String(36), nullable=False),
        sa.Column("image_id", sa.String(36), nullable=False),
        sa.Column("taken_ms", sa.BigInteger, nullable=False),
        sa.Column("registered_s", sa.Double, nullable=False),
        sa.Column("consistency", sa.String(16), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("changed_bytes", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("interval_s", sa.BigInteger, nullable=False),
        sa.Column("manifest_name", sa.String(64), nullable=False),
        sa.Column("holders", LONG_TEXT, nullable=False),
        sa.Column("disk_key", sa.String(64), nullable=False),
        sa.Column("gone_s", sa.Double),
        sa.Column("off_hosts_s", sa.Double),
        sa.Column("recovered_s", sa.Double),
        sa.Index("checkpoints_by_host", "host"),
        sa.Index("checkpoints_by_instance", "instance_id", "registered_s"),
        sa.Index("checkpoints_by_time", "registered_s"),
        **MYSQL,
    )
    op.create_table(
        "checkpoint_failures",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("reported_s", sa.Double, nullable=False),
        sa.Column("failing", LONG_TEXT, nullable=False),
        **MYSQL,
    )


def _create_certificates() -> None:
    op.create_table(
        "authority_keys",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("secret_key", sa.Text, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("made_s", sa.Double, nullable=False),
        sa.Column("signs_from_s", sa.Double, nullable=False),
        sa.Column("trusted_until_s", sa.Double),
        **MYSQL,
    )
    op.create_table(
        "enrolments",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("public_key", sa.Text, nullable=False),
        sa.Column("former_key", sa.Text, nullable=False),
        sa.Column("asked_s", sa.Double),
        sa.Column("issued_s", sa.Double),
        sa.Column("not_after_s", sa.Double),
        sa.Column("revoked_before_s", sa.BigInteger, nullable=False),
        sa.Column("allowed_fingerprint", sa.String(64), nullable=False),
        **MYSQL,
    )
    op.create_table(
        "refused_enrolments",
        sa.Column("reason", sa.String(32), primary_key=True),
        sa.Column("times", sa.BigInteger, nullable=False),
        **MYSQL,
    )


def _create_tasks_and_rings() -> None:
    op.create_table(
        "pending_tasks",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("image_id", sa.String(36), primary_key=True),
        sa.Column("request", sa.BigInteger, nullable=False),
        sa.Column("sent_s", sa.Double, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        **MYSQL,
    )
    op.create_table(
        "grantable_images",  # that hosts may read by grants
        sa.Column("image_id", sa.String(36), primary_key=True),
        sa.Column("named_s", sa.Double, nullable=False),
        **MYSQL,
    )
    op.create_table(
        "listeners",
        sa.Column("listener", sa.String(255), primary_key=True),
        sa.Column("reported_s", sa.Double, nullable=False),
        **MYSQL,
    )
    op.create_table(
        "rings",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("published_s", sa.Double, nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("overloaded", LONG_TEXT, nullable=False),
        sa.Column("moved", sa.Integer, nullable=False),
        sa.Column("vnodes", sa.Integer, nullable=False),
        sa.Column("hosts", sa.Integer, nullable=False),
        sa.Column("instance", sa.String(255), nullable=False),
        sa.Column("ring_table", LONG_TEXT, nullable=False),
        **MYSQL,
    )
