# SPDX-License-Identifier: Apache-2.0
"""Checks and completes ``[database] connection``; hides its password."""

import contextlib
import importlib
import os
import select
import stat
from typing import Any

import sqlalchemy as sa

from acstor_common import errors

OPTION = "[database] connection"
TIMEOUT_S = 20  # of a connection attempt and of a statement, unless the URL has timeouts
_MYSQL = {name: "{s}" for name in ("connect_timeout", "read_timeout", "write_timeout")}
_LIBPQ = {
    "connect_timeout": "{s}",
    "keepalives_idle": "{s}",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "{ms}",
    "options": "-cstatement_timeout={ms}",  # enforced by the server
}
_TIMEOUTS = {"pymysql": _MYSQL, "mysqldb": _MYSQL, "psycopg2": _LIBPQ, "psycopg": _LIBPQ}
"""URL parameters by driver; SQLite needs none."""
_REMEDY = "mysql+pymysql://USER:PASSWORD@HOST/DATABASE works without further packages"


def check_driver(connection: str) -> None:
    """Check the form of a database URL and that its driver is installed, or raise Unusable."""
    try:
        sa.make_url(connection).get_dialect().import_dbapi()
    except sa.exc.NoSuchModuleError as e:
        raise errors.Unusable(OPTION, f"{redacted_url(connection)}: {_plain(e)}", _REMEDY) from e
    except sa.exc.ArgumentError as e:  # its text has the password
        raise errors.Unusable(OPTION, "this is not a database URL", _REMEDY) from e
    except ImportError as e:
        why = f"{redacted_url(connection)} needs the driver {e.name}, which is not installed"
        raise errors.Unusable(OPTION, why, f"Install it; {_REMEDY}") from e


def restrict_file_mode(connection: str) -> None:
    """Restrict SQLite's file, and so its journals, to its owner: it has private keys."""
    url = sa.make_url(connection)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return
    if "uri" in url.query:  # then it is not a path
        return
    with contextlib.suppress(OSError):  # SQLite reports the error better
        fd = os.open(url.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)


def with_timeouts(connection: str, timeout_s: int = TIMEOUT_S) -> str:
    """Add timeouts to a database URL, unless it has them or its driver has none.

    >>> with_timeouts("mysql+pymysql://u:p@controller/acstor?read_timeout=60", 20)
    'mysql+pymysql://u:p@controller/acstor?connect_timeout=20&read_timeout=60&write_timeout=20'
    >>> sa.make_url(with_timeouts("postgresql://u:p@controller/acstor")).query["options"]
    '-cstatement_timeout=20000'
    >>> with_timeouts("sqlite:////var/lib/acstor.sqlite")
    'sqlite:////var/lib/acstor.sqlite'
    """
    url = sa.make_url(connection)
    missing = {
        name: value.format(s=timeout_s, ms=1000 * timeout_s)
        for name, value in _TIMEOUTS.get(url.get_driver_name(), {}).items()
        if name not in url.query
    }
    return url.update_query_dict(missing).render_as_string(hide_password=False)


def bound_waits(connection: str, timeout_s: int = TIMEOUT_S) -> None:
    """Set psycopg2's wait callback, since libpq waits forever for a hung server."""
    if sa.make_url(connection).get_driver_name() != "psycopg2":
        return
    driver = importlib.import_module("psycopg2")
    extensions = importlib.import_module("psycopg2.extensions")

    def wait(link: Any) -> None:
        while (state := link.poll()) != extensions.POLL_OK:
            ready = select.poll()
            events = select.POLLIN if state == extensions.POLL_READ else select.POLLOUT
            ready.register(link.fileno(), events)
            if not ready.poll(1000 * timeout_s):
                raise driver.OperationalError(f"no answer within {timeout_s} s")

    extensions.set_wait_callback(wait)


def accept_damaged_text(used: sa.Engine) -> None:
    """Let SQLite, which checks no text, return invalid UTF-8 with U+FFFD, which readers reject."""
    if used.driver == "pysqlite":
        sa.event.listen(used, "connect", _replace_invalid_text)


def _replace_invalid_text(link: Any, _record: object) -> None:
    link.text_factory = lambda text: text.decode(errors="replace")


def redacted_url(connection: str) -> str:
    """Return a database URL without the password.

    >>> redacted_url("mysql+pymysql://acstor:secret@controller/acstor")
    'mysql+pymysql://acstor:***@controller/acstor'
    """
    return sa.make_url(connection).render_as_string(hide_password=True)


def error_reason(error: BaseException) -> str:
    """Return the driver's message of a database error, in one line."""
    inner = getattr(error, "inner_exception", None) or error
    found = getattr(inner, "orig", None) or inner
    words = [argument for argument in found.args if isinstance(argument, str)]
    return _plain(words[-1] if words else found)


def _plain(reason: object) -> str:
    return str(reason).strip().partition("\n")[0]
