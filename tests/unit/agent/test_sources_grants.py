# SPDX-License-Identifier: Apache-2.0
"""The source gateway of a user with the role ``acstor-host``: each request has a grant."""

import pathlib
import time

import pytest
from keystoneauth1 import access
from keystoneauth1 import session as keystone_session
from keystoneauth1.identity import v3

from acstor_agent.sources import base
from acstor_agent.sources import gateway
from acstor_agent.sources import host_grants
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import image_grants
from tests.fakes import cloud_keys
from tests.fakes import fake_glance
from tests.fakes import glance_records
from tests.fakes import http_server

IMAGE, MAP = fake_glance.IMAGE, fake_glance.CHUNK_MAP
DATA, MAPPED = glance_records.BYTES, b"the chunk map"
KEYS = cloud_keys.CloudKeys()
SIGNERS = signing.read_public_keys(KEYS.signers)


class User(v3.Password):
    """A user with roles, who needs no Keystone."""

    def __init__(self, url: str, *roles: str) -> None:
        super().__init__(auth_url=url, password="p")
        self._url = url
        self._body = {
            "token": {
                "roles": [{"id": role, "name": role} for role in roles],
                "project": {"id": glance_records.SERVICE_PROJECT, "name": "p"},
                "expires_at": "2100-01-01T00:00:00Z",
                "methods": ["password"],
            }
        }

    def get_auth_ref(self, session, **_options):
        return access.AccessInfoV3(self._body, auth_token="token")

    def get_endpoint(self, session, **_options):
        return self._url


class Gateway:
    """Serves blobs to whoever has a grant for their image."""

    def __init__(self, server: http_server.LocalServer) -> None:
        self.server, self.granted, self.refuses = server, [], 0
        server.always = self.behave
        for path in list(server.files):
            server.files[path.replace("v2/", "v1/")] = server.files.pop(path)

    def behave(self, handler, asked):
        names = (image_grants.GRANT_HEADER, image_grants.PROOF_HEADER)
        headers = {name: asked.headers.get(name.lower(), "") for name in names}
        target = image_grants.target_of(handler.path, asked.headers.get("range", ""))
        try:
            used = image_grants.verify_use(headers, target, SIGNERS, {}, time.time())
        except (errors.NotAuthenticated, errors.RemoteProtocolError):
            http_server.status(403)(handler, asked)
            return
        self.granted.append(used.image_id)
        if self.refuses:
            self.refuses -= 1
            http_server.status(403)(handler, asked)
        elif "range" in asked.headers:
            http_server.fine(handler, asked)
        else:
            http_server.whole_file(handler, asked)


@pytest.fixture
def served():
    with fake_glance.serving({IMAGE.file_name: DATA, MAP.file_name: MAPPED}) as server:
        yield Gateway(server)


class Service:
    """Gives grants, or refuses."""

    def __init__(self, folder: pathlib.Path) -> None:
        KEYS.give(folder, "h1")
        files = identity_files.files_in(folder / "identity")
        self.files = identity_files.IdentityFiles(ids.HostId("h1"), files)
        self.requested: list[str] = []
        self.fault: Exception | None = None

    def request(self, image_id):
        self.requested.append(image_id)
        if self.fault:
            raise self.fault
        certificate = self.files.current_credentials().certificate
        assert isinstance(certificate, certificates.HostCertificate)
        now_s = time.time()
        asked = image_grants.GrantRequest("h1", image_id, now_s)
        return image_grants.new_grant(asked, certificate, KEYS.signing_key, now_s)


@pytest.fixture
def service(tmp_path):
    return Service(tmp_path)


def source_of(served, *roles):
    user = User(served.server.url, *roles)
    return gateway.GatewaySource(keystone_session.Session(auth=user))


@pytest.fixture
async def source(served, service):
    made = source_of(served, image_grants.HOST_ROLE)
    made.use_grants(host_grants.HostGrants(service.request, service.files))
    yield made
    await made.aclose()


async def test_one_grant_covers_record_image_and_artefact(served, service, source):
    assert await source.size_bytes(IMAGE) == len(DATA)
    assert await source.read(IMAGE, 5, 10) == DATA[5:15]
    assert await source.read(MAP, 0, len(MAPPED)) == MAPPED
    assert set(served.granted) == {IMAGE.image_id}
    assert service.requested == [IMAGE.image_id]


async def test_image_without_a_grant_is_not_requested(served, service, source):
    service.fault = errors.ChunkRefused("a grant", "the decision service", "no server uses it")
    with pytest.raises(errors.ChunkRefused, match="no server uses it"):
        await source.size_bytes(IMAGE)
    assert served.server.asked == []


async def test_refused_grant_is_replaced(served, service, source, monkeypatch):
    monkeypatch.setattr(host_grants, "LEAST_AGE_S", 0.0)
    served.refuses = 1
    with pytest.raises(errors.ChunkUnavailable, match="403"):
        await source.size_bytes(IMAGE)
    assert await source.size_bytes(IMAGE) == len(DATA)
    assert service.requested == [IMAGE.image_id] * 2


async def test_user_without_the_host_role_requests_no_grant(served, service):
    source = source_of(served, "acstor-reader")
    source.use_grants(host_grants.HostGrants(service.request, service.files))
    with pytest.raises(errors.ChunkUnavailable):
        await source.size_bytes(IMAGE)  # it asks Glance for the record, of which there is none
    assert (service.requested, served.granted) == ([], [])
    await source.aclose()


async def test_error_for_the_host_role_without_a_bus_names_the_option(served):
    source = source_of(served, image_grants.HOST_ROLE)
    with pytest.raises(errors.SourceRefused, match="transport_url"):
        await source.read(base.Blob(IMAGE.image_id, base.BlobKind.IMAGE), 0, 4)
    await source.aclose()
