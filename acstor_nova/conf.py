# SPDX-License-Identifier: Apache-2.0
"""Every option that stands in nova.conf, with what it decides and the default's reason.

The group is [acstor], which the shared options are in as well.  Its option
``driver`` is oslo.config's own and must be ``acstor``.
"""

from oslo_config import cfg

import acstor_common.conf

OPTS = [
    cfg.StrOpt(
        "disk_errors",
        default="pause",
        choices=[
            ("pause", "QEMU pauses the guest, which knows nothing of it"),
            ("nova", "what Nova chooses: the guest is told, and many mount their disk read-only"),
        ],
        help="What becomes of an instance whose root disk lies on a mirror when a read or a write "
        "of that disk fails. It goes on by virsh resume, or by a hard reboot.",
    ),
    cfg.StrOpt(
        "precache",
        default="full",
        choices=[
            ("full", "bring the whole image to the host"),
            ("attach", "only make it ready to be read"),
        ],
        help="What Nova's request to cache an image (openstack aggregate cache image) does.",
    ),
    cfg.StrOpt(
        "gateway_url",
        default="",
        help="URL of acstor-glance-gateway. Snapshots of instances on a mirror are then sent there "
        "as what differs from their image, and become a whole image beside Glance. Empty: Nova "
        "uploads whole images, as ever.",
    ),
    cfg.StrOpt(
        "gateway_ca_file",
        default="",
        help="The authorities of the gateway's certificate, as PEM. Empty: those of the system.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options, and those that are shared with the agent, with ``conf``."""
    acstor_common.conf.register_opts(conf)
    acstor_common.conf.register(conf, acstor_common.conf.GROUP, OPTS)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return [(acstor_common.conf.GROUP, [*acstor_common.conf.OPTS, *OPTS])]
