# SPDX-License-Identifier: Apache-2.0
"""Options of acstor in nova.conf, group [acstor]; oslo.config's ``driver`` must be ``acstor``."""

from oslo_config import cfg

import acstor_common.service.conf

NAME = "acstor"  # name of the image backend and of the configuration source
OPTS = [
    cfg.StrOpt(
        "disk_errors",
        default="pause",
        choices=[
            ("pause", "QEMU pauses the guest, which does not notice the error"),
            ("nova", "Nova's default: the guest gets the error; many remount the disk read-only"),
        ],
        help="Action when a read or a write of a root disk on a mirror fails. virsh resume or a "
        "hard reboot resumes a paused guest.",
    ),
    cfg.StrOpt(
        "gateway_url",
        default="",
        help="URL of acstor-glance-gateway. Nova then sends only the delta of a snapshot of an "
        "instance on a mirror, and the gateway flattens it into a complete image. Empty: Nova "
        "uploads complete images.",
    ),
    cfg.StrOpt(
        "decision_url",
        default="",
        help="URL of acstor's REST API. On a compute host: it has the checkpoints of servers, and "
        "a server that is evacuated to this host gets the disk of its newest checkpoint. Empty: it "
        "starts from its image. Of nova-scheduler: it has the locality of images, and "
        "acstor_nova.weigher weighs hosts by it. Empty: hosts do not differ.",
    ),
    cfg.FloatOpt(
        "image_locality_weight_multiplier",
        default=1.5,
        help="Multiplier of the weigher acstor_nova.weigher.ImageLocalityWeigher of "
        "nova-scheduler: the weight of a host with the complete image against 1.0 of Nova's "
        "weighers for memory, processors and disk each. Metadata of an aggregate with the same "
        "name replaces it for the hosts there.",
    ),
    cfg.StrOpt(
        "ca_file",
        default="",
        help="PEM file with the authorities of the certificates of the gateway and of the REST "
        "API. Empty: those of the system.",
    ),
    cfg.StrOpt(
        "recover",
        default="required",
        choices=[
            ("required", "fail the evacuation; the server's fault has the reason"),
            ("preferred", "start the server from its image, without the data that it wrote"),
        ],
        help="Action when a server is evacuated to this host and no checkpoint is available. If a "
        "checkpoint is only delayed, the evacuation fails and can be repeated.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options, with those shared with the agent, in ``conf``."""
    acstor_common.service.conf.register_opts(conf)
    acstor_common.service.conf.register(conf, acstor_common.service.conf.GROUP, OPTS)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return [(acstor_common.service.conf.GROUP, [*acstor_common.service.conf.OPTS, *OPTS])]
