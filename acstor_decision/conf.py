# SPDX-License-Identifier: Apache-2.0
"""Every option of the decision service, with what it decides and the default's reason."""

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any

import stevedore
from oslo_config import cfg
from oslo_db import options as db_options

from acstor_common import conf as common_conf
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
        default="file:///var/lib/acstor-decision/coordination",
        help="Where instances agree on the one that leads, as a URL of tooz: file:///folder for "
        "instances on one host, mysql://user:password@host/database or etcd3+http://host:2379 for "
        "instances on several.",
    ),
    cfg.FloatOpt(
        "collection_s",
        default=5.0,
        min=0.1,
        max=3600.0,
        help="Time between two rounds. The agents' option of the same name must have this value.",
    ),
    cfg.IntOpt(
        "dead_after",
        default=6,
        min=2,
        help="Collections without a sample after which a host is taken off the ring. If more than "
        "half of the hosts fall silent, all stay: then the bus has failed, not they.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=["*"],
        help="Patterns (with * and ?) of the host ids that may join. Samples of others are refused "
        "and counted.",
    ),
    cfg.BoolOpt(
        "remap",
        default=True,
        help="Let traffic move v-nodes. When off, only hosts that come, go or are drained do.",
    ),
    cfg.FloatOpt(
        "overload_share",
        default=0.8,
        min=0.01,
        max=1.0,
        help="A host is overloaded when its links carry more than this share of their rate, in the "
        "busier direction, chunks included.",
    ),
    cfg.IntOpt(
        "overload_collections",
        default=2,
        min=1,
        help="Overloaded collections in a row of one host after which v-nodes move. 1 lets every "
        "burst move them.",
    ),
    cfg.FloatOpt(
        "least_moved",
        default=0.05,
        min=0.0,
        max=1.0,
        help="Traffic moves v-nodes only if hosts that are overloaded lose more than this share of "
        "theirs: what moves has to be fetched again.",
    ),
    cfg.StrOpt(
        "switch_loads",
        default="none",
        help="What knows how busy the switches are: none, static, hosts, prometheus or the name of "
        "an installed plug-in. Where most switches of a level are busy, homes of racks ask those "
        "beneath it and not those of all hosts.",
    ),
    cfg.BoolOpt(
        "spare_source",
        default=True,
        help="Whether the home of a group of near hosts asks, before it reads the source, the home "
        "of all hosts, or that beneath a level whose switches are busy: then the source is read "
        "once. False lets every group read the source for "
        "itself, for where the way to the source is better than that between groups.",
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
        "ca_cert_file",
        default="",
        help="Certificate (PEM) of an authority of your own that issues the hosts' certificates; "
        "others that hosts are to trust, a former one for instance, may stand behind it. Empty: "
        "one is made at the first start and kept in the database.",
    ),
    cfg.StrOpt(
        "ca_key_file",
        default="",
        help="Key (PEM, without a password) of the first certificate in ca_cert_file.",
    ),
    cfg.StrOpt(
        "metrics_listen",
        default="127.0.0.1:9465",
        help="Address and port of the Prometheus endpoint; empty turns it off.",
    ),
    cfg.IntOpt(
        "traffic_history_s",
        default=3600,
        min=0,
        help="For how many seconds the traffic of each collection is kept in the database. 1,000 "
        "hosts make 200 rows a second.",
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
    for group, options in list_opts():
        common_conf.register(conf, group, options)
    db_options.set_defaults(conf, connection="sqlite:////var/lib/acstor-decision/decision.sqlite")


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options of acstor's own for the sample generator."""
    return list(itertools.chain([(GROUP, OPTS)], switch_load_options()))


def limits(own: cfg.ConfigOpts.GroupAttr) -> members.Limits:
    """Return what membership and overload are measured with."""
    return members.Limits(
        collection_s=own.collection_s,
        dead_after=own.dead_after,
        overload_share=own.overload_share,
        overload_collections=own.overload_collections,
        allowed=own.allowed_hosts,
    )


def policy(own: cfg.ConfigOpts.GroupAttr) -> decider.Policy:
    """Return what tables are decided by."""
    return decider.Policy(
        least_moved=own.least_moved,
        may_remap=own.remap,
        spares_source=own.spare_source,
    )
