# SPDX-License-Identifier: Apache-2.0
"""Options of the import plugin, the listener and the commands for Glance, in one group."""

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keystoneauth1 import loading
from oslo_config import cfg
from oslo_config import types

from acstor_common.image import deduplication
from acstor_common.image import image_record
from acstor_common.service import conf as common_conf
from acstor_common.service import session_options
from acstor_glance import sandbox

GROUP = cfg.OptGroup("acstor_glance", title="Preparation of Glance's images")

API_TIMEOUT_S = 60

DESCRIPTION = "Prepare the images of Glance."

OPTS = [
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor-glance",
        help="Folder for chunk maps of images that are not active yet, and for work leases. Run "
        "the listener with the user and the folder of the Glance service of its host; it then "
        "completes the work of a Glance process that was stopped.",
    ),
    cfg.StrOpt(
        "dedup_scope",
        default=deduplication.DedupScope.PROJECT.value,
        choices=[
            (
                "project",
                "with images of the same project, and with the public, community or shared image "
                "that is their parent",
            ),
            ("cloud", "with all images"),
        ],
        help="Images with which a private or shared image shares identical chunks. With 'cloud' a "
        "tenant can find out whether another tenant's image holds data that the tenant can guess, "
        "since cached chunks arrive sooner. With 'project' hosts fetch and store identical private "
        "data once for each project. Public and community images share with all. A change applies "
        "to images that are prepared later.",
    ),
    cfg.IntOpt(
        "workers",
        default=4,
        min=1,
        max=64,
        help="Number of images that a listener prepares at a time, each with two threads. Projects "
        "take turns, and one project uses at most all workers but one. The listener also makes up "
        "to two boot images at a time.",
    ),
    cfg.ListOpt(
        "file_store_dirs",
        default=[],
        help="Folders of Glance's file stores that this host can read. The listener reads images "
        "in them directly, skips holes, and resumes after an interruption; it reads all other "
        "images through Glance's API.",
    ),
    cfg.IntOpt(
        "max_expansion_ratio",
        default=64,
        min=1,
        max=100_000,
        help="Largest ratio of the data in a qcow2 image to the size of its file, by compression "
        "or shared clusters; 256 MiB are always allowed. The listener and the import plugin refuse "
        "images above it, which protects them against decompression bombs. Compressed disks of "
        "guests have ratios of 2 to 10.",
    ),
    common_conf.size_opt(
        "artefact_quota_per_project",
        default=16 << 30,
        least=1 << 20,
        help="Limit of the size of all chunk maps and boot images for the images of one project, "
        "and of the first 64 MiB of each conversion. They belong to the service's project, so the "
        "quota of the project in Glance does not count them. The listener prepares no image beyond "
        "the limit until images of the project are deleted. An image takes 20 to 60 MiB.",
    ),
    cfg.IntOpt(
        "block_dedup_rate_mib_s",
        default=8,
        min=0,
        max=100_000,
        help="Rate, in MiB of an image per second, at which the listener deduplicates blocks of an "
        "image's file with the file of its parent, as for snapshots. 0: never. Both files must be "
        "in file_store_dirs on the same XFS (reflink=1) or Btrfs file system, and the listener "
        "must own them or have write access. The kernel compares the data before it shares blocks, "
        "which reads each file once more.",
    ),
    cfg.ListOpt(
        "convert_formats",
        item_type=types.String(choices=image_record.CONVERTIBLE_DISK_FORMATS),
        default=[],
        help="Disk formats to serve besides raw and qcow2: "
        f"{', '.join(image_record.CONVERTIBLE_DISK_FORMATS)}. A listener converts such images with "
        "qemu-img, in the sandbox of builder_sandbox, and stores the result in Glance as a hidden "
        "compressed qcow2 image, which agents read instead. It takes the space of the image once "
        "more there, and temporarily up to three times in state_dir. Nova downloads images of all "
        "other formats itself; the listener deletes artefacts that it made of them.",
    ),
    cfg.BoolOpt(
        "protect_used_images",
        default=True,
        help="Whether the listener protects an image in Glance against deletion (its property "
        "'protected') while servers use it on hosts where it is not fully cached. When disabled, "
        "the listener removes the protections that it set. It needs the decision service.",
    ),
    cfg.StrOpt(
        "coordination_url",
        secret=True,
        help="URL of tooz for the work leases of listeners (mysql://..., etcd3+http://...). The "
        "default is a folder in state_dir, for listeners of one host. Listeners on several hosts "
        "need a service that all of them reach; without one they may prepare an image twice, which "
        "only wastes work.",
    ),
    cfg.StrOpt(
        "boot_images",
        default="auto",
        choices=[
            ("auto", "both if this host has QEMU and a working sandbox, else recorded"),
            ("none", "make no boot images"),
            ("recorded", "from boots that agents recorded and sent over the message bus"),
            ("built", "by booting each image once in a temporary guest on this host"),
            ("both", "by booting it, and improved ones from recorded boots"),
        ],
        help="Method that makes boot images. A listener decides this when it starts; its log and "
        "the metric acstor_glance_boot_image_method_enabled show the decision. A build needs QEMU "
        "and some minutes of a processor for each image; for images with the property "
        "hw_firmware_type=uefi also OVMF.",
    ),
    cfg.StrOpt(
        "builder_sandbox",
        default=sandbox.Sandbox.BUBBLEWRAP.value,
        choices=[
            ("bubblewrap", "no access to files, processes or networks of this host; required"),
            ("none", "only QEMU's own filter and resource limits"),
        ],
        help="Sandbox of QEMU while it boots or converts images, which any tenant may have "
        "uploaded.",
    ),
    cfg.StrOpt(
        "decision_endpoint",
        help="URL of the decision service, whose keys authenticate boot traces and requests on the "
        "message bus. The default is the endpoint in Keystone's catalog.",
    ),
    cfg.StrOpt(
        "trusted_dir",
        help="For clouds without the decision service: folder with ca.pem, the authorities that "
        "issue the hosts' certificates, and optionally signers.pem, the public keys that sign "
        "requests to prepare an image.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9466",
        help="Address and port of the listener's Prometheus endpoint; empty disables it.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options, and those of the service user, with ``conf``."""
    common_conf.register(conf, GROUP, OPTS)
    loading.register_auth_conf_options(conf, GROUP.name)
    conf.register_opts(session_options.session_options(API_TIMEOUT_S), GROUP.name)
    loading.register_adapter_conf_options(conf, GROUP.name, include_deprecated=False)


def load(conf: cfg.ConfigOpts, args: Sequence[str], prog: str, loader: Callable[..., None]) -> None:
    """Load the files that ``args`` names by a ``loader`` of :mod:`acstor_common.service.conf`."""
    options = [*list_opts(), (GROUP, _sign_in_options())]
    loader(conf, args, prog, register_opts, options, description=DESCRIPTION)


def _sign_in_options() -> list[cfg.Opt]:
    """Return the options of all sign-in plugins; keystoneauth registers one's only."""
    loaders: dict[str, loading.BaseLoader[Any]] = loading.get_available_plugin_loaders()
    return [cfg.Opt(option.dest) for loader in loaders.values() for option in loader.get_options()]


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return [
        (
            GROUP,
            [
                *OPTS,
                *loading.get_auth_common_conf_options(),
                *loading.get_auth_plugin_conf_options("v3password"),
                *session_options.session_options(API_TIMEOUT_S),
                *loading.get_adapter_conf_options(include_deprecated=False),
            ],
        )
    ]


def state_dir(conf: cfg.ConfigOpts) -> pathlib.Path:
    """Return the folder of files that must survive a restart."""
    return pathlib.Path(conf.acstor_glance.state_dir)
