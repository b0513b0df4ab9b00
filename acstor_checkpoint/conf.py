# SPDX-License-Identifier: Apache-2.0
"""Options of the checkpoint daemon."""

from oslo_config import cfg

from acstor_common import errors
from acstor_common.service import conf as common_conf

GROUP = cfg.OptGroup("acstor_checkpoint", title="Checkpoints of disks on other hosts")

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "agent_config_file",
        default="/etc/acstor/acstor-agent.conf",
        help="Configuration file of this host's agent. The daemon reads host, state_dir, "
        "identity_dir and ring_file of [acstor_agent] in it: it has the name and the certificate "
        "of the agent, and uses its v-node table and chunk maps.",
    ),
    cfg.StrOpt(
        "vault_listen",
        default="",
        sample_default="10.0.0.1:7202",
        help="Address and port (IP:PORT) of this host's vault, in the network of the agents. The "
        "port is the same on all hosts; hosts without a vault expect 7202. "
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
        help="Quota of one host in the vault; the same share of the vault's files applies. With "
        "the default a misbehaving host can use half of the vault.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9468",
        help="Address and port of the Prometheus endpoint; empty disables it.",
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
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor-checkpoint",
        help="Folder for the keys of this host's disks and the manifests of their last "
        "checkpoints. Only the daemon's user may enter it. If it is lost, the next checkpoint of "
        "each disk is a full one.",
    ),
    cfg.StrOpt(
        "libvirt_uri",
        default="qemu:///system",
        help="URI of libvirt on this host, as Nova uses it.",
    ),
    common_conf.size_opt(
        "scratch_limit_bytes",
        default=20 << 30,
        help="Limit of the data in /var/lib/libvirt/qemu/acstor, where QEMU keeps what guests "
        "overwrite during a capture, for all servers; one server may use half of it. A "
        "checkpoint whose guest overwrites more continues with the next part, or ends and is "
        "retried. 1 GiB of the file system stays free.",
    ),
]


BROKER = cfg.StrOpt(
    "transport_url",
    secret=True,
    help="URL of the message broker, for the registration of checkpoints at the decision service. "
    "Without it the daemon takes none. All other options of oslo.messaging apply as well.",
)
"""Copy of oslo.messaging's option, which has its own configuration object."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the checkpoint daemon with ``conf``."""
    common_conf.register_opts(conf)
    common_conf.register(conf, GROUP, OPTS)
    conf.register_opt(BROKER)


def agent_options(conf: cfg.ConfigOpts) -> cfg.ConfigOpts.GroupAttr:
    """Return the agent's options that this daemon reads from its file, or raise Unusable."""
    agent, path = cfg.ConfigOpts(), conf.acstor_checkpoint.agent_config_file
    common_conf.register(agent, common_conf.AGENT_GROUP, common_conf.HOST_OPTS)
    try:
        agent([], default_config_files=[path], default_config_dirs=[])
    except cfg.Error as e:
        raise errors.Unusable("[acstor_checkpoint] agent_config_file", str(e)) from e
    own: cfg.ConfigOpts.GroupAttr = agent.acstor_agent
    return own


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample generator, without the shared ones."""
    return [(GROUP, OPTS)]
