# SPDX-License-Identifier: Apache-2.0
"""The decision service on SQLite, without a broker: time passes when a test says so."""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from acstor_decision import conf as decision_conf
from acstor_decision.db import database


@pytest.fixture
def configure(tmp_path: pathlib.Path) -> Callable[..., cfg.ConfigOpts]:
    """Return what makes a configuration: options of [acstor_decision], or a group's with a dot."""

    def make(connection: str = f"sqlite:///{tmp_path}/decision.sqlite", **own: Any) -> Any:
        conf = cfg.ConfigOpts()
        decision_conf.register_opts(conf)
        conf([], project="acstor", default_config_files=[], default_config_dirs=[])
        conf.set_override("connection", connection, "database")
        for name, value in own.items():
            conf.set_override(name, value, "acstor_decision")
        return conf

    return make


@pytest.fixture
def store(configure: Callable[..., cfg.ConfigOpts]) -> Iterator[database.Database]:
    made = database.Database(configure())
    made.upgrade()
    yield made
    made.close()
