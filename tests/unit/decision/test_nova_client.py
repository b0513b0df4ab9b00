# SPDX-License-Identifier: Apache-2.0
"""The Nova client over HTTP; a malformed response counts as unreachable."""

import json
import threading
from concurrent import futures

import pytest

from acstor_common.model import ids
from acstor_common.service import bounded_responses
from acstor_decision import nova_client
from tests.fakes import http_server

pytestmark = pytest.mark.allow_log("Nova does not answer: ")

SERVER = ids.parse_image_id("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
OTHER = ids.parse_image_id("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a13")
ON_H1 = "servers/detail?host=h1&all_tenants=1"


def server(server_id=SERVER, host="h1", **metadata):
    return {
        "id": server_id,
        "OS-EXT-SRV-ATTR:host": host,
        "tenant_id": "p",
        "metadata": metadata,
    }


@pytest.fixture
def web():
    with http_server.serve({}) as local:
        yield local


@pytest.fixture
def client(configure, web):
    conf = configure()
    for name, value in {"auth_type": "none", "endpoint_override": web.url}.items():
        conf.set_override(name, value, "nova")
    made = nova_client.NovaClient(conf)

    def set_response(path, answer):
        web.files[path] = json.dumps(answer).encode()

    made.set_response = set_response
    return made


def test_server_is_returned_with_its_current_host(client):
    for host in ("h1", "h2", None):
        client.set_response(f"servers/{SERVER}", {"server": server(host=host)})
        assert client.get_server(SERVER) == nova_client.Server(host or "", "p")
    assert client.get_server(OTHER) is None


def test_aggregates_are_listed_with_hosts_and_metadata(client):
    reported = {"hosts": ["h1", "h2"], "metadata": {"a": "b"}, "name": "fast"}
    client.set_response("os-aggregates", {"aggregates": [reported]})
    [found] = client.list_aggregates()
    assert (set(found.hosts), found.metadata) == ({"h1", "h2"}, {"a": "b"})


def test_metadata_of_a_hosts_servers_is_read_from_all_pages(client):
    more = {"servers_links": [{"rel": "next", "href": "anywhere"}]}
    client.set_response(ON_H1, {"servers": [server(a="1"), server(OTHER, "h2", a="2")], **more})
    third = ids.parse_image_id("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a14")
    client.set_response(f"{ON_H1}&marker={OTHER}", {"servers": [server(third, a="3")]})
    assert client.metadata_on("h1") == {SERVER: {"a": "1"}, third: {"a": "3"}}


def test_endless_response_is_not_read_to_the_end(client, web):
    client.set_response("os-aggregates", {})
    web.always = http_server.endless
    with pytest.raises(nova_client.NovaUnreachable, match="takes more than 16777216 bytes"):
        client.list_aggregates()
    assert web.body_bytes < 2 * bounded_responses.MAX_LIST_BYTES


def test_number_of_pages_is_limited(client, web):
    more = {"servers_links": [{"rel": "next", "href": "anywhere"}]}
    for path in (ON_H1, f"{ON_H1}&marker={SERVER}"):
        client.set_response(path, {"servers": [server()], **more})
    assert list(client.metadata_on("h1")) == [SERVER]
    assert len(web.asked) == nova_client.MAX_PAGES


@pytest.mark.parametrize(
    "answer", [[], {}, {"server": 1, "servers": 1, "aggregates": 1}, {"servers": [{}]}, None]
)
def test_malformed_response_is_an_error(client, answer):
    for path in (f"servers/{SERVER}", ON_H1, "os-aggregates"):
        client.set_response(path, answer)
    for ask in (
        lambda: client.get_server(SERVER),
        client.list_aggregates,
        lambda: client.metadata_on("h1"),
    ):
        with pytest.raises(nova_client.NovaUnreachable):
            ask()


def test_response_without_hosts_is_an_error(client, web):
    reported = server()
    del reported["OS-EXT-SRV-ATTR:host"]
    client.set_response(f"servers/{SERVER}", {"server": reported})
    client.set_response(ON_H1, {"servers": [reported]})
    for ask in (lambda: client.get_server(SERVER), lambda: client.metadata_on("h1")):
        with pytest.raises(nova_client.NovaUnreachable, match="does not show hosts"):
            ask()
    web.always = http_server.status(403)
    with pytest.raises(nova_client.NovaUnreachable, match="HTTP 403"):
        client.get_server(SERVER)


def test_few_callers_wait_while_nova_hangs(configure, web):
    conf = configure()
    for name, value in {"auth_type": "none", "endpoint_override": web.url}.items():
        conf.set_override(name, value, "nova")
    client, asked, answered = (
        nova_client.NovaClient(conf, callers=2, wait_s=1.0),
        threading.Semaphore(0),
        threading.Event(),
    )

    def late(handler, wanted):
        asked.release()
        answered.wait(30)
        http_server.fine(handler, wanted)

    web.files["os-aggregates"] = b'{"aggregates": []}'
    web.always = late
    with futures.ThreadPoolExecutor() as pool:
        waiting = [pool.submit(client.list_aggregates) for _ in range(2)]
        assert all(asked.acquire(timeout=30) for _ in waiting)
        try:
            third = pool.submit(client.list_aggregates)
            assert isinstance(third.exception(timeout=5), nova_client.NovaBusy)
        finally:
            answered.set()
        assert [one.result(30) for one in waiting] == [[], []]
    assert client.list_aggregates() == []


def test_missing_credentials_are_an_error(configure):
    with pytest.raises(nova_client.NovaUnreachable, match="auth_type is not set"):
        nova_client.NovaClient(configure()).list_aggregates()


IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
USERS = f"servers/detail?image={IMAGE}&all_tenants=1&limit={nova_client.PAGE}"


def user_of(image, host, task=None, server_id=SERVER):
    return {
        "id": server_id,
        "OS-EXT-SRV-ATTR:host": host,
        "OS-EXT-STS:task_state": task,
        "image": image,
    }


@pytest.mark.parametrize(
    ("image", "host", "task", "is_used"),
    [
        ({"id": IMAGE}, "h1", None, True),
        ({"id": IMAGE}, "h2", None, False),  # not a host of acstor
        ({"id": IMAGE}, None, None, False),  # shelved
        ({"id": IMAGE}, None, "spawning", True),
        ({"id": IMAGE}, "h2", "migrating", True),
        ({"id": OTHER}, "h1", None, False),  # the filter was ignored
        ("", "h1", None, False),  # it boots from a volume
    ],
)
def test_image_use_counts_servers_on_acstor_hosts_and_in_transition(
    client, image, host, task, is_used
):
    client.set_response(USERS, {"servers": [user_of(image, host, task)]})
    assert client.is_image_used(IMAGE, {"h1"}.__contains__, "h1") is is_used


def test_servers_of_an_image_are_searched_on_all_pages(client):
    more = {"servers_links": [{"rel": "next", "href": "anywhere"}]}
    client.set_response(USERS, {"servers": [user_of({"id": IMAGE}, "h2")], **more})
    third = user_of({"id": IMAGE}, "h1", server_id=OTHER)
    client.set_response(f"{USERS}&marker={SERVER}", {"servers": [third]})
    assert client.is_image_used(IMAGE, {"h1"}.__contains__)
    assert not client.is_image_used(IMAGE, {"h3"}.__contains__)


@pytest.mark.parametrize("answer", [[], {}, {"servers": 1}, {"servers": [{}]}, None])
def test_image_use_is_an_error_for_a_malformed_response(client, answer):
    client.set_response(USERS, answer)
    with pytest.raises(nova_client.NovaUnreachable):
        client.is_image_used(IMAGE, {"h1"}.__contains__)


def test_image_use_is_an_error_for_a_response_without_hosts(client):
    reported = user_of({"id": IMAGE}, "h1")
    del reported["OS-EXT-SRV-ATTR:host"]
    client.set_response(USERS, {"servers": [reported]})
    with pytest.raises(nova_client.NovaUnreachable, match="does not show hosts"):
        client.is_image_used(IMAGE, {"h1"}.__contains__)
