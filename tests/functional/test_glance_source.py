# SPDX-License-Identifier: Apache-2.0
"""The source glance against a real Glance and a real Keystone."""

import contextlib
import random
import uuid

import pytest
import trio

from acstor_agent.sources import base
from acstor_agent.sources import glance
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.fakes import hosts
from tests.fakes import one_host
from tests.fakes import reading_source
from tests.lab import agents
from tests.lab import local
from tests.lab.openstack import accounts
from tests.lab.openstack import api

DATA = random.Random(7).randbytes(3_000_001)


class Images:
    """Images of a tenant and artefacts of the service user in the real Glance."""

    def __init__(self, lab, stack):
        self._lab, self._stack = lab, stack

    def session(self, user):
        return self._lab.session(user)

    def put(self, user, data, **properties):
        """Upload an image, which the test deletes."""
        record = {
            "name": f"test-{uuid.uuid4()}",
            "disk_format": "raw",
            "container_format": "bare",
            "visibility": "private",
            **properties,
        }
        image_id = self.ask(user, "POST", "", json=record).json()["id"]
        self._stack.callback(self.delete, image_id)
        octets = {"Content-Type": "application/octet-stream"}
        self.ask(user, "PUT", f"/{image_id}/file", data=data, headers=octets)
        return ids.parse_image_id(image_id)

    def ask(self, user, method, path, **options):
        where = {"endpoint_filter": {"service_type": "image"}}
        session = accounts.kept_session(self._lab.keystone.auth_url, user)
        return session.request(f"/v2/images{path}", method, **where, **options)

    def record(self, image_id):
        return self.ask("acstor", "GET", f"/{image_id}").json()

    def point(self, user, image_id, kind, artefact_id):
        patch = [{"op": "add", "path": f"/{kind.pointer}", "value": artefact_id}]
        kind_of_patch = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
        self.ask(user, "PATCH", f"/{image_id}", json=patch, headers=kind_of_patch)

    def delete(self, image_id):
        self.ask("admin", "DELETE", f"/{image_id}", raise_exc=False)


@pytest.fixture
def images(keystone_glance):
    with contextlib.ExitStack() as stack:
        yield Images(keystone_glance, stack)


@pytest.fixture
async def source(keystone_glance):
    made = glance.GlanceSource(keystone_glance.session("acstor"))
    yield made
    await made.aclose()


def image(image_id):
    return base.Blob(image_id, base.BlobKind.IMAGE)


async def test_ranges_of_a_private_image_are_read_concurrently(images, source):
    blob = image(images.put("tenant", DATA))
    assert await source.size_bytes(blob) == len(DATA)
    read = await reading_source.read_side_by_side(source, blob, len(DATA), 200_000)
    assert read == DATA
    with pytest.raises(errors.ChunkMissing):
        await source.read(blob, len(DATA) - 1, 2)
    with pytest.raises(errors.ChunkMissing):
        await source.read(blob, len(DATA), 1)


async def test_revoked_token_is_replaced(keystone_glance, images):
    session = keystone_glance.session("acstor")
    source = glance.GlanceSource(session)
    blob = image(images.put("tenant", DATA))
    assert await source.read(blob, 0, 10) == DATA[:10]
    revoked = session.get_token()
    headers = {"X-Subject-Token": revoked}
    keystone_glance.session("admin").delete(
        f"{keystone_glance.keystone.auth_url}/auth/tokens", headers=headers
    )
    keystone_glance.glance.restart()  # it caches validated tokens for five minutes
    assert await source.read(blob, 10, 10) == DATA[10:20]
    assert session.get_token() != revoked
    await source.aclose()


async def test_killed_glance_is_unreachable_until_it_restarts(keystone_glance, images, source):
    blob = image(images.put("tenant", DATA))
    assert await source.read(blob, 0, 10) == DATA[:10]
    keystone_glance.glance.kill()
    with pytest.raises(errors.SourceUnreachable):
        await source.read(blob, 10, 10)
    keystone_glance.glance.start()
    await trio.to_thread.run_sync(keystone_glance.glance.wait_ready)
    assert await source.read(blob, 10, 10) == DATA[10:20]


async def test_killed_keystone_delays_only_clients_without_a_token(keystone_glance, images, source):
    blob = image(images.put("tenant", DATA))
    assert await source.read(blob, 0, 10) == DATA[:10]
    late = glance.GlanceSource(keystone_glance.session("acstor"))
    keystone_glance.keystone.kill()
    try:
        assert await source.read(blob, 10, 10) == DATA[10:20]
        with pytest.raises(errors.SourceUnreachable, match="Keystone is unreachable"):
            await late.read(blob, 0, 10)
    finally:
        keystone_glance.keystone.start()
        await trio.to_thread.run_sync(keystone_glance.keystone.wait_ready)
    assert await late.read(blob, 0, 10) == DATA[:10]
    await late.aclose()


