# SPDX-License-Identifier: Apache-2.0
"""The REST API under a real WSGI server, with tokens of a real Keystone."""

import json
import pathlib
import subprocess
import time
from collections.abc import Iterator

import pytest
import requests
from keystoneauth1 import adapter
from keystoneauth1 import exceptions

from acstor_common.service import console_script
from acstor_decision.db import database
from tests.fakes import decision_databases
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_decision
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.unit.decision.api import conftest as samples


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[database.Database]:
    with decision_databases.opened(f"sqlite:///{tmp_path}/decision.sqlite") as made:
        samples.note(made, *(samples.sample(n, sent_s=time.time()) for n in range(3)))
        samples.publish(made, 7, hosts=3)
        yield made


@pytest.fixture
def served(
    keystone_glance: cloud.Cloud, store: database.Database, tmp_path: pathlib.Path
) -> Iterator[acstor_decision.DecisionApi]:
    """Return the API, up and in the catalog."""
    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    made = acstor_decision.DecisionApi(keystone_glance, tmp_path / "api", connection)
    try:
        made.start()
        made.wait_ready()
        made.register()
        yield made
    finally:
        made.stop()


def client(lab: cloud.Cloud, user: str) -> adapter.Adapter:
    """Return what asks the API in a user's name; it finds it in the catalog."""
    session = accounts.session(lab.keystone.auth_url, user)
    return adapter.Adapter(session, service_type=acstor_decision.SERVICE_TYPE)


def test_only_admins_see_and_change_hosts(keystone_glance, served, store):
    admin = client(keystone_glance, "admin")
    assert [host["host"] for host in admin.get("/v1/hosts").json()["hosts"]] == [
        "h0000",
        "h0001",
        "h0002",
    ]
    assert admin.get("/v1/ring").json()["epoch"] == 7
    assert admin.post("/v1/hosts/h0001/drain").status_code == 202
    assert store.list_drained() == {"h0001"}
    tenant = client(keystone_glance, "tenant")
    for request in (tenant.get, tenant.post):
        with pytest.raises(exceptions.Forbidden):
            request("/v1/hosts/h0001/drain" if request == tenant.post else "/v1/hosts")
    assert store.list_drained() == {"h0001"}


@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": "forged"}, {"X-Roles": "admin"}])
def test_requests_without_a_valid_token_are_refused(headers, served, keystone_glance):
    session = accounts.session(keystone_glance.keystone.auth_url, "admin")
    with pytest.raises(exceptions.Unauthorized):
        session.get(f"{served.url}/v1/hosts", headers=headers, authenticated=False)
    assert session.get(f"{served.url}/healthz", authenticated=False).json() == {"status": "ok"}


def test_body_of_10_mib_is_refused_with_and_without_a_token(
    served: acstor_decision.DecisionApi, keystone_glance: cloud.Cloud, store: database.Database
) -> None:
    session = accounts.session(keystone_glance.keystone.auth_url, "admin")
    token = session.get_token()
    for headers, status in (({"X-Auth-Token": token}, 413), ({}, 401)):
        answer = requests.post(
            f"{served.url}/v1/hosts/h0001/drain", b"x" * (10 << 20), headers=headers, timeout=30
        )
        assert answer.status_code == answer.json()["error"]["code"] == status
    assert not store.list_drained()


def test_operators_use_the_openstack_command(keystone_glance, served, store):
    listed = acstor_decision.openstack(keystone_glance, "admin", "host", "list", "-f", "json")
    assert [row["Host"] for row in json.loads(listed.stdout)] == ["h0000", "h0001", "h0002"]
    drained = acstor_decision.openstack(
        keystone_glance, "admin", "host", "drain", "h0002", "-f", "value", "-c", "is_drained"
    )
    assert drained.stdout.strip() == "True"
    assert store.list_drained() == {"h0002"}
    refused = acstor_decision.openstack(keystone_glance, "tenant", "ring", "show")
    assert refused.returncode != 0
    assert "policy acstor:ring:get" in refused.stderr


def test_command_explains_an_unreachable_api(keystone_glance, served):
    served.stop()
    said = acstor_decision.openstack(keystone_glance, "admin", "ring", "list")
    assert said.returncode != 0
    assert "does not answer" in said.stderr
    assert "Traceback" not in said.stderr


def test_api_names_the_options_if_the_catalog_lacks_keystone(
    keystone_glance: cloud.Cloud, store: database.Database, tmp_path: pathlib.Path
) -> None:
    """As where the catalog has public URLs alone, and keystonemiddleware asks for internal ones."""

    class Elsewhere(acstor_decision.DecisionApi):
        def sections(self) -> ini.Sections:
            nowhere = {"keystone_authtoken": {"region_name": "nowhere"}}
            return ini.merged(super().sections(), nowhere)

    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    made = Elsewhere(keystone_glance, tmp_path / "elsewhere", connection)
    try:
        made.start()
        made.wait_ready()
        made.register()
        said = acstor_decision.openstack(keystone_glance, "admin", "ring", "list")
    finally:
        made.stop()
    assert said.returncode != 0
    assert "[keystone_authtoken] interface and region_name" in said.stderr
    assert "nowhere" in said.stderr


def test_api_without_configuration_exits_with_the_reason(
    keystone_glance: cloud.Cloud, tmp_path: pathlib.Path
) -> None:
    made = acstor_decision.DecisionApi(keystone_glance, tmp_path, "")
    done = subprocess.run(
        made.argv(),
        env={"ACSTOR_DECISION_CONF": "/none.conf", "PYTHONPATH": str(runs.CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == console_script.NO_APPLICATION
    assert "the REST API of acstor: Failed to find some config files: /none.conf\n" in done.stderr
    assert "Traceback" not in done.stderr
