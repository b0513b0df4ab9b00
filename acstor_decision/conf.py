# SPDX-License-Identifier: Apache-2.0
"""Every option of the decision service, with what it decides and the default's reason."""

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any

import stevedore
from oslo_config import cfg
from oslo_config import types
from oslo_db import options as db_options

from acstor_common import conf as common_conf
from acstor_common import decision_api
from acstor_decision import nova
from acstor_decision.core import decider
from acstor_decision.core import members

GROUP = cfg.OptGroup("acstor_decision", title="The decision service")
SWITCH_LOADS_NAMESPACE = "acstor.switch_loads"

OPTS = [
    cfg.StrOpt(
        "instance",
        default=f"{socket.gethostname()}.{os.getpid()}",
        sample_default="<the host name and the process id>",
        help="Name of this instance of the service; no two that run may have the same.",
    ),
    cfg.StrOpt(
        "coordination_url",
        secret=True,
        default="file:///var/lib/acstor-decision/coordination",
        help="Where instances agree on the one that leads, as a URL of tooz: file:///folder for "
        "instances on one host, mysql://user:password@host/database or etcd3+http://host:2379 for "
        "instances on several.",
    ),
    cfg.IntOpt(
        "dead_after",
        default=6,
        min=2,
        help="Collections, of 5 s each, without a sample after which a host is taken off the ring. "
        "If more than half of the hosts fall silent, all stay: then the bus has failed, not they.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=["*"],
        help="Patterns (with * and ?) of the host ids that may join. Samples of others are refused "
        "and counted.",
    ),
    cfg.IntOpt(
        "hosts_per_ip",
        default=4,
        min=1,
        help="Hosts that may be on the v-node table with one IP address and different ports. More "
        "than one are behind NAT, or are agents of a test. Samples of further ones are refused and "
        "counted. Agents give each host of the table an allowance of connections, so somebody "
        "who enrols many names must not put them all at one address.",
    ),
    cfg.BoolOpt(
        "prove_addresses",
        default=True,
        help="Put a host on the v-node table only after the agent at its peer_listen has proven by "
        "TLS that it is that host, and take a silent host off only after it was not reached there. "
        "The service connects to the agents for that, so it must reach their port. Turn it off "
        "where it cannot, or where agents have peer_security = insecure: then every agent "
        "connects to whatever address an enrolled host names. Addresses of the loopback need no "
        "proof.",
    ),
    cfg.BoolOpt(
        "remap",
        default=True,
        help="Let traffic move v-nodes. When off, only hosts that come, go or are drained do.",
    ),
    cfg.Opt(
        "segment_chunks",
        type=types.Integer(choices=[0, 1, 2, 4, 8, 16]),
        default=0,
        help="How many chunks of an image that lie side by side have one home. 0: as many as the "
        "median link of the hosts carries in 1 ms, so 16 with 10 Gbit/s and 1 with 1 Gbit/s. A "
        "change moves most of what homes keep, so set a length where about half of the links are "
        "fast.",
    ),
    cfg.FloatOpt(
        "overload_share",
        default=0.8,
        min=0.01,
        max=1.0,
        help="A host is overloaded when its links carry more than this share of their rate, in the "
        "busier direction, chunks included.",
    ),
    cfg.StrOpt(
        "switch_loads",
        default="none",
        help="What knows how busy the switches are: none, static, hosts, prometheus or the name of "
        "an installed plug-in. Where most switches of a level are busy, homes of racks ask those "
        "beneath it and not those of all hosts.",
    ),
    cfg.StrOpt(
        "enrolment",
        default="automatic",
        choices=[
            ("automatic", "whoever comes with a token that the policy acstor:host:enrol allows"),
            ("approved", "whom an operator has allowed, too: openstack acstor host allow HOST"),
        ],
        help="Which new hosts get a certificate. The name of a host belongs to the Keystone user "
        "and the key that enrolled it first, either way.",
    ),
    cfg.IntOpt(
        "certificate_life_s",
        default=86400,
        min=60,
        max=366 * 86400,
        help="How long a host's certificate is valid; hosts renew it long before. A shorter life "
        "lets a stolen key be of use for a shorter time, also where nobody notices the theft.",
    ),
    cfg.StrOpt(
        "ca_dir",
        help="Folder of an authority of your own that issues the hosts' certificates: ca.pem, its "
        "certificate, behind which others may stand that hosts are to trust, a former one for "
        "instance, and ca.key.pem, its key without a password. By default one is made at the "
        "first start and kept in the database.",
    ),
    cfg.IntOpt(
        "checkpoint_keep",
        default=2,
        min=1,
        max=100,
        help="Newest checkpoints of a server that are kept. With more than one a server can be "
        "recovered from the one before when the newest cannot be had.",
    ),
    cfg.IntOpt(
        "checkpoint_metadata_least_s",
        default=0,
        min=0,
        help="The shortest interval of checkpoints, in seconds, that users may ask for by the "
        "metadata acstor:checkpoint_interval_s of their servers; who asks for a shorter one gets "
        "this. With 0 metadata counts for nothing. Any user can have each of his servers read "
        "that often, and its changes sent to other hosts: offer what the hosts can bear.",
    ),
    cfg.IntOpt(
        "checkpoint_kept_s",
        default=86400,
        min=0,
        help="How long the checkpoints of a server are kept after Nova has ceased to know it. "
        "Who deleted it by mistake has that time.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9465",
        help="Address and port of the Prometheus endpoint; empty turns it off.",
    ),
    cfg.BoolOpt(
        "metrics_by_server",
        default=False,
        help="Show metrics of checkpoints for each server instead of their sums. Whoever reaches "
        "metrics_listen then learns the ids of servers.",
    ),
]


