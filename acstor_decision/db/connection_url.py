# SPDX-License-Identifier: Apache-2.0
"""What ``[database] connection`` names, and what is wrong with it, in one line each.

The one rule: no password is shown.
"""

import contextlib
import importlib
import os
import select
import stat
from typing import Any

import sqlalchemy as sa

from acstor_common import errors

OPTION = "[database] connection"
ANSWER_S = 20
"""The longest that a server may be silent in the middle of a statement, unless the URL says
otherwise; statements of the service take milliseconds."""
_MYSQL = {name: "{s}" for name in ("connect_timeout", "read_timeout", "write_timeout")}
_LIBPQ = {
    "connect_timeout": "{s}",
    "keepalives_idle": "{s}",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "{ms}",
    "options": "-cstatement_timeout={ms}",  # which the server keeps
}
_TIMEOUTS = {"pymysql": _MYSQL, "mysqldb": _MYSQL, "psycopg2": _LIBPQ, "psycopg": _LIBPQ}
"""Parameters of a URL, by driver; SQLite asks nobody."""
_REMEDY = "mysql+pymysql://USER:PASSWORD@HOST/DATABASE needs nothing but what comes with acstor"


def check_driver(connection: str) -> None:
    """Check that a database's URL is one, and that what reads such a database is installed.

    :raises errors.Unusable: it is none, or it is not
    """
    try:
        sa.make_url(connection).get_dialect().import_dbapi()
    except sa.exc.NoSuchModuleError as e:
        raise errors.Unusable(OPTION, f"{redacted_url(connection)}: {_plain(e)}", _REMEDY) from e
    except sa.exc.ArgumentError as e:  # its text has the whole URL
        raise errors.Unusable(OPTION, "this is not a database URL", _REMEDY) from e
    except ImportError as e:
        why = f"{redacted_url(connection)} needs the driver {e.name}, which is not installed"
        raise errors.Unusable(OPTION, why, f"Install it; {_REMEDY}") from e


def restrict_file_mode(connection: str) -> None:
    """Let SQLite's file be its owner's alone: it holds the private keys of the authority.

    SQLite makes it as the umask allows, and its journals with the same rights.
    """
    url = sa.make_url(connection)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return
    if "uri" in url.query:  # it is no path
        return
    with contextlib.suppress(OSError):  # SQLite says it better
        fd = os.open(url.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)


def with_deadline(connection: str, answer_s: int = ANSWER_S) -> str:
    """Return a database's URL with the deadlines that it leaves out and its driver has.

    >>> with_deadline("mysql+pymysql://u:p@controller/acstor?read_timeout=60", 20)
    'mysql+pymysql://u:p@controller/acstor?connect_timeout=20&read_timeout=60&write_timeout=20'
    >>> sa.make_url(with_deadline("postgresql://u:p@controller/acstor")).query["options"]
    '-cstatement_timeout=20000'
    >>> with_deadline("sqlite:////var/lib/acstor.sqlite")
    'sqlite:////var/lib/acstor.sqlite'
    """
    url = sa.make_url(connection)
    missing = {
        name: value.format(s=answer_s, ms=1000 * answer_s)
        for name, value in _TIMEOUTS.get(url.get_driver_name(), {}).items()
        if name not in url.query
    }
    return url.update_query_dict(missing).render_as_string(hide_password=False)


def bound_waits(connection: str, answer_s: int = ANSWER_S) -> None:
    """Bound how long psycopg2 waits in this process; the other drivers keep to the URL.

    libpq waits for ever for a server that stands still.  A connection whose wait is over is closed.
    """
    if sa.make_url(connection).get_driver_name() != "psycopg2":
        return
    driver = importlib.import_module("psycopg2")
    extensions = importlib.import_module("psycopg2.extensions")

    def wait(link: Any) -> None:
        while (state := link.poll()) != extensions.POLL_OK:
            ready = select.poll()
            events = select.POLLIN if state == extensions.POLL_READ else select.POLLOUT
            ready.register(link.fileno(), events)
            if not ready.poll(1000 * answer_s):
                raise driver.OperationalError(f"no answer within {answer_s} s")

    extensions.set_wait_callback(wait)


def redacted_url(connection: str) -> str:
    """Return a database's URL without the password.

    >>> redacted_url("mysql+pymysql://acstor:secret@controller/acstor")
    'mysql+pymysql://acstor:***@controller/acstor'
    """
    return sa.make_url(connection).render_as_string(hide_password=True)


def error_reason(error: BaseException) -> str:
    """Return in one line why a database did not do what it was asked: its driver's own words."""
    inner = getattr(error, "inner_exception", None) or error
    found = getattr(inner, "orig", None) or inner
    words = [one for one in found.args if isinstance(one, str)]
    return _plain(words[-1] if words else found)


def _plain(told: object) -> str:
    return str(told).strip().partition("\n")[0]
