# SPDX-License-Identifier: Apache-2.0
"""The gateway's options; those of its stores are in ``glance-api.conf``."""

from oslo_config import cfg

from acstor_common.service import conf as common_conf
from acstor_glance import conf as glance_conf

GROUP = cfg.OptGroup(
    "acstor_gateway", title="Gateway: range reads from Glance's stores, and flatten jobs"
)

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9467",
        help="Address and port of the Prometheus endpoint; empty disables it. All processes of the "
        "WSGI server share the endpoint and their counters if PROMETHEUS_MULTIPROC_DIR in their "
        "environment names a folder.",
    ),
    cfg.FloatOpt(
        "auth_cache_s",
        default=60.0,
        min=0.0,
        max=3600.0,
        help="Time for which the gateway caches Glance's answer whether a token may download an "
        "image, and the locations of the image. A revoked permission takes effect after this time.",
    ),
    cfg.ListOpt(
        "internal_web_networks",
        default=[],
        help="Internal networks, as 10.1.0.0/16, whose web servers the gateway may read for images "
        "of the store http. It refuses all other private addresses and those of its own host, "
        "since users who set locations of images could read them through the gateway.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the gateway and of its service user."""
    common_conf.register(conf, GROUP, OPTS)
    glance_conf.register_opts(conf)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator."""
    return [(GROUP, OPTS)]
