# SPDX-License-Identifier: Apache-2.0
"""Whoever reaches the gateway's port: strangers, tenants, and those who have lost a right.

A real gateway under uWSGI beside a real Keystone and Glance.  What it hands out must be what Glance
would give to this token now, and what a crowd sends must not keep it from others.
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
    """Return a private image of the tenant's, whose right to it is remembered."""
    made = place.upload("s3")
    assert place.read(made, user="tenant").content == DATA[:100]
    return made


def ask(place, image_id, **headers):
    url = f"{place.gateway.url}/v1/images/{image_id}/file"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.get(url, headers={"Range": "bytes=0-99", **named}, timeout=30)


# Whose right counts


def test_remembered_answer_to_one_is_none_to_another(place, image_id):
    for _ in range(3):
        said(place.read(image_id, user="stranger"), 404)
        assert place.read(image_id, user="tenant").status_code == 206


def test_token_in_another_header_is_none(place, image_id):
    """keystonemiddleware takes it from there; all who send it so would be one and the same."""
    for user in ("tenant", "stranger", "tenant"):
        assert ask(place, image_id, X_Storage_Token=place.token(user)).status_code == 401


def test_service_token_beside_ones_own_gives_no_right(place, image_id):
    """Neither that of who sends it nor the gateway's own, whatever a policy grants to services."""
    own, service = place.token("stranger"), place.token("nova")
    said(ask(place, image_id, X_Auth_Token=own, X_Service_Token=service), 404)


def test_policy_for_services_is_none_for_who_asks_the_gateway(place, image_id, tmp_path):
    policy = tmp_path / "policy.json"
    rule = '{"download_image": "service_roles:service or role:admin"}'
    policy.write_text(rule)
    changes = {"oslo_policy": {"policy_file": policy}}
    with place.lab.glance.changed(ini.merged(place.stores(), changes)):
        place.gateway.restart()  # nothing is remembered
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
def test_forged_headers_are_nobody(place, image_id, forged):
    assert ask(place, image_id, **forged).status_code == 401


def test_two_tokens_in_one_request_are_none(place, image_id):
    head = (
        f"GET /v1/images/{image_id}/file HTTP/1.1\r\nHost: x\r\nRange: bytes=0-99\r\n"
        f"X-Auth-Token: {place.token('stranger')}\r\nX-Auth-Token: {place.token('tenant')}\r\n\r\n"
    )
    answer = exchange(place.gateway.port, head.encode())
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404")), answer[:200]


def exchange(port, request):
    """Send bytes, and return all that comes until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        link.sendall(request)
        parts = []
        with contextlib.suppress(ConnectionError):
            while part := link.recv(65_536):
                parts.append(part)
    return b"".join(parts)


class Keyless(acstor_gateway.Gateway):
    """A gateway that lets requests with bad tokens come further, as some operators' files say."""

    def sections(self) -> ini.Sections:
        own = {"keystone_authtoken": {"delay_auth_decision": True}}
        return ini.merged(super().sections(), own)


def test_bad_token_gets_nothing_where_its_check_is_left_to_the_application(
    place, image_id, tmp_path
):
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


# What is asked


def test_second_request_in_the_first_is_not_answered(place, image_id):
    """Of one that a proxy took for a part of the first, the answer would go to somebody else."""
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
def test_huge_head_is_refused_and_costs_nothing(place, image_id, count_bytes):
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
def test_odd_paths_give_no_bytes(place, image_id, path):
    target = path.format(id=image_id)
    for token in ("", f"X-Auth-Token: {place.token('stranger')}\r\n"):
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n{token}\r\n"
        answer = exchange(place.gateway.port, head.encode())
        assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 404", b"HTTP/1.1 400")), answer
        assert DATA[:10] not in answer


# Places that tenants name


def test_web_server_of_a_tenant_leads_to_no_other_one(place):
    with http_server.serve({"image": DATA}) as web, http_server.serve({"image": DATA}) as inside:
        image_id = place.on_the_web(web)
        assert place.read(image_id).content == DATA[:100]
        web.always = http_server.status(302, {"Location": f"{inside.url}image"})
        words = said(place.read(image_id), 409)
        assert (
            words == "store web: the web server sends to another one, of which Glance was not told"
        )
        assert urllib.parse.urlsplit(inside.url).netloc not in words
        assert inside.connections == 0


# Crowds


@contextlib.contextmanager
def links(port, request, receive_bytes=None):
    """Let a crowd connect, send the same, and then nothing more."""
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
    """Return the port of what stands in front of the gateway, as the guide says."""
    if nginx.PROGRAM is None:
        pytest.skip("needs Debian's package nginx-light")
    port = local.unused_port()
    http = (
        f"access_log off; server {{ listen 127.0.0.1:{port};\n"
        f"location / {{ proxy_pass {place.gateway.url}; }} }}"
    )
    with nginx.Nginx(tmp_path, http, port):
        yield port


def test_slow_clients_hold_up_nobody_behind_what_takes_in_requests_and_answers(
    place, front, image_id
):
    token = place.token("tenant")
    whole = (
        f"GET /v1/images/{image_id}/file HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {token}\r\n"
        f"Range: bytes=0-{len(DATA) - 1}\r\n\r\n"
    ).encode()
    # Each that reaches the gateway holds one of its 8 threads for 4 s, so CROWD of them for 50 s.
    url = f"http://127.0.0.1:{front}/v1/images/{image_id}/file"
    headers = {"X-Auth-Token": token, "Range": "bytes=0-99"}

    def is_read():
        return requests.get(url, headers=headers, timeout=30).content == DATA[:100]

    for request, receive_bytes in ((whole[:-3], None), (whole, 4096)):
        with links(front, request, receive_bytes):
            runs.wait_for(is_read, 20, "an answer", place.gateway.log)


# What is remembered; the last ones of the module, for which Glance remembers no tokens


class Forgetful(acstor_gateway.Gateway):
    """A gateway that remembers nothing of what Glance and Keystone said."""

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


def test_revoked_token_reads_nothing_more(place, forgetful):
    image_id = place.upload("s3")
    token = place.token("tenant")
    assert place.read(image_id, token=token, at=forgetful).status_code == 206
    own = {"X-Auth-Token": token, "X-Subject-Token": token}
    where = f"{place.lab.keystone.auth_url}/auth/tokens"
    requests.delete(where, headers=own, timeout=30).raise_for_status()
    time.sleep(1.1)  # Keystone's times of revocation are whole seconds
    assert place.read(image_id, token=token, at=forgetful).status_code == 401


def test_who_is_no_member_any_more_reads_on_no_longer_than_is_said(place, forgetful):
    """At once where nothing is remembered; else for auth_cache_s."""
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
