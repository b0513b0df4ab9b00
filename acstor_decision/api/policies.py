# SPDX-License-Identifier: Apache-2.0
"""Default policies of the API, for oslo.policy."""

import itertools
from collections.abc import Iterator

from oslo_config import cfg
from oslo_policy import policy

from acstor_decision.api import operation
from acstor_decision.api import routes

SCOPES = ["system", "project"]  # token scopes that may be used; hosts belong to no domain

BASE = tuple(
    policy.RuleDefault(name, rule, description, scope_types=SCOPES)
    for name, rule, description in (
        ("acstor:admin", "role:admin", "Who may change the state of the service"),
        (
            "acstor:reader",
            "rule:acstor:admin or (role:reader and system_scope:all)",
            "Who may see hosts and images of all projects",
        ),
        (
            "acstor:agent",
            "role:acstor-reader or role:acstor-host or rule:acstor:admin",
            "Services on compute hosts, as the Keystone user of the agents' configuration",
        ),
        (
            "acstor:recovery",
            "role:acstor-recovery or rule:acstor:admin",
            "Who may restore disks from checkpoints, and so read them",
        ),
        (
            "acstor:service",
            "rule:acstor:agent or role:acstor-prepare or role:service",
            "Services on hosts, next to Glance, or others",
        ),
    )
)


def list_rules() -> Iterator[policy.RuleDefault]:
    """Yield every rule; ``oslopolicy-sample-generator`` prints them."""
    return itertools.chain(BASE, (_rule_of(known) for known in routes.ALL))


def make_enforcer(conf: cfg.ConfigOpts) -> policy.Enforcer:
    """Return an enforcer of the rules of ``conf`` over the defaults."""
    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(list(list_rules()))
    return enforcer


def _rule_of(known: operation.Operation) -> policy.DocumentedRuleDefault:
    where: policy.Operation = {"path": known.path, "method": known.method}
    return policy.DocumentedRuleDefault(
        known.policy, known.rule, known.summary, [where], scope_types=SCOPES
    )
