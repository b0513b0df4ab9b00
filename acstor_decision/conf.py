# SPDX-License-Identifier: Apache-2.0
"""Options of the decision service."""

import itertools
from collections.abc import Iterator
from typing import Any

import stevedore
from oslo_config import cfg
from oslo_db import options as db_options

from acstor_common.service import conf as common_conf
from acstor_common.wire import decision_messages
from acstor_decision import nova_client
from acstor_decision.core import decider
from acstor_decision.core.membership import members

GROUP = cfg.OptGroup("acstor_decision", title="The decision service")
SWITCH_LOADS_NAMESPACE = "acstor.switch_loads"

OPTS = [
    cfg.StrOpt(
        "coordination_url",
        secret=True,
        default="file:///var/lib/acstor-decision/coordination",
        help="URL of tooz for the election of the leader: file:///folder for instances on one "
        "host, mysql://user:password@host/database or etcd3+http://host:2379 for instances on "
        "several.",
    ),
    cfg.IntOpt(
        "dead_after_samples",
        default=6,
        min=2,
        help="Number of missed samples, one every 5 s, after which the service removes a host from "
        "the ring. If more than half of the hosts fall silent, all stay, since then the message "
        "bus has failed.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=["*"],
        help="Patterns (with * and ?) of host ids that may join. The service refuses and counts "
        "samples of other hosts.",
    ),
    cfg.BoolOpt(
        "verify_addresses",
        default=True,
        help="Whether a host joins the v-node table only after the agent at its peer_listen has "
        "authenticated by TLS, and leaves it only after the service could not connect there. The "
        "service must reach the port of the agents. Disable it where it cannot, or where agents "
        "have peer_security = insecure; agents then connect to any address that an enrolled host "
        "names. Loopback addresses are not verified.",
    ),
    cfg.BoolOpt(
        "remap",
        default=True,
        help="Whether the service moves v-nodes away from overloaded hosts. If not, it moves "
        "v-nodes only when hosts join, leave or are drained.",
    ),
    cfg.StrOpt(
        "switch_loads",
        default="none",
        help="Provider of the switches' loads: none, static, hosts, prometheus or the name of an "
        "installed plug-in. Where most switches of a level are busy, homes of racks ask homes "
        "below that level instead of those of all hosts.",
    ),
    cfg.StrOpt(
        "enrolment",
        default="automatic",
        choices=[
            ("automatic", "hosts whose token the policy acstor:host:enrol allows"),
            (
                "approved",
                "these hosts, after an operator allows them (openstack acstor host allow)",
            ),
        ],
        help="New hosts that get a certificate. In both cases the name of a host belongs to the "
        "Keystone user and the key that enrolled it first.",
    ),
    cfg.IntOpt(
        "certificate_lifetime_s",
        default=86400,
        min=60,
        max=366 * 86400,
        help="Lifetime of hosts' certificates; hosts renew them long before. A short lifetime "
        "limits the use of a stolen key.",
    ),
    cfg.StrOpt(
        "ca_dir",
        help="Folder of your own certificate authority for hosts: ca.pem, its certificate, "
        "followed by further certificates that hosts trust, such as the previous one; and "
        "ca.key.pem, its key without a password. By default the service creates an authority at "
        "the first start and stores it in the database.",
    ),
    cfg.IntOpt(
        "checkpoints_per_server",
        default=2,
        min=1,
        max=100,
        help="Number of checkpoints kept for each server. With more than one, a recovery can use "
        "the previous checkpoint when the newest is not available.",
    ),
    cfg.IntOpt(
        "checkpoint_metadata_min_interval_s",
        default=0,
        min=0,
        help="Smallest checkpoint interval that users can set with the metadata "
        "acstor:checkpoint_interval_s of their servers; smaller values are raised to it. 0: the "
        "service ignores the metadata. Any user can cause that much load for each server, so "
        "choose a value that the hosts can bear.",
    ),
    cfg.IntOpt(
        "checkpoint_retention_after_delete_s",
        default=86400,
        min=0,
        help="Time for which checkpoints are kept after the deletion of their server, to undo a "
        "deletion by mistake.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9465",
        help="Address and port of the Prometheus endpoint; empty disables it.",
    ),
]


def switch_load_options() -> Iterator[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Yield the option group of each installed provider of switch loads."""
    found: stevedore.ExtensionManager[Any] = stevedore.ExtensionManager(SWITCH_LOADS_NAMESPACE)
    for extension in found:
        if options := extension.plugin.options():
            title = f"Switch loads: {extension.name}"
            yield cfg.OptGroup(f"switch_loads_{extension.name}", title=title), options


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the service, its plug-ins, Nova and the database."""
    for group, options in _own_opts():
        common_conf.register(conf, group, options)
    nova_client.register_opts(conf)
    db_options.set_defaults(conf, connection="sqlite:////var/lib/acstor-decision/decision.sqlite")


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return acstor's own options for the sample generator."""
    of_nova = (nova_client.GROUP, [*nova_client.auth_options(), *nova_client.options()])
    return [*_own_opts(), of_nova]


def _own_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    return list(itertools.chain([(GROUP, OPTS)], switch_load_options()))


def load(args: list[str]) -> cfg.ConfigOpts:
    """Load the configuration into the global object and return it, or raise cfg.Error."""
    conf = cfg.CONF
    prog, description = "acstor-decision", "Run the decision service."
    common_conf.load(conf, args, prog, register_opts, list_opts(), description)
    return conf


def membership_limits(group: cfg.ConfigOpts.GroupAttr) -> members.MembershipLimits:
    """Return the limits of membership and overload."""
    return members.MembershipLimits(
        collection_s=decision_messages.COLLECTION_S,
        dead_after_samples=group.dead_after_samples,
        allowed=group.allowed_hosts,
    )


def silent_after_s(group: cfg.ConfigOpts.GroupAttr) -> float:
    """Return how long a host may be silent until it counts as gone."""
    return float(group.dead_after_samples * decision_messages.COLLECTION_S)


def remap_policy(group: cfg.ConfigOpts.GroupAttr) -> decider.RemapPolicy:
    """Return the policy of the decider."""
    return decider.RemapPolicy(may_remap=group.remap)
