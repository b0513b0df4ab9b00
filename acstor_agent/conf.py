# SPDX-License-Identifier: Apache-2.0
"""Every option of the agent, with what it decides and the default's reason."""

import copy
import itertools
import socket
from collections.abc import Iterator
from typing import Any

import stevedore
from keystoneauth1 import loading
from oslo_config import cfg
from oslo_config import types

import acstor_common.conf
from acstor_agent.core import variants
from acstor_common import decision_api
from acstor_common import geometry
from acstor_common import session_options

GROUP = cfg.OptGroup("acstor_agent", title="The per-host agent")

ENROLMENT = cfg.OptGroup(
    "enrolment",
    title="How the agent gets its certificate from the decision service",
    help="auth_type, or auth_section with the name of another section, turns it on. "
    "auth_section = source_glance signs in as the source glance does.",
)
ENROLMENT_TIMEOUT_S = 30

SOURCES_NAMESPACE = "acstor.sources"

OPTS = [
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<the host name>",
        help="Id of this host on the ring. It must be unique in the cloud and must not change.",
    ),
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor/state",
        help="Folder for what must survive a restart: chunk maps of attached images, what guests "
        "wrote to disks, the lock. Only the agent's user may enter it (mode 0700).",
    ),
    cfg.StrOpt(
        "cache_dir",
        default="/var/lib/acstor/cache",
        help="Folder of the public cache. A file system of its own is a good idea. Only the "
        "agent's user may enter it (mode 0700). While it cannot be written, nothing new is cached "
        "and guests are served all the same.",
    ),
    acstor_common.conf.size_opt(
        "cache_limit_bytes",
        default=20 * 1024 * geometry.MIB,
        least=geometry.MIB,
        help="Upper bound of the public cache on disk, counted over the agent's own files only.",
    ),
    cfg.StrOpt(
        "keep_images",
        default="host",
        choices=[
            ("host", "images that instances of this host use become whole here, and stay so"),
            (
                "cloud",
                "hosts keep a share of each image that is used anywhere, two copies of all of it",
            ),
            ("none", "nothing is fetched that no guest asks for, and nothing is kept for good"),
        ],
        help="What is done so that instances do not depend on sources. With host, the rest of an "
        "image is fetched after the boot, behind everything else, and nothing of it makes room "
        "for other images while it is used: then they depend on no other host either. With cloud, "
        "each chunk is kept on two hosts of the v-node table instead; set it on all hosts.",
    ),
    cfg.FloatOpt(
        "whole_limit_mbit",
        default=0.0,
        min=0.0,
        help="Upper bound, in Mbit/s, of the rate at which images become whole. They take only "
        "what others leave over of the link (traffic_interfaces, link_mbit); 0 sets no other "
        "bound.",
    ),
    cfg.BoolOpt(
        "cache_may_grow_for_pins",
        default=False,
        help="Let the cache grow beyond cache_limit_bytes where images that must stay whole need "
        "it. If off, an image for which there is no room does not become whole, and that is told.",
    ),
    cfg.StrOpt(
        "disk_policy",
        default="auto",
        choices=[
            ("auto", "pregather where the device of cache_dir rotates, none elsewhere"),
            ("none", "the kernel decides; nothing is done before it"),
            ("deadline", "ascending order, in batches that begin with what is overdue"),
            ("anticipatory", "deadline, and a wait for the next read of the same stream"),
            ("cfq", "streams take turns of equal length"),
            ("pregather", "turns, and waits for the request that is predicted"),
        ],
        help="Who decides in which order the agent reads and writes its own disk. A virtual disk "
        "says that it rotates whatever is behind it, so auto gives it none. It can be changed "
        "while the agent runs: acstor-agent-ctl set-disk-policy.",
    ),
    cfg.ListOpt(
        "sources",
        default=["http"],
        help="Sources to read images from, the preferred one first; each has a group "
        "[source_<name>]. When one fails, or is silent for some seconds, the next one is asked.",
    ),
    cfg.FloatOpt(
        "read_deadline_s",
        default=0.0,
        min=0.0,
        help="0: a guest's read waits as long as its bytes may still come, as on a hard NFS mount, "
        "and a guest whose reads wait can be killed. Otherwise a read that cannot be answered in "
        "this time fails with EIO, so that QEMU's error policy can pause the guest. Bytes that are "
        "certainly nowhere are EIO before (lost_after_s). A look-up of an image that nobody has "
        "open waits for its chunk map for this time, 30 s at most.",
    ),
    cfg.FloatOpt(
        "lost_after_s",
        default=900.0,
        min=0.0,
        help="When the sources have said for this long that they have not got an image, and every "
        "host of the v-node table says so of the bytes that a guest reads, they are lost: the read "
        "fails with EIO. Until then it waits, since a source may be wrong for a while: rights that "
        "are being changed, a folder that is not mounted. A host that left the table counts as one "
        "that does not answer for as long. 0: they are lost at once.",
    ),
    cfg.FloatOpt(
        "detach_unused_after_s",
        default=86400.0,
        min=0.0,
        help="An image that no instance of this host has used for this long is detached: its chunk "
        "map, its boot image and its metrics go from this host, its chunks stay in the cache until "
        "others need the room, and go 30 days later if the source has the image no more. Not below "
        "Nova's [image_cache] manager_interval, since Nova tells in its passes which images "
        "stopped instances use; with one above 90 minutes nothing counts as unused. 0 detaches "
        "none.",
    ),
    acstor_common.conf.size_opt(
        "boot_memory_limit_bytes",
        default=512 * geometry.MIB,
        help="Memory that boot images may take while guests boot, all together; one takes some "
        "tens of MiB and serves all guests of its image. One that does not fit is not used. 0 "
        "turns boot images off: none is used here, and what guests read when they boot is not "
        "recorded. Otherwise numbers of chunks are, for three minutes at most, and sent to the "
        "listener beside Glance, which makes boot images of them.",
    ),
    cfg.StrOpt(
        "boot_images_ahead",
        default="none",
        choices=[
            ("none", "a boot image comes when a guest boots"),
            ("booted", "those of new versions of images that instances of this host use, too"),
            ("all", "those, and those of all public images"),
        ],
        help="Which boot images come to this host as soon as they are made, before a guest of it "
        "asks for them: slowly, behind everything else, in an eighth of the cache at most, and no "
        "more than that in a day. Set all on hosts where images are first booted, such as those "
        "of an aggregate. It needs a decision service, which tells of new boot images; private "
        "images come only where their project has instances.",
    ),
    cfg.BoolOpt(
        "private_images_for_others",
        default=True,
        help="Whether this host brings and keeps chunks of images that not everybody may read for "
        "other hosts, as the home of these chunks, where none of its own instances uses the image. "
        "Without it such chunks are in caches of hosts alone whose instances use the image, and "
        "leave the others' room to images that many use; these hosts share them as far as they "
        "are each other's homes or neighbours, and read the rest from the source.",
    ),
    cfg.ListOpt(
        "variants",
        default=[],
        item_type=types.String(choices=list(variants.MEANINGS.items())),
        help="Ways of work other than the best ones that are known, for experiments that compare "
        "them; a cloud that serves guests needs none. Guests read the same bytes with each.",
    ),
    cfg.StrOpt(
        "peer_listen",
        default="0.0.0.0:7201",
        help="Address and port (ip:port) on which other agents reach this one. The decision "
        "service tells it them, so then it must be an address of this host, not 0.0.0.0.",
    ),
    cfg.FloatOpt(
        "peer_upload_limit_mbit",
        default=0.0,
        min=0.0,
        help="Upper bound, in Mbit/s, of what this host sends to other agents, all together; "
        "0: none. Requests and guests' reads count like everything else.",
    ),
    cfg.FloatOpt(
        "peer_download_limit_mbit",
        default=0.0,
        min=0.0,
        help="Upper bound, in Mbit/s, of what this host receives from other agents, all together; "
        "0: none. Sources are not bounded by it.",
    ),
    cfg.IntOpt(
        "peer_guest_dscp",
        default=0,
        min=0,
        max=63,
        help="DSCP of packets to other agents that guests wait for, for networks that treat "
        "classes differently. 0 leaves them as they are.",
    ),
    cfg.IntOpt(
        "peer_background_dscp",
        default=0,
        min=0,
        max=63,
        help="DSCP of all other packets to other agents: images that become whole, prefetches, "
        "news. 8 (CS1) and 1 (LE) are usual for what may wait.",
    ),
    cfg.StrOpt(
        "peer_security",
        choices=[
            ("secure", "mutual TLS 1.3, then frames encrypted with AES-256-GCM"),
            ("insecure", "clear text, and everybody is who he says he is"),
        ],
        help="How this host talks to other agents; all hosts of a cloud must have the same. The "
        "default is secure, and insecure where peer_listen is an address of the loopback. "
        "Other than with insecure the agent does not start without a certificate.",
    ),
    cfg.StrOpt(
        "identity_dir",
        help="Folder with ca.pem (the authorities whose certificates are believed, one or "
        "several), cert.pem (this host's certificate, of an Ed25519 key; its one DNS "
        "subjectAltName is the option host) and key.pem. By default the folder identity of "
        "state_dir; leave it so where the decision service gives certificates. Files that are "
        "replaced are noticed, and no connection is lost.",
    ),
    cfg.StrOpt(
        "ring_file",
        help="JSON file with the v-node table. It is read again when it changes. Without one (and "
        "without a table from the control socket) this host works alone, from its sources.",
    ),
    cfg.StrOpt(
        "location",
        default="",
        help="Where this host stands, from the widest place to the narrowest, such as "
        "pod1/rack3, for the decision service. All hosts need as many levels.",
    ),
    cfg.ListOpt(
        "traffic_interfaces",
        default=[],
        help="Network interfaces whose traffic counts; without any, those of the default routes. "
        "Of bonds, bridges and VLANs the interfaces below them are counted, each once.",
    ),
    cfg.FloatOpt(
        "link_mbit",
        default=0.0,
        min=0.0,
        help="Rate of these interfaces together, each way, in Mbit/s. 0 takes what they say "
        "themselves; one that cannot say it counts as 1000.",
    ),
    cfg.StrOpt(
        "stop_with_guests",
        default="refuse",
        choices=[
            ("refuse", "it goes on; where a service manager waits, it stops when they have gone"),
            ("unmount", "it stops: guests get I/O errors from what they have not read yet"),
        ],
        help="What a signal to stop does while guests use mirrors and no service manager keeps the "
        "mount for the next start. The log says who uses what. SIGKILL ends the agent in any "
        "case, and so does a shutdown of the host.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9464",
        help="Address and port of the Prometheus endpoint; empty turns it off.",
    ),
    cfg.BoolOpt(
        "metrics_by_image",
        default=False,
        help="Show metrics of reads for each image, and of disk I/O for each guest, instead of "
        "their sums. Whoever reaches metrics_listen then learns the ids of images, and a scrape "
        "costs more with each image.",
    ),
    cfg.Opt(
        "control_group",
        type=types.String(),
        sample_default="acstor",
        help="Group whose members may use the control socket: one of nova-compute's. Where a "
        "container has no such name it is the number. Without it acstor, or the agent's user alone "
        "where there is no such group.",
    ),
    cfg.Opt(
        "mirror_group",
        type=types.String(),
        sample_default="kvm",
        help="Group, by name or number, whose members may look into the mirror and read images "
        "there: that of the user that runs QEMU, and of Nova's. Nobody else but root can. Without "
        "it kvm, which libvirt's packages use, or root alone where there is no such group.",
    ),
]

