# SPDX-License-Identifier: Apache-2.0
"""Options of what runs beside Glance: import plugin, listener and commands.

All three read one group, so the plugin's part of ``glance-api.conf`` is the
listener's file.
"""

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keystoneauth1 import loading
from oslo_config import cfg
from oslo_config import types

from acstor_common import conf as common_conf
from acstor_common import image_record
from acstor_common import scope
from acstor_common import session_options
from acstor_glance import sandbox

GROUP = cfg.OptGroup("acstor_glance", title="What prepares the images of Glance")

TIMEOUT_S = 60

DESCRIPTION = "Run what prepares the images of Glance."

OPTS = [
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor-glance",
        help="Folder for chunk maps that wait for their image to become active, and for claims. "
        "Give the listener the user and the folder of the Glance service of its host: then it "
        "finishes what a Glance process that was stopped has begun.",
    ),
    cfg.StrOpt(
        "dedup_scope",
        default=scope.DedupScope.PROJECT.value,
        choices=[
            (
                "project",
                "with images of the same project, and with the public, community or "
                "shared image that they were made from",
            ),
            ("cloud", "with every image"),
        ],
        help="With which images a private or shared image shares the chunks that both have. "
        "With 'cloud' a tenant finds out whether another tenant's image holds bytes that he can "
        "guess: they come from a cache then, and sooner. With 'project' what is written in one "
        "project is fetched and stored once more for each other one. Public and community images "
        "share with all. It is about images that are prepared from now on.",
    ),
    cfg.IntOpt(
        "workers",
        default=4,
        min=1,
        max=64,
        help="Images that one listener prepares at a time, each with two threads. Projects take "
        "turns, and one project has all workers but one at most. Two boot images are made beside.",
    ),
    cfg.ListOpt(
        "file_store_dirs",
        default=[],
        help="Folders of Glance's file stores that this host can read. An image whose location is "
        "a file in one of them is read there, holes are skipped and a stopped run goes on where "
        "it was; others are read through Glance's API.",
    ),
    cfg.IntOpt(
        "max_expansion_ratio",
        default=64,
        min=1,
        max=100_000,
        help="How many bytes of its disk may be stored in a qcow2 image for each byte of its file, "
        "by compression or because several clusters name one place; 256 MiB are always allowed. "
        "The listener and the import plugin refuse an image that holds more, before it costs them "
        "more time than its upload is worth. Compressed disks of guests have a ratio of 2 to 10.",
    ),
    common_conf.size_opt(
        "artefacts_of_project",
        default=16 << 30,
        least=1 << 20,
        help="How much the chunk maps and boot images of one project's images may take. They are "
        "stored in the service's own project, so the project's quota in Glance does not count "
        "them. An image beyond it is not prepared until images of the project are deleted. An "
        "image takes 20 to 60 MiB.",
    ),
    cfg.IntOpt(
        "share_room_mib_s",
        default=8,
        min=0,
        max=100_000,
        help="How fast, in MiB of an image a second, the listener lets the file of an image share "
        "room with that of the image that it was made from, as snapshots are; 0: never. Both have "
        "to lie in file_store_dirs, on one XFS (reflink=1) or Btrfs, and the listener has to own "
        "the files, or be allowed to write them. The kernel compares the bytes before they are "
        "shared; each file is read once more for it.",
    ),
    cfg.ListOpt(
        "convert_formats",
        item_type=types.String(choices=image_record.CONVERTIBLE_DISK_FORMATS),
        default=[],
        help="Disk formats other than raw and qcow2 that are served as well: "
        f"{', '.join(image_record.CONVERTIBLE_DISK_FORMATS)}. A listener converts such images with "
        "qemu-img, in the sandbox of builder_sandbox, and keeps what comes of it in Glance as a "
        "hidden compressed qcow2 image, which agents read instead. It takes the room of the image "
        "once more there, and up to three times in state_dir for a while. Images of formats that "
        "are not named are left to Nova, and lose what was made of them.",
    ),
    cfg.BoolOpt(
        "protect_used_images",
        default=True,
        help="Whether an image that servers use, and that is not whole on each of their hosts yet, "
        "is protected in Glance from being deleted (its property 'protected') until it is. What "
        "was protected so before is taken back when this is switched off. It needs the decision "
        "service.",
    ),
    cfg.StrOpt(
        "coordination_url",
        secret=True,
        help="Where listeners claim images, as a URL of tooz (mysql://..., etcd3+http://...). "
        "Without one, a folder below state_dir, which is right for listeners of one host. "
        "Listeners on several hosts need a service that all of them reach; without one an image "
        "may be prepared twice, which wastes work and harms nothing.",
    ),
    cfg.StrOpt(
        "notification_exchange",
        default="glance",
        help="Exchange of Glance's notifications: [DEFAULT] control_exchange there. Their topics "
        "are those of [oslo_messaging_notifications] topics here, as there.",
    ),
    cfg.StrOpt(
        "boot_images",
        default="auto",
        choices=[
            ("auto", "both where this host has QEMU and can hold it in its sandbox, else recorded"),
            ("none", "make no boot images"),
            ("recorded", "of the boots that agents recorded and sent over the message bus"),
            ("built", "by booting each image once in a throw-away guest on this host"),
            ("both", "by booting it, and better ones of recorded boots"),
        ],
        help="How boot images are made. A listener decides this when it starts; its log and the "
        "metric acstor_glance_boot_image_method_enabled show the decision. A build needs QEMU and "
        "some minutes of a processor for each image; for images with the property "
        "hw_firmware_type=uefi also OVMF.",
    ),
    cfg.StrOpt(
        "builder_sandbox",
        default=sandbox.Sandbox.BUBBLEWRAP.value,
        choices=[
            ("bubblewrap", "no file, process or network of this host; without it nothing is built"),
            ("none", "QEMU's own filter and resource limits only: who breaks out of QEMU is here"),
        ],
        help="What holds QEMU while it boots or converts an image, which any tenant may have "
        "uploaded.",
    ),
    cfg.StrOpt(
        "decision_endpoint",
        help="URL of the decision service, which says whose boot traces and requests on the "
        "message bus are believed; the one of Keystone's catalog by default.",
    ),
    cfg.StrOpt(
        "trusted_dir",
        help="For clouds without the decision service, which is not asked then: folder with "
        "ca.pem, the authorities that issue the hosts' certificates, and, if there are any, "
        "signers.pem, the public keys that sign requests to prepare an image.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9466",
        help="Address and port of the listener's Prometheus endpoint; empty turns it off.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options, and those of the service user, with ``conf``."""
    common_conf.register(conf, GROUP, OPTS)
    loading.register_auth_conf_options(conf, GROUP.name)
    conf.register_opts(session_options.session_options(TIMEOUT_S), GROUP.name)
    loading.register_adapter_conf_options(conf, GROUP.name, include_deprecated=False)


def load(conf: cfg.ConfigOpts, args: Sequence[str], prog: str, read: Callable[..., None]) -> None:
    """Read the files that the command line ``args`` names into ``conf``.

    :param read: a service's way to do so or a command's, of :mod:`acstor_common.conf`
    :raises cfg.Error: there is no such file, or some option's value makes no sense
    """
    options = [*list_opts(), (GROUP, _sign_in_options())]
    read(conf, args, prog, register_opts, options, description=DESCRIPTION)


def _sign_in_options() -> list[cfg.Opt]:
    """Return the options of all ways to sign in: keystoneauth registers those of the one in use."""
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
                *session_options.session_options(TIMEOUT_S),
                *loading.get_adapter_conf_options(include_deprecated=False),
            ],
        )
    ]


def state_dir(conf: cfg.ConfigOpts) -> pathlib.Path:
    """Return the folder of what must survive a restart."""
    return pathlib.Path(conf.acstor_glance.state_dir)
