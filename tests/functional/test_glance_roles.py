# SPDX-License-Identifier: Apache-2.0
"""What stands under etc/glance, tried on a real Glance: role, property protections, metadefs."""

import json
import pathlib
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import pytest
import requests

from acstor_common import artefacts
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]
NAMESPACE = runs.CHECKOUT / "etc/glance/metadefs/acstor.json"
ROLE = "acstor-prepare"


@pytest.fixture
def preparing_user(keystone_glance: cloud.Cloud) -> Iterator[str]:
    """Make the user of the documentation, in a project of its own; its name and the project's."""
    identity = keystone_glance.connect("admin").identity
    name = f"acstor-{uuid.uuid4()}"
    project = identity.create_project(name=name, domain_id=accounts.DOMAIN)
    user = identity.create_user(name=name, password=api.PASSWORD, domain_id=accounts.DOMAIN)
    role = identity.create_role(name=ROLE)
    for granted in (role, identity.find_role("member"), identity.find_role("service")):
        identity.assign_project_role_to_user(project, user, granted)
    try:
        yield name
    finally:
        identity.delete_user(user)
        identity.delete_project(project)
        identity.delete_role(role)


def test_documented_role_is_enough_and_tenants_cannot_touch_what_it_writes(
    glance: uploads.Images, listen: Listen, preparing_user: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "policy.yaml").write_text(f'"context_is_admin": "role:admin or role:{ROLE}"\n')
    (tmp_path / "policy.yaml").chmod(0o644)
    changes = {
        "oslo_policy": {"policy_file": tmp_path / "policy.yaml"},
        "DEFAULT": {
            "property_protection_file": uploads.PROTECTIONS,
            "property_protection_rule_format": "roles",
        },
    }
    session = accounts.session(glance.lab.keystone.auth_url, preparing_user, preparing_user)
    glance.project_id = session.get_project_id()
    data = uploads.some_bytes(seed=50)
    with glance.lab.glance.changed(changes):
        listen(username=preparing_user, project_name=preparing_user)
        image_id = glance.upload(data)
        glance.wait_state(image_id)
        artefact = glance.check_chunk_map(image_id, data)
        assert artefact["owner"] == glance.project_id

        seen = glance.tenant.get(f"/images/{image_id}").json()
        assert [name for name in seen if name.startswith(artefacts.PREFIX)] == []
        forged = str(uuid.uuid4())
        with pytest.raises(requests.HTTPError, match="403"):
            glance.patch(image_id, "tenant", acstor_chunk_map=forged)
        answer = glance.tenant.post(
            "/images", json={"name": "forged", "acstor_chunk_map": forged, "acstor_kind": "x"}
        )
        assert answer.status_code == 403
        glance.check_chunk_map(image_id, data)
        glance.delete(image_id)
        runs.wait_for(
            lambda: glance.artefacts() == [], 60.0, "the artefact's end", glance.glance_log
        )


def test_metadef_namespace_is_taken_and_names_every_property(glance: uploads.Images) -> None:
    namespace = json.loads(NAMESPACE.read_text())
    assert set(namespace["properties"]) == set(artefacts.IMAGE_PROPERTIES)
    assert namespace["properties"][artefacts.STATE]["enum"] == [*artefacts.State]
    path = f"/metadefs/namespaces/{namespace['namespace']}"
    made = glance.admin.post("/metadefs/namespaces", json=namespace)
    try:
        assert made.status_code == 201, made.text
        seen = glance.tenant.get(path)
        assert seen.json()["properties"].keys() == namespace["properties"].keys()
        assert glance.tenant.delete(path).status_code in (403, 404)
    finally:
        glance.admin.put(path, json={"namespace": namespace["namespace"], "protected": False})
        assert glance.admin.delete(path).status_code == 204
