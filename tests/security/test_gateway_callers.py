# SPDX-License-Identifier: Apache-2.0
"""Callers of the gateway's port: strangers, tenants, and users who lost a permission.

A real gateway under uWSGI beside a real Keystone and Glance.  It must serve only data that Glance
would give to this token now, and a crowd of clients must not block others.

"""

import contextlib
import pathlib
import socket
import time
import urllib.parse

import pytest
import requests

from tests.fakes import http_server
from tests.lab import local
from tests.lab import nginx
from tests.lab import runs
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import cloud
from tests.lab.openstack import image_stores
from tests.lab.openstack import ini

DATA = image_stores.DATA
said = image_stores.said
CROWD = 100


@pytest.fixture
def image_id(place):
    """Return a private image of the tenant, whose authorization is cached."""
    made = place.upload("s3")
    assert place.read(made, user="tenant").content == DATA[:100]
    return made


def ask(place, image_id, **headers):
    url = f"{place.gateway.url}/v1/images/{image_id}/file"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(url, headers={"Range": "bytes=0-99", **named}, timeout=30)


# Authorization


def test_cached_authorization_of_one_user_does_not_apply_to_another(place, image_id):
    for _ in range(3):
        said(place.read(image_id, user="stranger"), 404)
        assert place.read(image_id, user="tenant").status_code == 206


def test_token_in_another_header_is_ignored(place, image_id):
    """keystonemiddleware accepts it there; all users of that header would count as one."""
    for user in ("tenant", "stranger", "tenant"):
        assert ask(place, image_id, X_Storage_Token=place.token(user)).status_code == 401


def test_service_token_grants_no_additional_access(place, image_id):
    """Neither the sender's service token nor the gateway's, whatever policies grant to services."""
    own, service = place.token("stranger"), place.token("nova")
    said(ask(place, image_id, X_Auth_Token=own, X_Service_Token=service), 404)


def test_policy_for_services_does_not_apply_to_clients_of_the_gateway(place, image_id, tmp_path):
    policy = tmp_path / "policy.json"
    rule = '{"download_image": "service_roles:service or role:admin"}'
    policy.write_text(rule)
    changes = {"oslo_policy": {"policy_file": policy}}
    with place.lab.glance.changed(ini.merged(place.stores(), changes)):
        place.gateway.restart()  # the cache is empty
        place.gateway.wait_ready()
        said(place.read(image_id, user="tenant"), 403)
        assert place.read(image_id, user="acstor").status_code == 206


@pytest.mark.parametrize(
    "forged",
    [
        {"X_Identity_Status": "Confirmed", "X_Roles": "admin", "X_Project_Id": "x"},
        {"X_Auth_Token": "forged", "X_Identity_Status": "Confirmed"},
        {"X_Auth_Token": "forged, forged"},
        {"X_Auth_Token": "\xe9\xff"},
        {"X_Auth_Token": "x" * 8000},
        {"X_Service_Token": "forged"},
    ],
    ids=lambda headers: " ".join(headers),
)
def test_forged_identity_headers_are_refused(place, image_id, forged):
    assert ask(place, image_id, **forged).status_code == 401


def test_request_with_two_tokens_is_refused(place, image_id):
    head = (
        f"GET /v1/images/{image_id}/file HTTP/1.1\r\nHost: x\r\nRange: bytes=0-99\r\n"
        f"X-Auth-Token: {place.token('stranger')}\r\nX-Auth-Token: {place.token('tenant')}\r\n\r\n"
    )
    answer = exchange(place.gateway.port, head.encode())
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404")), answer[:200]


def exchange(port, request):
    """Send bytes, and return all bytes until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        link.sendall(request)
        parts = []
        with contextlib.suppress(ConnectionError):
            while part := link.recv(65_536):
                parts.append(part)
    return b"".join(parts)


class Keyless(acstor_gateway.Gateway):
    """A gateway with delayed authorization, as in some operators' files."""

    def sections(self) -> ini.Sections:
        own = {"keystone_authtoken": {"delay_auth_decision": True}}
        return ini.merged(super().sections(), own)


def test_bad_token_is_refused_with_delayed_authorization(place, image_id, tmp_path):
    lenient = Keyless(place.lab, tmp_path)
    lenient.start()
    try:
        lenient.wait_ready()
        assert place.read(image_id, user="tenant", at=lenient).status_code == 206
        for token in ("forged", "x"):
            said(place.read(image_id, token=token, at=lenient), 401)
        url = f"{lenient.url}/v1/images/{image_id}/file"
        assert requests.get(url, headers={"Range": "bytes=0-9"}, timeout=30).status_code == 401
    finally:
        lenient.stop()


# Requests


def test_smuggled_request_is_not_answered(place, image_id):
    """If a proxy took it as a part of the first, another client would get its response."""
    token = place.token("tenant")
    one = (
        f"GET /v1/images/{image_id}/file HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {token}\r\n"
        "Range: bytes=0-9\r\n"
    )
    inner = f"{one}\r\n"
    for first in (
        inner,
        f"{one}Content-Length: {len(inner)}\r\n\r\n",
        f"{one}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"{one}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        f"{one}Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n",
    ):
        answer = exchange(place.gateway.port, (first + inner).encode())
        assert answer.count(b"HTTP/1.1 ") <= 1, answer


@pytest.mark.parametrize("count_bytes", [20_000, 1 << 20, 8 << 20])
def test_huge_head_is_refused(place, image_id, count_bytes):
    line = f"GET /v1/images/{image_id}/file HTTP/1.1"
    head = f"{line}\r\nHost: x\r\nX-Filler: {'x' * count_bytes}\r\n\r\n"
    with contextlib.suppress(ConnectionError):
        answer = exchange(place.gateway.port, head.encode())
        assert not answer.startswith(b"HTTP/1.1 2")
    assert place.read(image_id).status_code == 206


