# SPDX-License-Identifier: Apache-2.0
"""Every option of the checkpoint daemon, with what it decides and the default's reason."""

import socket

from oslo_config import cfg

from acstor_common import conf as common_conf

GROUP = cfg.OptGroup("acstor_checkpoint", title="Checkpoints of disks, kept by other hosts")

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<the host name>",
        help="Id of this host, the same as [acstor_agent] host: its certificate has this name.",
    ),
    cfg.StrOpt(
        "identity_dir",
        default="/var/lib/acstor/state/identity",
        help="Folder with the host's certificate and key and the authority's certificate, as the "
        "agent keeps them (identity in its state_dir). New ones are noticed within seconds.",
    ),
    cfg.StrOpt(
        "vault_listen",
        default="",
        sample_default="10.0.0.1:7202",
        help="Where other hosts reach the vault of this one, as IP:PORT. Empty: it keeps nothing "
        "for others. Name an address of the network of the agents.",
    ),
    cfg.StrOpt(
        "vault_dir",
        default="/var/lib/acstor/vault",
        help="Folder of the vault. A file system of its own is a good idea, with a file for each "
        "64 KiB. Only the daemon's user may enter it (mode 0700).",
    ),
    common_conf.size_opt(
        "vault_limit_bytes",
        default=100 << 30,
        help="What the vault keeps for all hosts together, in bytes on disk. What comes beyond "
        "that is refused, and its owner looks for another host. Lowering it drops nothing.",
    ),
    common_conf.size_opt(
        "vault_limit_of_host_bytes",
        default=50 << 30,
        help="What the vault keeps for one host, so that none takes all the room; it may have the "
        "same share of vault_limit_inodes. With the default, a host that runs wild takes half.",
    ),
    cfg.IntOpt(
        "vault_limit_inodes",
        default=4_000_000,
        min=0,
        help="How many files and folders the vault keeps: a file for each chunk and manifest, and "
        "up to 258 folders for each disk. Not above the inodes of its file system: the default is "
        "for 100 GiB of chunks that compress to a third.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9468",
        help="Address and port of the Prometheus endpoint of the vault; empty turns it off.",
    ),
    cfg.BoolOpt(
        "metrics_by_server",
        default=False,
        help="Show metrics of checkpoints for each server instead of the longest times. Whoever "
        "reaches metrics_listen then learns the ids of servers.",
    ),
    cfg.IntOpt(
        "vault_port",
        default=7202,
        min=1,
        max=65535,
        help="Port of the vaults of all other hosts, at the addresses of their agents.",
    ),
    cfg.IntOpt(
        "checkpoint_interval_s",
        default=0,
        min=0,
        help="How often a checkpoint is taken of each server of this host, in seconds, from 30 on. "
        "0: of none, but those for which a host aggregate, a flavor or the server itself says "
        "otherwise by acstor:checkpoint_interval_s, which counts for more than this option.",
    ),
    cfg.IntOpt(
        "checkpoint_copies",
        default=2,
        min=1,
        max=16,
        help="How many other hosts keep each checkpoint, in different locations as far as there "
        "are any. Fewer if there are no more hosts.",
    ),
    cfg.ListOpt(
        "checkpoint_holders",
        default=[],
        help="Ids of the hosts that may keep the checkpoints of this one. Empty: all hosts of the "
        "v-node table, which must have vaults then. Name storage hosts to keep checkpoints there "
        "alone: each runs an agent, for its place in the table, and this daemon with a vault.",
    ),
    cfg.IntOpt(
        "checkpoint_rate_bytes_s",
        default=100 << 20,
        min=0,
        help="How fast disks are read for checkpoints, in bytes a second, all together; 0: as fast "
        "as it goes. What is sent is less, for it is compressed, times the copies. Also how fast "
        "what a checkpoint has is copied into the disk of a running server that was recovered.",
    ),
    cfg.IntOpt(
        "checkpoint_longest_s",
        default=300,
        min=10,
        help="How long a disk is read at a time, in seconds. Meanwhile libvirt refuses to migrate "
        "the server. What is not read by then is read right after that, of the disk as it is then.",
    ),
    cfg.IntOpt(
        "checkpoint_most_s",
        default=4 * 3600,
        min=10,
        help="The same of a server that writes faster than its disk is read, when three parts were "
        "of no use. At the default rate 1.4 TiB are read in this time, less what is read of other "
        "servers meanwhile.",
    ),
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor-checkpoint",
        help="Folder of what is known of the disks of this host: their keys, and their last "
        "checkpoints' manifests. Only the daemon's user may enter it. Without it each disk begins "
        "anew.",
    ),
    cfg.StrOpt(
        "agent_state_dir",
        default="/var/lib/acstor/state",
        help="state_dir of this host's agent, where v-node table and chunk maps are read.",
    ),
    cfg.StrOpt(
        "ring_file",
        default="",
        help="The same as [acstor_agent] ring_file, if the agents have one.",
    ),
    cfg.StrOpt(
        "libvirt_uri",
        default="qemu:///system",
        help="Where libvirt of this host is reached, as Nova reaches it.",
    ),
    cfg.StrOpt(
        "socket_dir",
        default="/var/lib/libvirt/qemu/acstor",
        help="Folder in which QEMU keeps what the guest overwrites while a checkpoint is taken. "
        "QEMU's user must be able to write to it. libvirt's profiles (AppArmor, SELinux) need no "
        "rule for it.",
    ),
    common_conf.size_opt(
        "scratch_limit_bytes",
        default=20 << 30,
        help="What socket_dir keeps for all servers together, in bytes on disk; for one server it "
        "keeps half of this. A checkpoint whose guest overwrites more while it is taken goes on "
        "with the next part, or is ended and tried again. 1 GiB of the file system stays free.",
    ),
]


BROKER = cfg.StrOpt(
    "transport_url",
    secret=True,
    help="The broker of the message bus, by which checkpoints are registered at the decision "
    "service. Without it none are taken. The other options of oslo.messaging stand beside it.",
)
"""oslo.messaging's own, which looks in a configuration object of its own for it."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the checkpoint daemon with ``conf``."""
    common_conf.register_opts(conf)
    common_conf.register(conf, GROUP, OPTS)
    conf.register_opt(BROKER)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator, but those that it shares with the agent."""
    return [(GROUP, OPTS)]
