# SPDX-License-Identifier: Apache-2.0
"""Options that several rooms share.

Nobody reads a global CONF: ``register_opts(conf)`` takes the object.
"""

from oslo_config import cfg

GROUP = cfg.OptGroup("acstor", title="What every acstor process of a host shares")

OPTS = [
    cfg.StrOpt(
        "control_socket",
        default="/run/acstor/control.sock",
        help="Unix socket on which the agent of this host takes requests.",
    ),
    cfg.StrOpt(
        "mount_point",
        default="/var/lib/acstor/mirror",
        help="Folder on which the agent shows the mirrors: images/<image id>.raw.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the shared options with ``conf``."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
