# SPDX-License-Identifier: Apache-2.0
"""The files of etc/glance on a real Glance: roles, property protections, metadefs."""

import contextlib
import json
import pathlib
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Set
from typing import Any

import pytest
import requests
import trio
import yaml
from keystoneauth1 import session as keystone_session

from acstor_agent.sources import base
from acstor_agent.sources import glance as glance_source
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.model import ids
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import installed
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]
NAMESPACE = runs.CHECKOUT / "etc/glance/metadefs/acstor.json"
POLICY = runs.CHECKOUT / "etc/glance/policy.d/acstor.yaml"
PREPARE, READER = "acstor-prepare", "acstor-reader"
SMALLEST = {
    PREPARE: {"get_image", "get_images", "download_image", "modify_image"},
    READER: {"get_image", "get_images", "download_image", "download_from_store"},
}
DEFAULTS = """
import json
from glance import policies
print(json.dumps({rule.name: rule.check_str for rule in policies.list_rules()}))
"""


@contextlib.contextmanager
def user_with(lab: cloud.Cloud, project_name: str, *roles: str) -> Iterator[str]:
    """Create a user with the documented roles in a project, and yield its name."""
    identity = lab.connect("admin").identity
    name = f"acstor-{uuid.uuid4()}"
    project = identity.find_project(project_name)
    user = identity.create_user(name=name, password=api.PASSWORD, domain_id=accounts.DOMAIN)
    made = []
    for role in roles:
        known = identity.find_role(role)
        granted = known or identity.create_role(name=role)
        made += [] if known else [granted]
        identity.assign_project_role_to_user(project, user, granted)
    try:
        yield name
    finally:
        identity.delete_user(user)
        for role in made:
            identity.delete_role(role)


@pytest.fixture
def project(keystone_glance: cloud.Cloud) -> Iterator[str]:
    identity = keystone_glance.connect("admin").identity
    name = f"acstor-{uuid.uuid4()}"
    made = identity.create_project(name=name, domain_id=accounts.DOMAIN)
    yield name
    image_api = keystone_glance.connect("admin").image
    for hidden in (True, False):  # the secret of the scopes stays in a project
        for image in image_api.images(owner=made.id, is_hidden=hidden):
            image_api.delete_image(image.id)
    identity.delete_project(made)


@pytest.fixture
def preparing_user(keystone_glance: cloud.Cloud, project: str) -> Iterator[str]:
    with user_with(keystone_glance, project, PREPARE, "member", "service") as name:
        yield name


@pytest.fixture
def reading_user(keystone_glance: cloud.Cloud, project: str) -> Iterator[str]:
    with user_with(keystone_glance, project, READER) as name:
        yield name


@pytest.fixture
def as_documented(keystone_glance: cloud.Cloud, tmp_path: pathlib.Path) -> Iterator[None]:
    """Run Glance with the files of etc/glance."""
    folder = tmp_path / "policy.d"
    folder.mkdir()
    (folder / POLICY.name).write_bytes(POLICY.read_bytes())
    changes = {
        "oslo_policy": {"policy_dirs": folder},
        "DEFAULT": {
            "property_protection_file": uploads.PROTECTIONS,
            "property_protection_rule_format": "roles",
        },
    }
    with keystone_glance.glance.changed(changes):
        yield


def test_policies_are_the_defaults_of_glance_with_reduced_rights(
    keystone_glance: cloud.Cloud,
) -> None:
    """The file has only the rules that name context_is_admin, and they differ in nothing else."""
    python = installed.BIN / "python"
    defaults = json.loads(runs.tool([python, "-W", "ignore", "-c", DEFAULTS]))
    shipped = yaml.safe_load(POLICY.read_text())
    everything = shipped.pop("context_is_admin")
    assert everything == f"role:admin or role:{PREPARE} or role:{READER}"
    wanted = {}
    for name, rule in defaults.items():
        who = ["role:admin", *(f"role:{role}" for role in SMALLEST if name in SMALLEST[role])]
        if "rule:context_is_admin" in rule:
            wanted[name] = rule.replace("rule:context_is_admin", " or ".join(who))
    assert shipped == wanted


def listen_as(
    glance: uploads.Images, listen: Listen, user: str, project: str
) -> tuple[keystone_session.Session, acstor_glance.Listener]:
    """Start a listener with a user's roles; artefacts are expected in its project from now on."""
    session = accounts.session(glance.lab.keystone.auth_url, user, project)
    glance.project_id = session.get_project_id()
    return session, listen(username=user, project_name=project)


