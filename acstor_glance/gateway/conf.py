# SPDX-License-Identifier: Apache-2.0
"""The gateway's options; those of its stores are in ``glance-api.conf``."""

from oslo_config import cfg

from acstor_common.service import conf as common_conf
from acstor_glance import conf as glance_conf

GROUP = cfg.OptGroup(
    "acstor_gateway", title="Gateway: range reads from Glance's stores, and compositions"
)

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9467",
        help="Address and port of the Prometheus endpoint; empty disables it. All processes of the "
        "WSGI server share the endpoint and their counters if PROMETHEUS_MULTIPROC_DIR in their "
        "environment names a folder.",
    ),
    cfg.IntOpt(
        "max_reads",
        default=16,
        min=1,
        max=1024,
        help="Limit of concurrent reads from one store, in each process of the WSGI server. Give "
        "the server more threads, so that a hanging store does not block reads from others.",
    ),
    cfg.FloatOpt(
        "timeout_s",
        default=10.0,
        min=0.1,
        max=300.0,
        help="Timeout of a read from a store. The gateway answers 504 after it; the read counts "
        "towards the limit of its store until it ends. A composition fails when it makes no "
        "progress for twelve times as long.",
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
    cfg.IntOpt(
        "max_compositions",
        default=4,
        min=0,
        max=64,
        help="Limit of concurrent compositions, which flatten a delta and its backing image into "
        "an image, in each process of the WSGI server; one project uses half of them at most. 0: "
        "none; Nova uploads complete snapshots. "
        "Each uses a thread of the server and 30 to 100 MiB of memory.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the gateway and of its service user."""
    common_conf.register(conf, GROUP, OPTS)
    glance_conf.register_opts(conf)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator."""
    return [(GROUP, OPTS)]