BROKER = cfg.StrOpt(
    "transport_url",
    secret=True,
    help="The broker of the message bus, by which the decision service is joined. The other "
    "options of oslo.messaging stand beside it.",
)
"""oslo.messaging's own, which looks in a configuration object of its own for it."""


def source_options() -> Iterator[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Yield the option group of every installed source."""
    found: stevedore.ExtensionManager[Any] = stevedore.ExtensionManager(SOURCES_NAMESPACE)
    for extension in found:
        group = cfg.OptGroup(f"source_{extension.name}", title=f"The source {extension.name}")
        yield group, extension.plugin.options()


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the agent's options, and those of its sources, with ``conf``."""
    acstor_common.conf.register_opts(conf)
    acstor_common.conf.register(conf, GROUP, OPTS)
    conf.register_opt(BROKER)
    for group, options in source_options():
        acstor_common.conf.register(conf, group, options)
    loading.register_auth_conf_options(conf, ENROLMENT.name)
    conf.register_opts(session_options.session_options(ENROLMENT_TIMEOUT_S), ENROLMENT.name)
    loading.register_adapter_conf_options(conf, ENROLMENT.name, include_deprecated=False)
    conf.set_default("service_type", decision_api.SERVICE_TYPE, ENROLMENT.name)


def _enrolment_options() -> Iterator[cfg.Opt]:
    """Yield keystoneauth's options, whose help is short, for the sample."""
    yield from loading.get_auth_common_conf_options()
    for opt in loading.get_auth_plugin_conf_options("v3password"):
        told = copy.copy(opt)
        told.help = f"{(opt.help or opt.name).rstrip('.')}, to sign in at Keystone."
        yield told
    yield from session_options.session_options(ENROLMENT_TIMEOUT_S)
    yield from loading.get_adapter_conf_options(include_deprecated=False)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for the sample generator."""
    return list(
        itertools.chain(
            [
                (acstor_common.conf.GROUP, acstor_common.conf.OPTS),
                (GROUP, OPTS),
                (ENROLMENT, list(_enrolment_options())),
            ],
            source_options(),
        )
    )