def test_documented_role_suffices_and_tenants_cannot_change_its_writes(
    glance: uploads.Images,
    as_documented: None,
    listen: Listen,
    preparing_user: str,
    project: str,
) -> None:
    data = uploads.some_bytes(seed=50)
    session, listener = listen_as(glance, listen, preparing_user, project)
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
    # "stores": the role service, which gives access to locations, may see them.
    assert_refused(session, image_id, but={"properties of it", "stores"})
    glance.delete(image_id)
    runs.wait_for(lambda: glance.artefacts() == [], 60.0, "the artefact's end", listener.log)
    listener.stop()


def test_artefacts_of_another_service_project_are_not_touched(
    glance: uploads.Images, as_documented: None, listen: Listen, preparing_user: str, project: str
) -> None:
    first = listen()
    image_id = glance.upload(uploads.some_bytes(seed=52))
    glance.wait_state(image_id)
    first.stop()
    own_id = glance.project_id
    _, second = listen_as(glance, listen, preparing_user, project)
    second.stop()
    uploads.manage(second, "reconcile")
    try:
        assert [record["acstor_image_id"] for record in glance.artefacts()] == [image_id]
    finally:
        glance.project_id = own_id  # the test deletes these artefacts, too


def test_agent_role_reads_all_images_and_changes_nothing(
    glance: uploads.Images, as_documented: None, listen: Listen, preparing_user: str,
    reading_user: str,
    project: str,
) -> None:  # fmt: skip
    data = uploads.some_bytes(seed=51)
    _, listener = listen_as(glance, listen, preparing_user, project)
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    listener.stop()
    session = accounts.session(glance.lab.keystone.auth_url, reading_user, project)
    found_map, read = trio.run(read_as_an_agent, session, image_id, len(data))
    assert read == data
    assert found_map.geometry.size_bytes == len(data)
    where = {"endpoint_filter": {"service_type": "image"}}
    preferred = session.get(f"/v2/images/{image_id}/file?prefer=fs", **where)
    assert preferred.content == data
    assert_refused(session, image_id)
    assert glance.tenant.get(f"/images/{image_id}/file").content == data


async def read_as_an_agent(
    session: keystone_session.Session, image_id: str, size_bytes: int
) -> tuple[chunk_map.ChunkMap, bytes]:
    """Read an image and its chunk map as an agent's source does."""
    source = glance_source.GlanceSource(session)
    try:
        blob = base.Blob(ids.parse_image_id(image_id), base.BlobKind.IMAGE)
        map_blob = base.Blob(ids.parse_image_id(image_id), base.BlobKind.CHUNK_MAP)
        read = await source.read(blob, 0, size_bytes)
        raw = await source.read(map_blob, 0, await source.size_bytes(map_blob))
    finally:
        await source.aclose()
    return chunk_map.ChunkMap.parse(raw, "the map"), read


def assert_refused(
    session: keystone_session.Session, image_id: str, but: Set[str] = frozenset()
) -> None:
    """Try to change a tenant's image, and Glance, with a role's token."""
    patch = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
    octets = {"Content-Type": "application/octet-stream"}
    own = session.get_project_id()

    def change(name: str, value: str) -> dict[str, Any]:
        return {"json": [{"op": "add", "path": f"/{name}", "value": value}], "headers": patch}

    tries: dict[str, tuple[str, str, dict[str, Any]]] = {
        "properties of it": ("PATCH", f"/images/{image_id}", change("acstor_state", "x")),
        "its visibility": ("PATCH", f"/images/{image_id}", change("visibility", "public")),
        "its bytes": ("PUT", f"/images/{image_id}/file", {"data": b"x", "headers": octets}),
        "its members": ("POST", f"/images/{image_id}/members", {"json": {"member": own}}),
        "its use": ("POST", f"/images/{image_id}/actions/deactivate", {}),
        "its life": ("DELETE", f"/images/{image_id}", {}),
        "images of others": ("POST", "/images", {"json": {"name": "x", "owner": "other"}}),
        "public images": ("POST", "/images", {"json": {"name": "x", "visibility": "public"}}),
        "the metadata schema": ("POST", "/metadefs/namespaces", {"json": {"namespace": "x"}}),
        "the cache": ("DELETE", "/cache", {}),
        "stores": ("GET", "/info/stores/detail", {}),
    }
    where = {"endpoint_filter": {"service_type": "image"}}
    answers = {}
    for name, (method, path, options) in tries.items():
        answer = session.request(f"/v2{path}", method, raise_exc=False, **where, **options)
        answers[name] = answer.status_code
    allowed = {name for name, status in answers.items() if status not in (403, 404, 409)}
    assert allowed == but, answers


def test_metadef_namespace_is_accepted_and_names_every_property(glance: uploads.Images) -> None:
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
