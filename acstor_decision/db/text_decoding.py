# SPDX-License-Identifier: Apache-2.0
"""Decodes damaged text of the database as U+FFFD, so its readers, not the driver, reject it."""

import codecs
from typing import Any

import sqlalchemy as sa
from sqlalchemy import engine

ENCODING = "acstor-utf8"  # UTF-8 whose decoder replaces bad bytes, for PyMySQL


def accept_damaged_text(used: engine.Engine) -> None:
    """Let an engine's new connections accept invalid UTF-8: SQLite and PyMySQL."""
    if used.driver in _PREPARE:
        sa.event.listen(used, "connect", _PREPARE[used.driver])


def _replace(data: bytes, _errors: str = "strict") -> tuple[str, int]:
    return codecs.utf_8_decode(data, "replace", True)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    known = name.replace("_", "-") == ENCODING
    return codecs.CodecInfo(codecs.utf_8_encode, _replace, name=ENCODING) if known else None


def _prepare_sqlite(link: Any, _record: object) -> None:
    link.text_factory = lambda data: _replace(data)[0]


def _prepare_pymysql(link: Any, _record: object) -> None:
    link.encoding = ENCODING


codecs.register(_find_codec)
_PREPARE = {"pysqlite": _prepare_sqlite, "pymysql": _prepare_pymysql}