async def test_deactivated_or_deleted_image_is_refused(images, source):
    image_id = images.put("tenant", DATA)
    assert await source.size_bytes(image(image_id)) == len(DATA)
    images.ask("admin", "POST", f"/{image_id}/actions/deactivate")
    assert await source.read(image(image_id), 0, 10) == DATA[:10]
    with pytest.raises(errors.ChunkMissing, match="deactivated, not active"):
        await source.size_bytes(image(image_id))
    images.delete(image_id)
    with pytest.raises(errors.ChunkMissing, match="Glance has no such image"):
        await source.size_bytes(image(image_id))


async def test_error_for_a_user_without_the_role_names_the_role(keystone_glance, images):
    image_id = images.put("tenant", DATA)
    source = glance.GlanceSource(keystone_glance.session("stranger"))
    with pytest.raises(errors.ChunkMissing, match="need the role acstor-reader"):
        await source.size_bytes(image(image_id))
    await source.aclose()


@pytest.mark.expect_log("chunk_map .* is ignored")
async def test_chunk_map_of_a_tenant_is_ignored(images, source):
    kind = artefacts.Kind.CHUNK_MAP
    image_id = images.put("tenant", DATA)
    uploaded = image_record.Image.from_record(images.record(image_id))
    assert uploaded.os_hash.algo
    project_id = images.session("acstor").get_project_id()
    properties = artefacts.new_artefact(uploaded, kind, project_id, chunk_map.VERSION)
    artefact_id = images.put("acstor", b"the map", **properties)
    images.point("acstor", image_id, kind, artefact_id)
    blob = base.Blob(image_id, base.BlobKind.CHUNK_MAP)
    assert await source.size_bytes(blob) == len(b"the map")
    assert await source.read(blob, 4, 3) == b"map"

    forged = {**properties, "owner": images.session("tenant").get_project_id()}
    images.point("tenant", image_id, kind, images.put("tenant", b"a forgery", **forged))
    with pytest.raises(errors.ChunkMissing, match="it does not belong to acstor's service project"):
        await source.size_bytes(blob)


def published(images, folder):
    """Upload an image and its chunk map, and return the ids of both."""
    kind = artefacts.Kind.CHUNK_MAP
    image_id = images.put("tenant", DATA)
    uploaded = image_record.Image.from_record(images.record(image_id))
    (folder / "bytes").write_bytes(DATA)
    os_hash = uploaded.os_hash
    prehash.prehash(folder / "bytes", folder / "map", image_id, os_hash=os_hash)
    project_id = images.session("acstor").get_project_id()
    properties = artefacts.new_artefact(uploaded, kind, project_id, chunk_map.VERSION)
    artefact_id = images.put("acstor", (folder / "map").read_bytes(), **properties)
    images.point("acstor", image_id, kind, artefact_id)
    return image_id, artefact_id


def agent_of_glance(lab, folder):
    """Return an agent whose only source is Glance."""
    sections = {"source_glance": api.credentials(lab.keystone.auth_url, "acstor")}
    nothing = local.ImageFolder(folder / "images")
    return local.agent(folder / "host", nothing, sources="glance", sections=sections)


@hosts.needs_fuse
async def test_agent_mirrors_an_image_that_only_glance_has(keystone_glance, images, tmp_path):
    image_id, _artefact_id = published(images, tmp_path)
    with agent_of_glance(keystone_glance, tmp_path) as agent:
        await trio.to_thread.run_sync(agent.wait_ready)
        read = await trio.to_thread.run_sync(agent.image_path(image_id).read_bytes)
    assert read == DATA


@hosts.needs_fuse
def test_image_and_map_both_replaced_in_the_store_are_refused(keystone_glance, images, tmp_path):
    image_id, artefact_id = published(images, tmp_path)
    uploaded, forged = image_record.Image.from_record(images.record(image_id)), DATA[::-1]
    forged_map = one_host.map_of(forged, image_id, geometry.DEFAULT_CHUNK_BYTES, uploaded.os_hash)
    for name, data in ((image_id, forged), (artefact_id, forged_map)):
        stored = keystone_glance.glance.images / name
        assert stored.stat().st_size == len(data)
        stored.write_bytes(data)
    with agent_of_glance(keystone_glance, tmp_path) as agent:
        agent.wait_ready()
        with pytest.raises(errors.Unusable, match="it was changed in the store"):
            agents.request(agent.control_socket, "attach-image", image_id=image_id)
        with pytest.raises(OSError):
            agent.image_path(image_id).read_bytes()
