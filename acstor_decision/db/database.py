# SPDX-License-Identifier: Apache-2.0
"""Access to the database; only this package uses SQL.

Each method is one transaction. It is retried after a deadlock, or while another process locks
SQLite's file. Methods raise :class:`DatabaseError`.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import api
from oslo_db import exception
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import engine
from sqlalchemy import orm

from acstor_common import errors
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import decision_messages
from acstor_decision.core import enrolment_rules
from acstor_decision.db import boot_queries
from acstor_decision.db import checkpoint_failure_queries
from acstor_decision.db import checkpoint_queries
from acstor_decision.db import connection_url
from acstor_decision.db import identity_queries
from acstor_decision.db import image_queries
from acstor_decision.db import listener_queries
from acstor_decision.db import migrations
from acstor_decision.db import models
from acstor_decision.db import sample_queries
from acstor_decision.db import task_queries

ENGINE_OPTIONS = (
    "connection",
    "slave_connection",
    "connection_recycle_time",
    "connection_debug",
    "connection_trace",
    "max_overflow",
    "max_pool_size",
    "mysql_sql_mode",
    "pool_timeout",
    "sqlite_synchronous",
)
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


class DatabaseError(errors.AcstorError):
    """The database is unreachable or a statement failed.

    :param where: its URL without the password
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"{connection_url.OPTION}: {self.where}: {self.why}"

    def as_unusable(self) -> errors.Unusable:
        """Return the error with which a command ends."""
        remedy = "Does it run, and may this user read and write it?"
        return errors.Unusable(connection_url.OPTION, f"{self.where}: {self.why}", remedy)


class EpochTaken(errors.AcstorError):
    """Another instance published a table of this epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"another instance has published epoch {self.epoch}"


class Publication(NamedTuple):
    """A v-node table in the history; ``table`` is its JSON, None if not requested."""

    epoch: int
    published_s: float
    reason: str
    overloaded: tuple[str, ...]
    moved: int
    vnodes: int
    hosts: int
    instance: str
    table: str | None = None


def _is_passing(error: Exception) -> bool:
    """Return whether a concurrent transaction caused the error, so a retry may help."""
    is_locked = "database is locked" in str(error)  # SQLite's message
    return is_locked or isinstance(error, exception.DBDuplicateEntry)


@contextlib.contextmanager
def _as_oslo_errors() -> Iterator[None]:
    """Convert errors that oslo.db does not convert, such as SQLite's lock."""
    try:
        yield
    except sa.exc.OperationalError as e:
        raise exception.DBError(e) from e


_again: Callable[[_F], _F] = api.wrap_db_retry(
    max_retries=20,
    retry_interval=0.05,
    max_retry_interval=0.5,
    retry_on_deadlock=True,
    exception_checker=_is_passing,
    jitter=True,
)


