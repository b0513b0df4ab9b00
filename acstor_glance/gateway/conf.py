# SPDX-License-Identifier: Apache-2.0
"""The options of the gateway; its stores are those of ``glance-api.conf``."""

from oslo_config import cfg

from acstor_common import conf as common_conf
from acstor_glance import conf as glance_conf

GROUP = cfg.OptGroup(
    "acstor_gateway", title="What reads ranges of images from Glance's stores, and composes images"
)

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9467",
        help="Where Prometheus gets the numbers of the gateway, as ADDRESS:PORT; empty: nowhere. "
        "All processes of the WSGI server share it, and their numbers, if PROMETHEUS_MULTIPROC_DIR "
        "in their environment names a folder.",
    ),
    cfg.IntOpt(
        "reads",
        default=16,
        min=1,
        max=1024,
        help="Reads of one store at a time, in each process of the WSGI server. Give the server "
        "more threads than that: then a store that hangs does not hold up those of others.",
    ),
    cfg.FloatOpt(
        "timeout_s",
        default=10.0,
        min=0.1,
        max=300.0,
        help="How long a store may take for one read. What is later is answered with 504; the read "
        "counts among the reads of its store until it has ended.",
    ),
    common_conf.size_opt(
        "longest_range_bytes",
        default=8 << 20,
        least=1 << 20,
        most=64 << 20,
        help="The longest range that is read; what asks for more is refused. Agents ask for 1 MiB "
        "at a time. Each read that is under way may take as much memory.",
    ),
    cfg.FloatOpt(
        "remember_s",
        default=60.0,
        min=0.0,
        max=3600.0,
        help="For how long Glance is not asked again whether the same token may download the same "
        "image, and where its bytes are. So long may go on reading who has just lost the right to.",
    ),
    cfg.ListOpt(
        "web_networks",
        default=[],
        help="Internal networks, as 10.1.0.0/16, whose web servers the gateway reads for images of "
        "the store http. It refuses all other addresses that are not public, and its own host's: "
        "whoever may set a location of an image would read them through the gateway.",
    ),
    cfg.IntOpt(
        "compositions",
        default=4,
        min=0,
        max=64,
        help="Images that are composed of a base and changes at a time, in each process of the "
        "WSGI server; 0: none, and snapshots are uploaded whole. Each takes a thread of the server "
        "and 30 to 100 MiB of memory.",
    ),
    cfg.IntOpt(
        "compositions_of_project",
        default=2,
        min=1,
        max=64,
        help="How many of these may be of one project.",
    ),
    cfg.FloatOpt(
        "composition_still_s",
        default=120.0,
        min=1.0,
        max=3600.0,
        help="A composition is broken off when nothing has moved for so long: no changes come, a "
        "store gives nothing of the base, Glance takes nothing, or does not say that it has the "
        "image.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the gateway, and those of the user with whom it asks Glance."""
    common_conf.register(conf, GROUP, OPTS)
    glance_conf.register_opts(conf)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator."""
    return [(GROUP, OPTS)]
