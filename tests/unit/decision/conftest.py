# SPDX-License-Identifier: Apache-2.0
"""The decision service on SQLite, without a broker; tests advance the clock."""

import functools
import pathlib
import shutil
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from acstor_common.wire import message_bus
from acstor_decision import conf as decision_conf
from acstor_decision.db import database


def configuration(folder: pathlib.Path, connection: str = "", **own: Any) -> cfg.ConfigOpts:
    """Return options of [acstor_decision] with a SQLite database in a directory, or another one."""
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    conf.set_override("connection", connection or f"sqlite:///{folder}/decision.sqlite", "database")
    conf.set_override("sqlite_synchronous", False, "database")  # tests need no durability
    for name, value in own.items():
        conf.set_override(name, value, "acstor_decision")
    return conf


@pytest.fixture
def configure(tmp_path: pathlib.Path) -> Callable[..., cfg.ConfigOpts]:
    """Return :func:`configuration` for the directory of the test."""
    return functools.partial(configuration, tmp_path)


@pytest.fixture
def listens(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event set when the service listens; an in-memory bus loses earlier messages."""
    serve, does = message_bus.serve, threading.Event()

    def serve_and_tell(*arguments: Any) -> Any:
        served = serve(*arguments)
        does.set()
        return served

    monkeypatch.setattr(message_bus, "serve", serve_and_tell)
    return does


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return an empty database with the current schema, to copy."""
    folder = tmp_path_factory.mktemp("tables")
    made = database.Database(configuration(folder))
    made.upgrade()
    made.close()
    return folder / "decision.sqlite"


@pytest.fixture
def store(
    configure: Callable[..., cfg.ConfigOpts], tables: pathlib.Path, tmp_path: pathlib.Path
) -> Iterator[database.Database]:
    shutil.copy(tables, tmp_path)
    made = database.Database(configure())
    yield made
    made.close()