class Database:
    """The decision service's database.

    :param conf: with the options of oslo.db registered
    :param answer_s: timeout of a statement
    :raises errors.Unusable: the options name no usable database
    """

    def __init__(self, conf: cfg.ConfigOpts, answer_s: int = connection_url.ANSWER_S) -> None:
        connection_url.check_driver(conf.database.connection or "")
        connection_url.restrict_file_mode(conf.database.connection)
        connection_url.bound_waits(conf.database.connection, answer_s)
        self._contexts = enginefacade.transaction_context()
        options = {name: getattr(conf.database, name) for name in ENGINE_OPTIONS}
        for name in ("connection", "slave_connection"):
            if options[name]:
                options[name] = connection_url.with_deadline(options[name], answer_s)
        self._contexts.configure(max_retries=0, **options)
        self._where = connection_url.redacted_url(conf.database.connection)

    def engine(self) -> engine.Engine:
        """Return the engine for migrations."""
        with self._translated_errors():
            found: engine.Engine = self._contexts.writer.get_engine()
        return found

    def upgrade(self) -> None:
        """Upgrade the schema to this version."""
        with self._translated_errors():
            migrations.upgrade(self.engine())

    def is_current(self) -> bool:
        """Return whether the schema has this version."""
        with self._translated_errors():
            return migrations.is_current(self.engine())

    def close(self) -> None:
        """Close all connections."""
        self._contexts.dispose_pool()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert errors of SQLAlchemy and oslo.db into DatabaseError."""
        try:
            yield
        except (exception.DBError, sa.exc.DatabaseError) as e:
            raise DatabaseError(self._where, connection_url.error_reason(e)) from e

    def _read(self, work: Callable[[orm.Session], _T]) -> _T:
        with self._translated_errors():
            return self._try_read(work)

    def _write(self, work: Callable[[orm.Session], _T]) -> _T:
        with self._translated_errors():
            return self._try_write(work)

    @_again
    def _try_read(self, work: Callable[[orm.Session], _T]) -> _T:
        with _as_oslo_errors(), self._contexts.reader.using(_Context()) as session:
            return work(session)

    @_again
    def _try_write(self, work: Callable[[orm.Session], _T]) -> _T:
        with _as_oslo_errors(), self._contexts.writer.using(_Context()) as session:
            return work(session)

    # Rings

    def latest_epoch(self) -> int:
        """Return the epoch of the last published table; 0 if there is none."""
        newest = sa.select(sa.func.max(models.PublishedRing.epoch))
        return self._read(lambda session: session.execute(newest).scalar()) or 0

    def get_ring(self, epoch: int) -> Publication | None:
        """Return the table of an epoch; None if it is not kept."""
        found = self.list_rings(limit=1, at_most=epoch, with_tables=True)
        return found[0] if found and found[0].epoch == epoch else None

    def list_rings(
        self, limit: int, at_most: int | None = None, with_tables: bool = False
    ) -> list[Publication]:
        """Return published tables, the newest first, from epoch ``at_most`` on."""
        row = models.PublishedRing
        fields = [getattr(row, name) for name in Publication._fields]
        wanted = sa.select(*(fields if with_tables else fields[:-1])).order_by(row.epoch.desc())
        if at_most is not None:
            wanted = wanted.where(row.epoch <= at_most)

        def work(session: orm.Session) -> list[Publication]:
            return [_publication(*found) for found in session.execute(wanted.limit(limit))]

        return self._read(work)

    def store_ring(self, new: Publication, kept: int) -> None:
        """Store a published table, and delete tables beyond the ``kept`` last ones.

        :raises EpochTaken: another instance published the epoch first
        """
        row = models.PublishedRing(**{**new._asdict(), "overloaded": " ".join(new.overloaded)})
        fields = {column.key: getattr(row, column.key) for column in sa.inspect(row).mapper.attrs}

        def work(session: orm.Session) -> None:
            newest = session.execute(sa.select(sa.func.max(models.PublishedRing.epoch))).scalar()
            if new.epoch <= (newest or 0):
                raise EpochTaken(new.epoch)
            session.execute(sa.insert(models.PublishedRing).values(**fields))
            old = sa.select(models.PublishedRing.epoch).order_by(models.PublishedRing.epoch.desc())
            oldest = session.execute(old.offset(kept - 1).limit(1)).scalar()
            if oldest is not None:
                gone = sa.delete(models.PublishedRing).where(models.PublishedRing.epoch < oldest)
                session.execute(gone)

        self._write(work)

    # Hosts

    def list_hosts(self) -> list[models.Host]:
        """Return all known hosts, sorted by ID."""
        wanted = sa.select(models.Host).order_by(models.Host.host)
        return self._read(lambda session: list(session.execute(wanted).scalars()))

    def get_host(self, host: str) -> models.Host | None:
        """Return one host."""
        return self._read(lambda session: session.get(models.Host, host))

    def addresses_of(self, hosts: Collection[str]) -> dict[str, str]:
        """Return the addresses of these hosts' agents, where known."""
        row = models.Host
        wanted = sa.select(row.host, row.address).where(row.host.in_(hosts), row.address != "")
        return self._read(lambda session: {host: at for host, at in session.execute(wanted)})

    def list_drained(self) -> frozenset[str]:
        """Return the hosts that must not be homes."""
        wanted = sa.select(models.Host.host).where(models.Host.is_drained.is_(True))
        return self._read(lambda session: frozenset(session.execute(wanted).scalars()))

    def set_drained(self, host: str, is_drained: bool) -> bool:
        """Drain a host or enable it again; return whether it is known."""
        change = sa.update(models.Host).where(models.Host.host == host)

        def work(session: orm.Session) -> bool:
            if session.get(models.Host, host) is None:
                return False
            session.execute(change.values(is_drained=is_drained))
            return True

        return self._write(work)

    def record_samples(self, samples: Mapping[str, tuple[decision_messages.Sample, int]]) -> None:
        """Store the last sample and the traffic of each host.

        :param samples: by host, with the number of consecutive overloaded collections
        """
        if samples:
            self._write(lambda session: sample_queries.record_samples(session, samples))

    # Images

    def list_images(
        self, after: str, limit: int, since_s: float
    ) -> list[image_queries.ImageTotals]:
        """Return images with totals over hosts, sorted by ID.

        :param after: begin above this ID
        :param since_s: count only hosts with a sample since then
        """
        return self._read(lambda session: image_queries.list_images(session, after, limit, since_s))

    def get_image(self, image_id: str, since_s: float) -> image_queries.ImageTotals | None:
        """Return one image; None if no host holds it."""
        return self._read(lambda session: image_queries.get_image(session, image_id, since_s))

    def image_hosts(self, image_id: str, since_s: float) -> list[models.HeldImage]:
        """Return an image on each host, sorted by host."""
        return self._read(lambda session: image_queries.list_hosts(session, image_id, since_s))

    def needed_images(self, since_s: float, lately_s: float, limit: int) -> image_queries.Needed:
        """Return the images that hosts use and have not fully cached, ``limit`` at most.

        :param since_s: count only hosts with a sample since then
        :param lately_s: hosts without a sample since then are silent
        """
        return self._read(
            lambda session: image_queries.list_needed(session, since_s, lately_s, limit)
        )

    def count_uses(self, since_s: float, limit: int) -> image_queries.Uses:
        """See :func:`image_queries.count_uses`."""
        return self._read(lambda session: image_queries.count_uses(session, since_s, limit))

    # Boots

    def list_boots(self, server_id: str) -> list[models.Boot]:
        """Return the last boot of a server on each host, the newest last."""
        return self._read(lambda session: boot_queries.list_of_server(session, server_id))

    # Checkpoints

    def record_checkpoint(
        self, taken: checkpoint_messages.RegisteredCheckpoint, told_s: float, kept: int
    ) -> list[models.Checkpoint] | None:
        """See :func:`checkpoint_queries.insert_checkpoint`."""
        return self._write(
            lambda session: checkpoint_queries.insert_checkpoint(session, taken, told_s, kept)
        )

    def list_checkpoints(
        self, marker: str, limit: int, instance_id: str, host: str, project_id: str = ""
    ) -> list[models.Checkpoint]:
        """See :func:`checkpoint_queries.list_checkpoints`."""
        wanted = marker, limit, instance_id, host, project_id
        return self._read(lambda session: checkpoint_queries.list_checkpoints(session, *wanted))

    def get_checkpoint(self, checkpoint_id: str) -> models.Checkpoint | None:
        """Return one checkpoint."""
        return self._read(lambda session: session.get(models.Checkpoint, checkpoint_id))

    def checkpoints_of_host(self, host: str, limit: int) -> list[models.Checkpoint]:
        """Return the checkpoints that a host took."""
        return self._read(lambda session: checkpoint_queries.list_of_host(session, host, limit))

    def checkpointed_hosts(self, hosts: Collection[str]) -> set[str]:
        """Return those of these hosts that took a checkpoint which is kept."""
        return self._read(lambda session: checkpoint_queries.hosts_with_checkpoints(session, hosts))

    def checkpointed_instances(self, after: str, limit: int) -> list[str]:
        """Return the IDs above ``after`` of instances with checkpoints, sorted."""
        return self._read(lambda session: checkpoint_queries.list_instances(session, after, limit))

    def record_checkpoint_failures(
        self, host: str, failing: Sequence[checkpoint_messages.Failing], now_s: float
    ) -> None:
        """See :func:`checkpoint_failure_queries.record_failures`."""
        self._write(
            lambda session: checkpoint_failure_queries.record_failures(
                session, host, failing, now_s
            )
        )

    def checkpoint_failures(
        self, now_s: float
    ) -> dict[str, tuple[checkpoint_messages.Failing, ...]]:
        """See :func:`checkpoint_failure_queries.list_failures`."""
        return self._read(lambda session: checkpoint_failure_queries.list_failures(session, now_s))

    def newest_checkpoints(self) -> list[checkpoint_queries.Newest]:
        """Return the newest checkpoint of each instance that is on a host."""
        return self._read(checkpoint_queries.list_newest)

    def record_presence(
        self, instance_id: str, host: str | None, now_s: float, kept_s: float
    ) -> int:
        """See :func:`checkpoint_queries.record_presence`."""
        seen = instance_id, host, now_s, kept_s
        return self._write(lambda session: checkpoint_queries.record_presence(session, *seen))

    def record_recovery(self, checkpoint_id: str, now_s: float) -> models.Checkpoint | None:
        """See :func:`checkpoint_queries.record_recovery`."""
        given = checkpoint_id, now_s
        return self._write(lambda session: checkpoint_queries.record_recovery(session, *given))

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether it existed."""
        return self._write(
            lambda session: checkpoint_queries.delete_checkpoint(session, checkpoint_id)
        )

    # Images and boots

    def delete_stale(self, now_s: float) -> None:
        """Delete old boots, and reports of silent hosts about images and checkpoints."""

        def work(session: orm.Session) -> None:
            image_queries.forget_silent(session, now_s - image_queries.KEPT_S)
            boot_queries.delete_before(session, now_s - boot_queries.KEPT_S)
            checkpoint_failure_queries.delete_before(
                session, now_s - checkpoint_failure_queries.KEPT_S
            )

        self._write(work)

    # Tasks

    def record_task(
        self, hosts: Sequence[str], task: decision_messages.ImageTask, given_s: float
    ) -> None:
        """Store a task of hosts for an image, in place of the previous one."""
        if hosts:
            self._write(lambda session: task_queries.record_task(session, hosts, task, given_s))

    def unacknowledged_tasks(self, since_s: float) -> list[task_queries.SentTask]:
        """Return unacknowledged tasks sent since then; delete the others."""
        is_any = sa.select(sa.exists(sa.select(models.GivenTask.host)))
        if not self._read(lambda session: session.execute(is_any).scalar()):
            return []
        return self._write(lambda session: task_queries.settle_tasks(session, since_s))

    # Identities

    def authority_keys(
        self, kind: str, make: identity_queries.MakeKey | None = None
    ) -> list[models.AuthorityKey]:
        """Return the keys of a kind, the newest first.

        :param make: creates the first one if there is none
        """
        found = self._read(lambda session: identity_queries.list_keys(session, kind))
        if found or make is None:
            return found
        return self._write(lambda session: identity_queries.ensure_key(session, kind, make))

    def add_authority_key(
        self, kind: str, make: identity_queries.MakeKey, former_trusted_until_s: float
    ) -> models.AuthorityKey:
        """Add a key, and limit the trust in previous keys to a time."""
        return self._write(
            lambda session: identity_queries.add_key(session, kind, make, former_trusted_until_s)
        )

    def list_enrolments(self) -> list[models.Enrolment]:
        """Return all enrolments, sorted by host."""
        return self._read(identity_queries.list_enrolments)

    def get_enrolment(self, host: str) -> models.Enrolment | None:
        """Return a host's enrolment."""
        return self._read(lambda session: session.get(models.Enrolment, host))

    def exceeded_quota(
        self, user_id: str, limits: enrolment_rules.EnrolmentLimits, now_s: float, kept_s: float
    ) -> tuple[int, str]:
        """See :func:`identity_queries.exceeded_quota`."""
        asked = user_id, limits, now_s, kept_s
        return self._write(lambda session: identity_queries.exceeded_quota(session, *asked))

    def forget_host(self, host: str, change: Callable[[models.Enrolment], bool]) -> bool:
        """See :func:`identity_queries.delete_host`."""
        return self._write(lambda session: identity_queries.delete_host(session, host, change))

    def count_refused(self, reason: str) -> None:
        """Count a refused certificate request."""
        self._write(lambda session: identity_queries.count_refused(session, reason))

    def refused_enrolments(self) -> dict[str, int]:
        """Return the number of refused certificate requests, by reason."""
        return self._read(identity_queries.list_refused)

    def silent_hosts(self, before_s: float) -> identity_queries.Silent:
        """See :func:`identity_queries.list_silent`."""
        return self._read(lambda session: identity_queries.list_silent(session, before_s))

    def change_enrolment(
        self, host: str, work: Callable[[models.Enrolment | None], models.Enrolment]
    ) -> models.Enrolment:
        """See :func:`identity_queries.update_enrolment`; may call ``work`` repeatedly."""
        return self._write(lambda session: identity_queries.update_enrolment(session, host, work))

    # Listeners

    def record_listener(self, name: str, now_s: float) -> bool:
        """See :func:`listener_queries.record_listener`."""
        return self._write(lambda session: listener_queries.record_listener(session, name, now_s))

    def list_listeners(self) -> list[models.Listener]:
        """See :func:`listener_queries.list_listeners`."""
        return self._read(listener_queries.list_listeners)

    # Traffic

    def delete_traffic(self, before_s: float) -> None:
        """Delete the traffic of collections before a time."""
        self._write(lambda session: sample_queries.delete_traffic(session, before_s))

    def list_traffic(self, since_s: float, hosts: Sequence[str] = ()) -> list[models.Traffic]:
        """Return the traffic of these hosts, or of all, sorted by time and host."""
        return self._read(lambda session: sample_queries.list_traffic(session, since_s, hosts))


@enginefacade.transaction_context_provider
class _Context:
    """The context of a transaction, which oslo.db requires."""


def _publication(*fields: Any) -> Publication:
    found = Publication(*fields)
    return found._replace(overloaded=tuple(str(found.overloaded or "").split()))
