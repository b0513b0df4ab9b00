# SPDX-License-Identifier: Apache-2.0
"""Every option that stands in nova.conf, with what it decides and the default's reason.

The group is [acstor], which the shared options are in as well.  Its option
``driver`` is oslo.config's own and must be ``acstor``.
"""

from oslo_config import cfg

import acstor_common.conf

NAME = "acstor"
"""Of the image backend, in ``[libvirt] images_type``, and of the configuration source."""
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
    cfg.StrOpt(
        "decision_url",
        default="",
        help="URL of acstor's REST API, which knows the checkpoints of servers. A server that is "
        "evacuated to this host gets the disk of its newest one. Empty: it begins as its image.",
    ),
    cfg.StrOpt(
        "decision_ca_file",
        default="",
        help="The authorities of the certificate of the REST API, as PEM. Empty: those of the "
        "system.",
    ),
    cfg.StrOpt(
        "recover",
        default="required",
        choices=[
            ("required", "the server is not evacuated, and its fault says why"),
            ("preferred", "the server begins as its image, without what it wrote"),
        ],
        help="What becomes of a server that is evacuated here when no checkpoint of it can be had. "
        "One that is only late is asked for again, and then the server is not evacuated.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options, and those that are shared with the agent, with ``conf``."""
    acstor_common.conf.register_opts(conf)
    acstor_common.conf.register(conf, acstor_common.conf.GROUP, OPTS)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return [(acstor_common.conf.GROUP, [*acstor_common.conf.OPTS, *OPTS])]
