# SPDX-License-Identifier: Apache-2.0
"""WSGI entry point of the gateway: ``acstor_glance.gateway.wsgi:application``.

It reads the files in ``ACSTOR_GATEWAY_CONF``, separated by colons, else those of ``glance-api``.
"""

import logging
import os

from oslo_config import cfg
from oslo_log import log

from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.service import console_script
from acstor_common.service import log_format
from acstor_common.service import tracing
from acstor_glance.gateway import app
from acstor_glance.gateway import conf as gateway_conf
from acstor_glance.gateway import gateway_metrics

LOG = logging.getLogger(__name__)


def load(files: list[str]) -> app.Wsgi:
    """Return the application for configuration files; raises errors.Unusable."""
    conf = cfg.CONF  # glance_store knows no other
    log.register_options(conf)
    args = [part for file in files for part in ("--config-file", file)]
    options = gateway_conf.list_opts()
    common_conf.read(
        conf, args, "glance-api", gateway_conf.register_opts, options, project="glance"
    )
    log.setup(conf, "acstor-glance-gateway")
    log_format.install()
    for stray in common_conf.unknown(conf, options):
        if stray.section.lower() == gateway_conf.GROUP.name:  # other sections are Glance's
            common_conf.LOG.warning("%s", stray)
    counters = gateway_metrics.GatewayMetrics()
    is_traced = tracing.enable(conf, "gateway")
    application = app.make_app(conf, counters, is_traced=is_traced)
    if address := conf.acstor_gateway.metrics_listen:
        try:
            counters.serve(address)
        except errors.Unusable as error:  # images are read without metrics
            LOG.warning(
                "this process has no metrics: %s. With several processes %s must name a folder",
                error,
                gateway_metrics.FOLDER_VARIABLE,
            )
    return application


with console_script.exit_on_error("acstor-glance-gateway", cfg.Error, errors.Unusable):
    names = os.environ.get("ACSTOR_GATEWAY_CONF", "").split(":")
    application = load([name for name in names if name])