def switch_load_options() -> Iterator[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Yield the option group of every installed provider of switch loads that has options."""
    found: stevedore.ExtensionManager[Any] = stevedore.ExtensionManager(SWITCH_LOADS_NAMESPACE)
    for extension in found:
        if options := extension.plugin.options():
            title = f"Switch loads: {extension.name}"
            yield cfg.OptGroup(f"switch_loads_{extension.name}", title=title), options


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the service's options, those of its plug-ins and those of the database."""
    for group, options in _own_opts():
        common_conf.register(conf, group, options)
    nova.register_opts(conf)
    db_options.set_defaults(conf, connection="sqlite:////var/lib/acstor-decision/decision.sqlite")


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options of acstor's own for the sample generator."""
    of_nova = (nova.GROUP, [*nova.auth_options(), *nova.options()])
    return [*_own_opts(), of_nova]


def _own_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    return list(itertools.chain([(GROUP, OPTS)], switch_load_options()))


def load(args: list[str]) -> cfg.ConfigOpts:
    """Read the configuration into the global object (oslo.messaging knows no other); return it.

    :raises cfg.Error: there is no such file, or some option's value makes no sense
    """
    conf = cfg.CONF
    prog, says = "acstor-decision", "Run the decision service."
    common_conf.load(conf, args, prog, register_opts, list_opts(), says)
    return conf


def limits(own: cfg.ConfigOpts.GroupAttr) -> members.Limits:
    """Return what membership and overload are measured with."""
    return members.Limits(
        collection_s=decision_api.COLLECTION_S,
        dead_after=own.dead_after,
        overload_share=own.overload_share,
        allowed=own.allowed_hosts,
        hosts_per_ip=own.hosts_per_ip,
    )


def silent_after_s(own: cfg.ConfigOpts.GroupAttr) -> float:
    """Return for how long a host may be silent before it is gone."""
    return float(own.dead_after * decision_api.COLLECTION_S)


def policy(own: cfg.ConfigOpts.GroupAttr) -> decider.Policy:
    """Return what tables are decided by."""
    return decider.Policy(may_remap=own.remap, segment_chunks=own.segment_chunks or None)
