# SPDX-License-Identifier: Apache-2.0
"""What ``[database] connection`` names, and what is wrong with it, in one line each.

The one rule: no password is shown.
"""

import contextlib
import os
import stat

import sqlalchemy as sa

from acstor_common import errors

OPTION = "[database] connection"
ANSWER_S = 20
"""The longest that a server may be silent in the middle of a statement, unless the URL says
otherwise; statements of the service take milliseconds."""
_TIMEOUTS = {
    "pymysql": ("connect_timeout", "read_timeout", "write_timeout"),
    "mysqldb": ("connect_timeout", "read_timeout", "write_timeout"),
}
"""Parameters of a URL, by driver; SQLite asks nobody."""
_REMEDY = "mysql+pymysql://USER:PASSWORD@HOST/DATABASE needs nothing but what comes with acstor"


def check_driver(connection: str) -> None:
    """Check that a database's URL is one, and that what reads such a database is installed.

    :raises errors.Unusable: it is none, or it is not
    """
    try:
        sa.make_url(connection).get_dialect().import_dbapi()
    except sa.exc.NoSuchModuleError as e:
        raise errors.Unusable(OPTION, f"{shown(connection)}: {_plain(e)}", _REMEDY) from e
    except sa.exc.ArgumentError as e:  # its text has the whole URL
        raise errors.Unusable(OPTION, "what is there is no URL of a database", _REMEDY) from e
    except ImportError as e:
        why = f"{shown(connection)} needs the driver {e.name}, which is not installed"
        raise errors.Unusable(OPTION, why, f"Install it; {_REMEDY}") from e


def keep_private(connection: str) -> None:
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
    >>> with_deadline("sqlite:////var/lib/acstor.sqlite")
    'sqlite:////var/lib/acstor.sqlite'
    """
    url = sa.make_url(connection)
    names = _TIMEOUTS.get(url.get_driver_name(), ())
    missing = {name: str(answer_s) for name in names if name not in url.query}
    return url.update_query_dict(missing).render_as_string(hide_password=False)


def shown(connection: str) -> str:
    """Return a database's URL without the password.

    >>> shown("mysql+pymysql://acstor:secret@controller/acstor")
    'mysql+pymysql://acstor:***@controller/acstor'
    """
    return sa.make_url(connection).render_as_string(hide_password=True)


def why(error: BaseException) -> str:
    """Return in one line why a database did not do what it was asked: its driver's own words."""
    inner = getattr(error, "inner_exception", None) or error
    found = getattr(inner, "orig", None) or inner
    words = [one for one in found.args if isinstance(one, str)]
    return _plain(words[-1] if words else found)


def _plain(told: object) -> str:
    return str(told).strip().partition("\n")[0]
