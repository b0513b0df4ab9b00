# SPDX-License-Identifier: Apache-2.0
"""Checks of ``acstor-status upgrade check``; they connect only to the database."""

from collections.abc import Iterable

from oslo_config import cfg
from oslo_upgradecheck import common_checks
from oslo_upgradecheck import upgradecheck

from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.service import version
from acstor_common.wire import message_bus
from acstor_decision import conf as decision_conf
from acstor_decision import leader_election
from acstor_decision.api import app
from acstor_decision.api import conf as api_conf
from acstor_decision.api import policies
from acstor_decision.core import enrolment_rules
from acstor_decision.db import database
from acstor_decision.db import sample_queries

NAMED = 5  # number of subjects that a result names
NOT_LOOKED_AT = "not checked: the database cannot be used, or its schema is of another version"
_BROKER_OF_NOBODY = frozenset({"", "rabbit://"})
"""Defaults of oslo.messaging: a broker on this host, without a password."""

Result = upgradecheck.Result


def _success(details: str | None = None) -> Result:
    return Result(upgradecheck.Code.SUCCESS, details)


def _warning(details: str) -> Result:
    return Result(upgradecheck.Code.WARNING, details)


def _failure(details: object) -> Result:
    return Result(upgradecheck.Code.FAILURE, str(details))


class Checks(upgradecheck.UpgradeCommands):
    """The upgrade checks; each returns what is wrong and the remedy."""

    display_title = "acstor Upgrade Check Results"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf
        self._store: database.Database | None = None

    def check_options(self) -> Result:
        """Check the configuration files for unknown options."""
        known = [*decision_conf.list_opts(), *api_conf.list_opts()]
        return _named("", map(str, common_conf.unknown(self._conf, known)), "Correct it")

    def check_tables(self) -> Result:
        """Check that the database is usable and its schema is current."""
        try:
            store = database.Database(self._conf)
            is_current = store.is_current()
        except errors.Unusable as e:
            return _failure(e)
        except database.DatabaseError as e:
            return _failure(e.as_unusable())
        if not is_current:
            return _failure(
                "its schema does not match this version. Back it up, then run "
                "acstor-decision-manage db-sync"
            )
        self._store = store
        return _success()

    def check_bus(self) -> Result:
        """Check that the options name a broker."""
        try:
            message_bus.open_transport(self._conf)
        except errors.Unusable as e:
            return _failure(e)
        if self._conf.transport_url in _BROKER_OF_NOBODY:
            return _failure(
                "[DEFAULT] transport_url is not set. It is the same as in nova.conf, or that of a "
                "user of acstor's own: rabbit://USER:PASSWORD@HOST:5672/"
            )
        return _success()

    def check_coordination(self) -> Result:
        """Check that the tooz driver is installed."""
        try:
            leader_election.check_driver(self._conf.acstor_decision.coordination_url)
        except errors.Unusable as e:
            return _failure(e)
        return _success()

    def check_tokens(self) -> Result:
        """Check that the REST API can validate tokens."""
        if self._conf.acstor_decision_api.auth == "none":
            return _warning("[acstor_decision_api] auth is none: all clients have full access")
        try:
            app.check_tokens(lambda _environ, _start: [], self._conf)
        except errors.Unusable as e:
            return _failure(e)
        return _success()

    def policy_format(self) -> Result:
        """Check that the policy file is YAML."""
        found: Result = common_checks.check_policy_json(self, self._conf)
        return found

    def policy_rules(self) -> Result:
        """Check the policy file for unknown rules."""
        enforcer = policies.make_enforcer(self._conf)
        try:
            enforcer.load_rules()
        except (cfg.Error, OSError, ValueError) as e:
            return _failure(f"[oslo_policy] policy_file: {e}")
        known = {rule.name for rule in policies.list_rules()}
        ours = {name for name in enforcer.file_rules if name.startswith("acstor:")}
        return _named(
            "no rule has this name, so these entries have no effect",
            sorted(ours - known),
            "oslopolicy-sample-generator --namespace acstor prints all rules",
        )

    def check_agents(self) -> Result:
        """Check for hosts whose agents have another version."""
        if self._store is None:
            return _warning(NOT_LOOKED_AT)
        ours, others = version.installed(), []
        for row in self._store.list_hosts():
            health = sample_queries.health_of(row)
            if health is None or health.version != ours:
                others.append(f"{row.host} ({health.version if health else 'an early one'})")
        return _named(
            f"their agents do not have version {ours}",
            others,
            "This is expected during an upgrade: the service first, then the agents",
        )

    def check_enrolments(self) -> Result:
        """Check for hosts without a valid certificate."""
        if self._store is None:
            return _warning(NOT_LOOKED_AT)
        states = {row.host: row.state for row in self._store.list_enrolments()}
        waiting = {
            host
            for host, state in states.items()
            if state == enrolment_rules.EnrolmentState.WAITING
        }
        seen = {row.host for row in self._store.list_hosts()}
        known = {
            host
            for host, state in states.items()
            if state != enrolment_rules.EnrolmentState.FORGOTTEN
        }
        return _named(
            "they have no certificate",
            sorted(waiting | (seen - known)),
            "openstack acstor host allow HOST --fingerprint KEY, or acstor-decision-manage "
            "authority allow HOST",
        )

    _upgrade_checks = (
        ("Options", check_options),
        ("Database", check_tables),
        ("Message bus", check_bus),
        ("Coordination", check_coordination),
        ("Tokens", check_tokens),
        ("Policy file format", policy_format),
        ("Policy rules", policy_rules),
        ("Agents' versions", check_agents),
        ("Hosts' certificates", check_enrolments),
    )


def _named(what: str, found: Iterable[str], remedy: str) -> Result:
    names = list(found)
    if not names:
        return _success()
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    named = ", ".join(names[:NAMED]) + more
    return _warning(f"{named}: {what}. {remedy}" if what else f"{named}. {remedy}")