@pytest.mark.parametrize(
    "path",
    [
        "//v1/images/{id}/file",
        "/v1/images/{id}%2f..%2f{id}/file",
        "/v1/images/..%2f..%2fhealthz/file",
        "/v1/images/{id}/file/",
        "/healthz/../v1/images/{id}/file",
        "/healthz/",
        "/v1/images/{id};/file",
    ],
)
def test_malformed_paths_return_no_data(place, image_id, path):
    target = path.format(id=image_id)
    for token in ("", f"X-Auth-Token: {place.token('stranger')}\r\n"):
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n{token}\r\n"
        answer = exchange(place.gateway.port, head.encode())
        assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404", b"HTTP/1.1 400")), answer
        assert DATA[:10] not in answer


# Locations set by tenants


def test_redirect_of_a_tenant_web_server_is_not_followed(place):
    with http_server.serve({"image": DATA}) as web, http_server.serve({"image": DATA}) as inside:
        image_id = place.on_the_web(web)
        assert place.read(image_id).content == DATA[:100]
        web.always = http_server.status(302, {"Location": f"{inside.url}image"})
        words = said(place.read(image_id), 409)
        assert (
            words == "store web: the web server redirects to another one, "
            "which is not in Glance's location"
        )
        assert urllib.parse.urlsplit(inside.url).netloc not in words
        assert inside.connections == 0


# Crowds


@contextlib.contextmanager
def links(port, request, receive_bytes=None):
    """Let a crowd of clients connect, send the same, and then stay silent."""
    with contextlib.ExitStack() as stack:
        for _ in range(CROWD):
            link = stack.enter_context(socket.socket())
            if receive_bytes is not None:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            link.connect(("127.0.0.1", port))
            link.sendall(request)
        yield


@pytest.fixture
def front(place, tmp_path):
    """Return the port of the proxy in front of the gateway, set up by the guide."""
    if nginx.PROGRAM is None:
        pytest.skip("needs Debian's package nginx-light")
    port = local.unused_port()
    http = (
        f"access_log off; server {{ listen 127.0.0.1:{port};\n"
        f"location / {{ proxy_pass {place.gateway.url}; }} }}"
    )
    with nginx.Nginx(tmp_path, http, port):
        yield port


def test_slow_clients_behind_a_buffering_proxy_delay_no_other_client(place, front, image_id):
    token = place.token("tenant")
    whole = (
        f"GET /v1/images/{image_id}/file HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {token}\r\n"
        f"Range: bytes=0-{len(DATA) - 1}\r\n\r\n"
    ).encode()
    # Each client that reaches the gateway holds one of 8 threads for 4 s: CROWD of them for 50 s.
    url = f"http://127.0.0.1:{front}/v1/images/{image_id}/file"
    headers = {"X-Auth-Token": token, "Range": "bytes=0-99"}

    def is_read():
        return requests.get(url, headers=headers, timeout=30).content == DATA[:100]

    for request, receive_bytes in ((whole[:-3], None), (whole, 4096)):
        with links(front, request, receive_bytes):
            runs.wait_for(is_read, 20, "an answer", place.gateway.log)


# Caches; the last tests of the module, with a Glance that caches no tokens


class Forgetful(acstor_gateway.Gateway):
    """A gateway that caches no responses of Glance and Keystone."""

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path) -> None:
        super().__init__(lab, folder, auth_cache_s=0)

    def sections(self) -> ini.Sections:
        return ini.merged(super().sections(), {"keystone_authtoken": {"token_cache_time": -1}})


@pytest.fixture(scope="module")
def forgetful(all_stores, tmp_path_factory):
    all_stores.start()
    changes = {"keystone_authtoken": {"token_cache_time": -1}}
    with all_stores.lab.glance.changed(ini.merged(all_stores.stores(), changes)):
        made = Forgetful(all_stores.lab, tmp_path_factory.mktemp("forgetful"))
        made.start()
        try:
            made.wait_ready()
            yield made
        finally:
            made.stop()


def test_revoked_token_is_refused(place, forgetful):
    image_id = place.upload("s3")
    token = place.token("tenant")
    assert place.read(image_id, token=token, at=forgetful).status_code == 206
    own = {"X-Auth-Token": token, "X-Subject-Token": token}
    where = f"{place.lab.keystone.auth_url}/auth/tokens"
    requests.delete(where, headers=own, timeout=30).raise_for_status()
    time.sleep(1.1)  # Keystone's revocation times are whole seconds
    assert place.read(image_id, token=token, at=forgetful).status_code == 401


def test_removed_member_loses_access_within_auth_cache_s(place, forgetful):
    """At once without a cache; else after auth_cache_s."""
    image_id = place.upload("s3", visibility="shared")
    member = place.lab.session("stranger").get_project_id()
    path = f"/v2/images/{image_id}/members"
    place.ask("tenant", "POST", path, json={"member": member}).raise_for_status()
    token = place.token("stranger")
    for at in (forgetful, place.gateway):
        assert place.read(image_id, token=token, at=at).status_code == 206
    began_s = time.monotonic()
    place.ask("tenant", "DELETE", f"{path}/{member}").raise_for_status()
    said(place.read(image_id, token=token, at=forgetful), 404)
    runs.wait_for(
        lambda: place.read(image_id, token=token).status_code == 404,
        image_stores.REMEMBER_S + 15,
        "the end of what is remembered",
        place.gateway.log,
    )
    assert time.monotonic() - began_s < image_stores.REMEMBER_S + 15
