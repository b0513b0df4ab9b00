# SPDX-License-Identifier: Apache-2.0
"""Access to the database; only this package uses SQL.

Each method is one transaction, retried after a deadlock or SQLite lock, or raises DatabaseError.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import api
from oslo_db import exception
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import engine
from sqlalchemy import orm

from acstor_common import errors
from acstor_decision.db import boot_queries
from acstor_decision.db import checkpoint_failure_queries
from acstor_decision.db import checkpoint_queries
from acstor_decision.db import connection_url
from acstor_decision.db import grant_queries
from acstor_decision.db import host_queries
from acstor_decision.db import identity_queries
from acstor_decision.db import image_queries
from acstor_decision.db import listener_queries
from acstor_decision.db import migrations
from acstor_decision.db import models
from acstor_decision.db import ring_queries
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
_P = ParamSpec("_P")


@dataclasses.dataclass(eq=False)
class DatabaseError(errors.AcstorError):
    """The database is unreachable or a statement failed; ``where`` is its URL without password."""

    where: str
    why: str
    text = f"{connection_url.OPTION}: {{where}}: {{why}}"

    def as_unusable(self) -> errors.Unusable:
        """Return the error with which a command ends."""
        remedy = "Check that it runs, and that this user may read and write it"
        return errors.Unusable(connection_url.OPTION, f"{self.where}: {self.why}", remedy)


def _is_transient(error: Exception) -> bool:
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
    exception_checker=_is_transient,
    jitter=True,
)


def _reads(
    query: Callable[Concatenate[orm.Session, _P], _T],
) -> Callable[Concatenate["Database", _P], _T]:
    """Return a method that runs a query in a transaction that only reads."""

    @functools.wraps(query)
    def method(self: "Database", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._read(lambda session: query(session, *args, **kwargs))

    return method


def _writes(
    query: Callable[Concatenate[orm.Session, _P], _T],
) -> Callable[Concatenate["Database", _P], _T]:
    """Return a method that runs a statement in a transaction of its own."""

    @functools.wraps(query)
    def method(self: "Database", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._write(lambda session: query(session, *args, **kwargs))

    return method


class Database:
    """The decision service's database.

    :param timeout_s: of a connection attempt and of a statement, unless the URL has timeouts
    :raises errors.Unusable: the options name no usable database
    """

    def __init__(self, conf: cfg.ConfigOpts, timeout_s: int = connection_url.TIMEOUT_S) -> None:
        connection_url.check_driver(conf.database.connection or "")
        connection_url.restrict_file_mode(conf.database.connection)
        connection_url.bound_waits(conf.database.connection, timeout_s)
        self._contexts = enginefacade.transaction_context()
        self._contexts.append_on_engine_create(connection_url.accept_damaged_text)
        options = {name: getattr(conf.database, name) for name in ENGINE_OPTIONS}
        for name in ("connection", "slave_connection"):
            if options[name]:
                options[name] = connection_url.with_timeouts(options[name], timeout_s)
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

    latest_epoch = _reads(ring_queries.latest_epoch)
    get_ring = _reads(ring_queries.get_ring)
    list_rings = _reads(ring_queries.list_rings)
    newest_rings = _reads(ring_queries.newest_rings)
    store_ring = _writes(ring_queries.store_ring)

    # Hosts

    list_hosts = _reads(host_queries.list_hosts)
    list_exchanging = _reads(host_queries.list_exchanging)
    get_host = _reads(host_queries.get_host)
    addresses_of = _reads(host_queries.addresses_of)
    list_drained = _reads(host_queries.list_drained)
    set_drained = _writes(host_queries.set_drained)
    list_traffic = _reads(sample_queries.list_traffic)
    delete_traffic = _writes(sample_queries.delete_traffic)
    record_samples = _writes(sample_queries.record_samples)

    # Images and boots

    list_images = _reads(image_queries.list_images)
    get_image = _reads(image_queries.get_image)
    image_hosts = _reads(image_queries.list_hosts)
    image_locality = _reads(image_queries.list_locality)
    needed_images = _reads(image_queries.list_needed)
    count_uses = _reads(image_queries.count_uses)
    list_boots = _reads(boot_queries.list_of_server)
    newest_boots = _reads(boot_queries.list_newest)

    # Checkpoints

    record_checkpoint = _writes(checkpoint_queries.insert_checkpoint)
    list_checkpoints = _reads(checkpoint_queries.list_checkpoints)
    get_checkpoint = _reads(checkpoint_queries.get_checkpoint)
    checkpoints_of_host = _reads(checkpoint_queries.list_for_host)
    checkpointed_hosts = _reads(checkpoint_queries.hosts_with_checkpoints)
    checkpointed_instances = _reads(checkpoint_queries.list_instances)
    record_checkpoint_failures = _writes(checkpoint_failure_queries.record_failures)
    checkpoint_failures = _reads(checkpoint_failure_queries.list_failures)
    newest_checkpoints = _reads(checkpoint_queries.list_newest)
    record_presence = _writes(checkpoint_queries.record_presence)
    record_recovery = _writes(checkpoint_queries.record_recovery)
    delete_checkpoint = _writes(checkpoint_queries.delete_checkpoint)

    # Tasks

    record_task = _writes(task_queries.record_task)
    _has_tasks = _reads(task_queries.has_tasks)
    _settle_tasks = _writes(task_queries.settle_tasks)

    def unacknowledged_tasks(self, since_s: float) -> list[task_queries.SentTask]:
        """Return unacknowledged tasks sent since then; delete the others."""
        return self._settle_tasks(since_s) if self._has_tasks() else []

    # Identities

    _list_keys = _reads(identity_queries.list_keys)
    _ensure_key = _writes(identity_queries.ensure_key)
    add_authority_key = _writes(identity_queries.add_key)
    list_enrolments = _reads(identity_queries.list_enrolments)
    get_enrolment = _reads(identity_queries.get_enrolment)
    exceeded_quota = _writes(identity_queries.exceeded_quota)
    forget_host = _writes(identity_queries.delete_host)
    count_refused = _writes(identity_queries.count_refused)
    refused_enrolments = _reads(identity_queries.list_refused)
    silent_hosts = _reads(identity_queries.list_silent)
    change_enrolment = _writes(identity_queries.update_enrolment)

    def authority_keys(
        self, kind: str, make: identity_queries.MakeKey | None = None
    ) -> list[models.AuthorityKey]:
        """Return the keys of a kind, the newest first; ``make`` creates the first one."""
        found = self._list_keys(kind)
        return found if found or make is None else self._ensure_key(kind, make)

    # Grants

    record_named_image = _writes(grant_queries.record_named)
    is_grantable = _reads(grant_queries.is_grantable)

    # Listeners

    record_listener = _writes(listener_queries.record_listener)
    list_listeners = _reads(listener_queries.list_listeners)

    def delete_stale(self, now_s: float) -> None:
        """Delete old boots, images of silent hosts, old checkpoint failures and unneeded grants."""
        self._write(lambda session: _delete_stale(session, now_s))


def _delete_stale(session: orm.Session, now_s: float) -> None:
    image_queries.forget_silent(session, now_s - image_queries.KEPT_S)
    boot_queries.delete_before(session, now_s - boot_queries.KEPT_S)
    before_s = now_s - checkpoint_failure_queries.KEPT_S
    checkpoint_failure_queries.delete_before(session, before_s)
    grant_queries.forget_unneeded(session, now_s)


@enginefacade.transaction_context_provider
class _Context:
    pass
