# SPDX-License-Identifier: Apache-2.0
"""Every option that stands in nova.conf, with what it decides and the default's reason.

The group is [acstor], which the shared options are in as well.  Its option
``driver`` is oslo.config's own and must be ``acstor``.
"""

from oslo_config import cfg

import acstor_common.conf

OPTS = [
    cfg.FloatOpt(
        "agent_timeout_s",
        default=45.0,
        min=0.1,
        help="How long Nova waits for an answer of the agent before it makes a disk without "
        "acstor. It should be longer than 30 s, and than the agent's read_deadline_s: until then "
        "the agent may still get an image's chunk map.",
    ),
    cfg.StrOpt(
        "disk_cachemode",
        default="writeback",
        choices=[
            ("writeback", "reads go through the page cache, which all instances share"),
            ("none", "O_DIRECT: every read of a guest reaches the agent"),
            ("nova", "what Nova chooses"),
        ],
        help="Cache mode of root disks that lie on a mirror. [libvirt] disk_cachemodes is "
        "preferred where it names one for files.",
    ),
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
    cfg.FloatOpt(
        "precache_timeout_s",
        default=3600.0,
        min=1,
        help="How long such a request may take for one image.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options, and those that are shared with the agent, with ``conf``."""
    acstor_common.conf.register_opts(conf)
    acstor_common.conf.register(conf, acstor_common.conf.GROUP, OPTS)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return [(acstor_common.conf.GROUP, [*acstor_common.conf.OPTS, *OPTS])]
