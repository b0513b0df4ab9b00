# SPDX-License-Identifier: Apache-2.0
"""``acstor-status upgrade check`` finds problems before a service fails on them."""

import json
import sqlite3
import subprocess
import sys

import pytest
from oslo_upgradecheck import upgradecheck

from acstor_common.service import version
from acstor_common.wire import decision_messages
from acstor_decision import upgrade_checks
from acstor_decision.api import conf as api_conf
from acstor_decision.identity import certificate_authority
from tests.unit.decision.api import conftest as samples

Code = upgradecheck.Code


@pytest.fixture
def conf(configure):
    made = configure()
    api_conf.register_opts(made)
    return made


@pytest.fixture
def checks(conf):
    return upgrade_checks.Checks(conf)


def found(result):
    return result.code, result.details or ""


def test_other_schema_version_is_a_failure_with_the_remedy(checks, store, tmp_path):
    assert found(checks.check_tables()) == (Code.SUCCESS, "")
    with sqlite3.connect(tmp_path / "decision.sqlite") as other:
        other.execute("UPDATE alembic_version SET version_num = '0099'")
    later = upgrade_checks.Checks(checks._conf)
    code, details = found(later.check_tables())
    assert code is Code.FAILURE and "acstor-decision-manage db-sync" in details
    assert found(later.check_agents()) == found(later.check_enrolments())
    assert found(later.check_agents()) == (Code.WARNING, upgrade_checks.NOT_LOOKED_AT)


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ("postgresql+pg8000://acstor:secret@h/x", "needs the driver pg8000"),
        ("nosuch://acstor:secret@h/x", "sqlalchemy.dialects:nosuch"),
        ("secret", "not a database URL"),
        ("mysql+pymysql://acstor:secret@127.0.0.1:1/x", "Connection refused"),
        ("sqlite:////nowhere/at/all.sqlite", "unable to open database file"),
    ],
)
def test_unusable_database_is_named_without_its_password(conf, connection, words):
    conf.set_override("connection", connection, "database")
    code, details = found(upgrade_checks.Checks(conf).check_tables())
    assert code is Code.FAILURE
    assert words in details and "secret" not in details and "\n" not in details


def test_missing_or_unknown_bus_is_a_failure(checks, conf):
    code, details = found(checks.check_bus())
    assert code is Code.FAILURE and "transport_url is not set" in details
    conf.set_override("transport_url", "pigeon://a:secret@b/")
    code, details = found(checks.check_bus())
    assert code is Code.FAILURE and "pigeon" in details and "secret" not in details
    conf.set_override("transport_url", "rabbit://a:secret@b/")
    assert found(checks.check_bus()) == (Code.SUCCESS, "")


def test_unknown_coordination_driver_is_a_failure(checks, conf):
    assert found(checks.check_coordination()) == (Code.SUCCESS, "")
    conf.set_override("coordination_url", "pigeon://a:secret@b/", "acstor_decision")
    code, details = found(checks.check_coordination())
    assert code is Code.FAILURE and "pigeon" in details and "secret" not in details


@pytest.mark.allow_log(r"www_authenticate_uri")
def test_disabled_authentication_is_a_warning_and_missing_options_a_failure(checks, conf):
    code, details = found(checks.check_tokens())
    assert code is Code.FAILURE and "[keystone_authtoken] auth_type" in details
    conf.set_override("auth", "none", "acstor_decision_api")
    code, details = found(checks.check_tokens())
    assert code is Code.WARNING and "full access" in details


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('"acstor:host:list": "role:member"', Code.SUCCESS, ""),
        ('"acstor:hosts:list": ""\n"mine": "role:x"', Code.WARNING, "acstor:hosts:list: no rule"),
        ('"acstor:host:list": [', Code.FAILURE, "policy_file"),
    ],
)
def test_unknown_policy_rules_are_named(checks, conf, tmp_path, text, code, words):
    file = tmp_path / "decision-policy.yaml"
    file.write_text(text + "\n")
    conf.set_override("policy_file", str(file), "oslo_policy")
    result = found(checks.policy_rules())
    assert result[0] is code and words in result[1], result
    if code is Code.SUCCESS:
        assert found(checks.policy_format()) == (Code.SUCCESS, "")


def test_policies_in_json_are_a_failure(checks, conf, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text('{"acstor:host:list": "role:member"}')
    conf.set_override("policy_file", str(file), "oslo_policy")
    code, details = found(checks.policy_format())
    assert code is Code.FAILURE and "oslopolicy-convert-json-to-yaml" in details


def test_agents_of_other_versions_and_hosts_without_certificates_are_named(checks, store, conf):
    def health(reported):
        return decision_messages.HostHealth(version=reported)

    samples.note(
        store,
        samples.sample(1, health=health(version.installed())),
        samples.sample(2, health=health("0.0.1")),
        *(samples.sample(number) for number in range(3, 10)),
    )
    keeper = certificate_authority.CertificateAuthority(conf.acstor_decision, store)
    for number in range(1, 9):
        keeper.allow_host(f"h{number:04}")
    assert found(checks.check_tables()) == (Code.SUCCESS, "")
    code, details = found(checks.check_agents())
    assert code is Code.WARNING and "and 3 more" in details
    assert details.startswith("h0002 (0.0.1), h0003 (an early one)") and "h0001" not in details
    code, details = found(checks.check_enrolments())
    assert code is Code.WARNING and details.startswith("h0009: they have no certificate")


def test_command_exits_with_its_worst_result(tmp_path):
    def run(config):
        command = [sys.executable, "-m", "acstor_decision.cmd.status", "--config-file", config]
        return subprocess.run(
            [*command, "upgrade", "check", "--json"], capture_output=True, text=True
        )

    config = tmp_path / "decision.conf"
    assert run(config).returncode == 255
    config.write_text(
        f"[database]\nconnection = sqlite:///{tmp_path}/decision.sqlite\n"
        "[acstor_decision]\nremapp = true\n"
    )
    done = run(config)
    assert (done.returncode, done.stderr) == (2, "")
    results = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert {name: one["result"] for name, one in results.items()} == {
        "Options": 1,
        "Database": 2,
        "Message bus": 2,
        "Coordination": 0,
        "Tokens": 2,
        "Policy file format": 0,
        "Policy rules": 0,
        "Agents' versions": 1,
        "Hosts' certificates": 1,
    }
    assert "did you mean [acstor_decision] remap?" in results["Options"]["details"]
