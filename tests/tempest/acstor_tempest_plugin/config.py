# SPDX-License-Identifier: Apache-2.0
"""Options that the tests need about a cloud with acstor."""

from oslo_config import cfg

SERVICE = cfg.BoolOpt(
    "acstor", default=False, help="Whether the compute hosts use the image backend of acstor."
)
GROUP = cfg.OptGroup(name="acstor", title="Servers that boot from mirrors of images")
OPTIONS = [
    cfg.DictOpt(
        "agent_metrics",
        default={},
        help="Where each agent shows its counters: what Nova calls the host, a colon, and the URL "
        "of its Prometheus endpoint; hosts are separated by commas. What needs counters is "
        "skipped where this is empty.",
    ),
    cfg.IntOpt(
        "image_mib",
        default=64,
        min=16,
        help="Size in MiB of the images that the tests upload.",
    ),
    cfg.IntOpt(
        "prepare_timeout",
        default=120,
        help="Seconds within which an uploaded image must have got its chunk map.",
    ),
    cfg.IntOpt(
        "boot_timeout",
        default=120,
        help="Seconds within which a server of these tests must have written all on its console.",
    ),
]
