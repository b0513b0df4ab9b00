# SPDX-License-Identifier: Apache-2.0
"""Options of the agent."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import stevedore
from keystoneauth1 import loading
from oslo_config import cfg
from oslo_config import types

import acstor_common.service.conf
from acstor_common.model import geometry
from acstor_common.service import session_options
from acstor_common.wire import decision_messages

GROUP = acstor_common.service.conf.AGENT_GROUP

ENROLMENT = cfg.OptGroup(
    "enrolment",
    title="Enrolment of the host with the decision service",
    help="Set auth_type, or auth_section with the name of another section, to enable it. "
    "auth_section = source_glance uses the credentials of the source glance.",
)
ENROLMENT_TIMEOUT_S = 30

SOURCES_NAMESPACE = "acstor.sources"

OPTS = [
    *acstor_common.service.conf.HOST_OPTS,
    cfg.StrOpt(
        "cache_dir",
        default="/var/lib/acstor/cache",
        help="Folder of the cache, best on a file system of its own. Only the agent's user may "
        "enter it (mode 0700). While it is not writable the agent caches no new chunks, and guests "
        "still read.",
    ),
    acstor_common.service.conf.size_opt(
        "cache_limit_bytes",
        default=20 * 1024 * geometry.MIB,
        least=geometry.MIB,
        help="Limit of the cache on disk; it counts only the agent's own files.",
    ),
    cfg.StrOpt(
        "keep_images",
        default="host",
        choices=[
            ("host", "cache images that servers of this host use completely, and pin them"),
            ("cloud", "keep two copies of each used image, spread over all hosts"),
            ("none", "fetch only data that guests read, and pin nothing"),
        ],
        help="Whether and where images are kept for servers that use them. With host, the agent "
        "fetches the rest of an image after the boot at the lowest priority and pins it while it "
        "is used: its servers then depend on no other host and no source. With cloud, two hosts of "
        "the v-node table keep each chunk instead; set it on all hosts.",
    ),
    cfg.FloatOpt(
        "fill_rate_limit_mbit",
        default=0.0,
        min=0.0,
        help="Limit, in Mbit/s, of the rate at which images are cached completely. Fills use only "
        "spare capacity of the link (traffic_interfaces, link_mbit). 0: no further limit.",
    ),
    cfg.StrOpt(
        "disk_policy",
        default="auto",
        choices=[
            ("auto", "pregather where the device of cache_dir rotates, none elsewhere"),
            ("none", "leave the order to the kernel"),
            ("pregather", "time slices, with waits for predicted requests"),
        ],
        help="Policy that orders reads and writes of the agent's own disk. auto uses none for "
        "virtual disks, which always report rotation. acstor-agent-ctl set-disk-policy changes it "
        "while the agent runs.",
    ),
    cfg.ListOpt(
        "sources",
        default=["http"],
        help="Sources to read images from, the preferred one first; each has a group "
        "[source_<name>]. When a source fails or does not answer for some seconds, the agent asks "
        "the next one.",
    ),
    cfg.FloatOpt(
        "read_deadline_s",
        default=0.0,
        min=0.0,
        help="0: a guest's read waits while its data may still arrive, as on a hard NFS mount; a "
        "guest whose reads wait can be killed. Otherwise a read fails with EIO after this time, so "
        "that QEMU's error policy can pause the guest. Lost data fails earlier (lost_after_s). A "
        "look-up of an image that is not open waits this long for its chunk map, 30 s at most.",
    ),
    cfg.FloatOpt(
        "lost_after_s",
        default=900.0,
        min=0.0,
        help="Data is lost, and its reads fail with EIO, when for this time all sources have "
        "reported that the image does not exist and all hosts of the v-node table that they lack "
        "the data. Until then reads wait, since a source may be wrong for a while: during a change "
        "of permissions, or while a folder is not mounted. A host that left the table counts as "
        "unreachable for this time. 0: data is lost at once.",
    ),
    cfg.FloatOpt(
        "detach_unused_after_s",
        default=86400.0,
        min=0.0,
        help="The agent detaches an image that no server of this host has used for this time: it "
        "removes the chunk map, the boot image and the metrics of the image. The chunks stay "
        "cached until they are evicted, or for 30 days if the source no longer has the image. Use "
        "no less than Nova's [image_cache] manager_interval, since Nova reports the images of "
        "stopped servers at that interval; if it is above 90 minutes, all images count as used. 0: "
        "never detach.",
    ),
    acstor_common.service.conf.size_opt(
        "boot_memory_limit_bytes",
        default=512 * geometry.MIB,
        help="Limit of the memory for all boot images while guests boot. A boot image takes some "
        "tens of MiB and serves all guests of its image; the agent does not use one that does not "
        "fit. 0 disables boot images and the recording of boots. A recording lasts three minutes "
        "at most and holds only chunk numbers; the agent sends it to the Glance listener, which "
        "makes boot images from it.",
    ),
    cfg.StrOpt(
        "prefetch_boot_images",
        default="none",
        choices=[
            ("none", "fetch a boot image when a guest boots"),
            ("booted", "prefetch boot images of new versions of images in use on this host"),
            ("all", "prefetch these, and the boot images of all public images"),
        ],
        help="Boot images that this host prefetches when they are made, at the lowest priority. "
        "They take an eighth of the cache at most, and no more traffic than that in a day. Use all "
        "on hosts that boot new images first, such as those of an aggregate. It needs the decision "
        "service, which announces new boot images. Boot images of private images go only to hosts "
        "with servers of their project.",
    ),
    cfg.StrOpt(
        "peer_listen",
        default="0.0.0.0:7201",
        help="Address and port (ip:port) for other agents. With a decision service it must be an "
        "address of this host, not 0.0.0.0, since the service publishes it.",
    ),
    cfg.FloatOpt(
        "peer_upload_limit_mbit",
        default=0.0,
        min=0.0,
        help="Limit, in Mbit/s, of all traffic that this host sends to other agents, with requests "
        "and guests' reads. 0: no limit.",
    ),
    cfg.FloatOpt(
        "peer_download_limit_mbit",
        default=0.0,
        min=0.0,
        help="Limit, in Mbit/s, of all traffic that this host receives from other agents. 0: no "
        "limit. It does not apply to sources.",
    ),
    cfg.IntOpt(
        "peer_background_dscp",
        default=0,
        min=0,
        max=63,
        help="DSCP of packets to other agents on which no guest waits: fills, prefetches, "
        "advertisements. 8 (CS1) and 1 (LE) are usual for background traffic. 0: unchanged.",
    ),
    cfg.StrOpt(
        "peer_security",
        choices=[
            ("secure", "mutual TLS 1.3, then frames encrypted with AES-256-GCM"),
            ("insecure", "clear text, without authentication"),
        ],
        help="Security of connections between agents; the same on all hosts of a cloud. The "
        "default is secure, and insecure where peer_listen is a loopback address. With secure the "
        "agent needs a certificate to start.",
    ),
    cfg.StrOpt(
        "location",
        default="",
        help="Network location of this host, from the widest level to the narrowest, such as "
        "pod1/rack3. All hosts need the same number of levels. The source glance prefers stores of "
        "Glance with the name of a level.",
    ),
    cfg.ListOpt(
        "traffic_interfaces",
        default=[],
        help="Network interfaces whose traffic the agent measures; the default is those of the "
        "default routes. For bonds, bridges and VLANs it measures the physical interfaces once.",
    ),
    cfg.FloatOpt(
        "link_mbit",
        default=0.0,
        min=0.0,
        help="Total rate of these interfaces in each direction, in Mbit/s. 0: the rate that the "
        "driver reports, or 1000 for an interface without one.",
    ),
    cfg.StrOpt(
        "stop_with_guests",
        default="refuse",
        choices=[
            ("refuse", "keep running; under a service manager, stop once no guest uses mirrors"),
            ("unmount", "stop; guests get I/O errors for data that they have not read yet"),
        ],
        help="Effect of a stop signal while guests use mirrors and no service manager keeps the "
        "mount for the next start. The log names the guests. SIGKILL and a shutdown of the host "
        "always end the agent.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9464",
        help="Address and port of the Prometheus endpoint; empty disables it.",
    ),
    cfg.BoolOpt(
        "metrics_by_image",
        default=False,
        help="Whether metrics of reads are shown for each image, and of disk I/O for each guest, "
        "instead of their sums. Clients of metrics_listen then see the ids of images, and the cost "
        "of a scrape grows with the number of images.",
    ),
    cfg.Opt(
        "control_group",
        type=types.String(),
        sample_default="acstor",
        help="Group, by name or number, whose members may use the control socket; nova-compute "
        "must be a member. The default is acstor, or only the agent's user where that group does "
        "not exist.",
    ),
    cfg.Opt(
        "mirror_group",
        type=types.String(),
        sample_default="kvm",
        help="Group, by name or number, whose members may read images in the mirror; the users of "
        "QEMU and of Nova must be members. Other users except root have no access. The default is "
        "kvm, which libvirt's packages use, or only root where that group does not exist.",
    ),
]

BROKER = cfg.StrOpt(
    "transport_url",
    secret=True,
    help="URL of the message broker that connects the agent with the decision service. All other "
    "options of oslo.messaging apply as well.",
)
"""An option of oslo.messaging, which reads it from a configuration object of its own."""


VARIANTS = cfg.ListOpt("variants", default=[], help="Variants of policies, for experiments.")
"""For experiments; in no sample and no document for operators."""


def source_options() -> Iterator[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Yield the option group of every installed source."""
    found: stevedore.ExtensionManager[Any] = stevedore.ExtensionManager(SOURCES_NAMESPACE)
    for extension in found:
        group = cfg.OptGroup(f"source_{extension.name}", title=f"The source {extension.name}")
        yield group, extension.plugin.options()


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the agent's options, and those of its sources, with ``conf``."""
    acstor_common.service.conf.register_opts(conf)
    acstor_common.service.conf.register(conf, GROUP, [*OPTS, VARIANTS])
    conf.register_opt(BROKER)
    for group, options in source_options():
        acstor_common.service.conf.register(conf, group, options)
    loading.register_auth_conf_options(conf, ENROLMENT.name)
    conf.register_opts(session_options.session_options(ENROLMENT_TIMEOUT_S), ENROLMENT.name)
    loading.register_adapter_conf_options(conf, ENROLMENT.name, include_deprecated=False)
    conf.set_default("service_type", decision_messages.SERVICE_TYPE, ENROLMENT.name)


def _enrolment_options() -> Iterator[cfg.Opt]:
    """Yield keystoneauth's options, whose help is short, for the sample."""
    yield from loading.get_auth_common_conf_options()
    for opt in loading.get_auth_plugin_conf_options("v3password"):
        copied = copy.copy(opt)
        copied.help = f"{(opt.help or opt.name).rstrip('.')}, to authenticate with Keystone."
        yield copied
    yield from session_options.session_options(ENROLMENT_TIMEOUT_S)
    yield from loading.get_adapter_conf_options(include_deprecated=False)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return list(
        itertools.chain(
            [
                (acstor_common.service.conf.GROUP, acstor_common.service.conf.OPTS),
                (GROUP, OPTS),
                (ENROLMENT, list(_enrolment_options())),
            ],
            source_options(),
        )
    )
