# SPDX-License-Identifier: Apache-2.0
"""Options of the checkpoint daemon."""

import socket

from oslo_config import cfg

from acstor_common.service import conf as common_conf

GROUP = cfg.OptGroup("acstor_checkpoint", title="Checkpoints of disks on other hosts")

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<the host name>",
        help="Id of this host, as [acstor_agent] host; the certificate has this name.",
    ),
    cfg.StrOpt(
        "identity_dir",
        default="/var/lib/acstor/state/identity",
        help="Folder with the certificate and the key of the host and the authority's certificate, "
        "as the agent keeps them (identity in its state_dir). The daemon reloads them within "
        "seconds.",
    ),
    cfg.StrOpt(
        "vault_listen",
        default="",
        sample_default="10.0.0.1:7202",
        help="Address and port (IP:PORT) of this host's vault, in the network of the agents. "
        "Empty: this host stores no checkpoints of other hosts.",
    ),
    cfg.StrOpt(
        "vault_dir",
        default="/var/lib/acstor/vault",
        help="Folder of the vault, best on a file system of its own; it has one file for each 64 "
        "KiB. Only the daemon's user may enter it (mode 0700).",
    ),
    common_conf.size_opt(
        "vault_limit_bytes",
        default=100 << 30,
        help="Limit of the vault on disk, for all hosts. The vault refuses data beyond it, and the "
        "owner uses another host. A lower limit deletes nothing.",
    ),
    common_conf.size_opt(
        "vault_quota_per_host_bytes",
        default=50 << 30,
        help="Quota of one host in the vault; the same share of vault_limit_inodes applies. With "
        "the default a misbehaving host can use half of the vault.",
    ),
    cfg.IntOpt(
        "vault_limit_inodes",
        default=4_000_000,
        min=0,
        help="Limit of files and folders in the vault: one file for each chunk and manifest, and "
        "up to 258 folders for each disk. It must not exceed the inodes of the file system. The "
        "default fits 100 GiB of chunks that compress to a third.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9468",
        help="Address and port of the Prometheus endpoint; empty disables it.",
    ),
    cfg.BoolOpt(
        "metrics_by_server",
        default=False,
        help="Whether metrics of checkpoints are shown for each server instead of the longest "
        "times. Clients of metrics_listen then see the ids of servers.",
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
        help="Interval of checkpoints of each server of this host, in seconds, at least 30. 0: "
        "none. acstor:checkpoint_interval_s of a host aggregate, a flavor or a server overrides "
        "it.",
    ),
    cfg.IntOpt(
        "checkpoint_copies",
        default=2,
        min=1,
        max=16,
        help="Number of other hosts that keep each checkpoint, in different locations if possible; "
        "fewer if there are not enough hosts.",
    ),
    cfg.ListOpt(
        "checkpoint_holders",
        default=[],
        help="Ids of the hosts that may keep checkpoints of this host. Empty: all hosts of the "
        "v-node table, which must then have vaults. Name storage hosts to keep checkpoints only "
        "there; each runs an agent, to be in the table, and this daemon with a vault.",
    ),
    cfg.IntOpt(
        "checkpoint_rate_bytes_s",
        default=100 << 20,
        min=0,
        help="Limit of the rate at which all disks are read for checkpoints, in bytes per second. "
        "0: no limit. The traffic is the compressed data times the copies. The limit also applies "
        "to the copying of checkpoint data into the disk of a recovered server.",
    ),
    cfg.IntOpt(
        "capture_slice_s",
        default=300,
        min=10,
        help="Longest time, in seconds, for which a disk is read at once; libvirt refuses to "
        "migrate the server meanwhile. The next part follows at once and reads the disk as it is "
        "then.",
    ),
    cfg.IntOpt(
        "capture_limit_s",
        default=4 * 3600,
        min=10,
        help="The same for a server that writes faster than its disk is read, after three parts "
        "without progress. At the default rate this time is enough for 1.4 TiB, less the reads of "
        "other servers.",
    ),
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor-checkpoint",
        help="Folder for the keys of this host's disks and the manifests of their last "
        "checkpoints. Only the daemon's user may enter it. If it is lost, the next checkpoint of "
        "each disk is a full one.",
    ),
    cfg.StrOpt(
        "agent_state_dir",
        default="/var/lib/acstor/state",
        help="state_dir of this host's agent, which has the v-node table and the chunk maps.",
    ),
    cfg.StrOpt(
        "ring_file",
        default="",
        help="The same as [acstor_agent] ring_file, if it is set.",
    ),
    cfg.StrOpt(
        "libvirt_uri",
        default="qemu:///system",
        help="URI of libvirt on this host, as Nova uses it.",
    ),
    cfg.StrOpt(
        "socket_dir",
        default="/var/lib/libvirt/qemu/acstor",
        help="Folder in which QEMU keeps data that the guest overwrites during a capture. QEMU's "
        "user needs write access. libvirt's profiles (AppArmor, SELinux) need no rule for the "
        "default.",
    ),
    common_conf.size_opt(
        "scratch_limit_bytes",
        default=20 << 30,
        help="Limit of the data in socket_dir on disk, for all servers; one server may use half of "
        "it. A checkpoint whose guest overwrites more continues with the next part, or ends and is "
        "retried. 1 GiB of the file system stays free.",
    ),
]


BROKER = cfg.StrOpt(
    "transport_url",
    secret=True,
    help="URL of the message broker, for the registration of checkpoints at the decision service. "
    "Without it the daemon takes none. All other options of oslo.messaging apply as well.",
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
