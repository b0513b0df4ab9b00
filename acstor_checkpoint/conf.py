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
    cfg.IntOpt(
        "vault_limit_bytes",
        default=100 << 30,
        min=0,
        help="What the vault keeps for all hosts together, in bytes on disk. What comes beyond "
        "that is refused, and its owner looks for another host. Lowering it drops nothing.",
    ),
    cfg.IntOpt(
        "vault_limit_of_host_bytes",
        default=50 << 30,
        min=0,
        help="What the vault keeps for one host, so that none takes all the room. With the "
        "default, a host that runs wild takes half of it.",
    ),
    cfg.IntOpt(
        "vault_limit_files",
        default=4_000_000,
        min=0,
        help="How many chunks and manifests the vault keeps. Not above the inodes of its file "
        "system: the default is for 100 GiB of chunks that compress to a third.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the checkpoint daemon with ``conf``."""
    common_conf.register(conf, GROUP, OPTS)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator."""
    return [(GROUP, OPTS)]
