# SPDX-License-Identifier: Apache-2.0
"""The REST API for a WSGI server: ``acstor_decision.wsgi:application``.

It reads the files in ``ACSTOR_DECISION_CONF``, separated by colons, else oslo.config's defaults.
"""

import os

from oslo_config import cfg

import acstor_decision.cmd  # noqa: F401  first, because it suppresses Eventlet's warning
from acstor_common import errors
from acstor_common.service import console_script
from acstor_common.service import tracing
from acstor_decision import conf as decision_conf
from acstor_decision.api import app
from acstor_decision.api import conf as api_conf
from acstor_decision.api import middleware
from acstor_decision.db import database


def load(files: list[str]) -> middleware.Wsgi:
    """Return the application that configuration files describe, or raise cfg.Error or Unusable."""
    api_conf.register_opts(cfg.CONF)
    conf = decision_conf.load([part for file in files for part in ("--config-file", file)])
    is_traced = tracing.enable(conf, "decision-api")
    return app.make_app(conf, database.Database(conf), is_traced=is_traced)


with console_script.exit_on_error("the REST API of acstor", cfg.Error, errors.Unusable):
    names = os.environ.get("ACSTOR_DECISION_CONF", "").split(":")
    application = load([name for name in names if name])
