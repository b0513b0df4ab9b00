# SPDX-License-Identifier: Apache-2.0
"""The source gateway, and its use for images that Glance serves without ranges."""

import contextlib
import json

import pytest
from oslo_config import cfg

from acstor_agent.sources import gateway
from acstor_agent.sources import glance
from acstor_agent.sources import source_client
from acstor_common import errors
from tests.fakes import fake_glance
from tests.fakes import glance_records
from tests.fakes import http_server

IMAGE = fake_glance.IMAGE
DATA = glance_records.BYTES
AT_GLANCE = f"v2/images/{IMAGE.image_id}/file"
AT_GATEWAY = f"v1/images/{IMAGE.image_id}/file"


@pytest.fixture
def server():
    """Return a Glance whose images a gateway serves."""
    with fake_glance.serving({IMAGE.file_name: DATA}) as running:
        running.files[AT_GATEWAY] = running.files.pop(AT_GLANCE)
        yield running


@pytest.fixture
async def source(server):
    async with contextlib.aclosing(gateway.GatewaySource(fake_glance.session(server.url))) as made:
        yield made


async def test_bytes_come_from_the_gateway_and_the_record_from_glance(server, source):
    assert await source.size_bytes(IMAGE) == len(DATA)
    assert await source.read(IMAGE, 5, 10) == DATA[5:15]
    assert source.location == server.url.rstrip("/")


async def test_configured_url_overrides_the_catalog(server):
    session = fake_glance.session("http://127.0.0.1:9")
    for url in (f"{server.url}", f"{server.url}v1/"):
        source = gateway.GatewaySource(session, endpoint=server.url, url=url)
        assert await source.read(IMAGE, 0, 4) == DATA[:4]
        await source.aclose()


async def test_catalog_without_a_gateway_is_reported(server, monkeypatch):
    def endpoint(self, session, service_type="", **_options):
        return server.url if service_type == "image" else None

    monkeypatch.setattr(fake_glance.ServiceUser, "get_endpoint", endpoint)
    source = gateway.GatewaySource(fake_glance.session(server.url))
    with pytest.raises(errors.ChunkRefused, match="no URL of a gateway"):
        await source.read(IMAGE, 0, 4)
    await source.aclose()


def conflict(words):
    def behave(handler, _asked):
        http_server.answer(handler, 409, words)

    return behave


async def test_refusal_carries_the_message_of_the_gateway(server, source):
    said = json.dumps({"error": {"message": "store s9 is not read"}}).encode()
    server.behaviours = [http_server.fine, conflict(said), conflict(said)]
    with pytest.raises(errors.ChunkRefused, match="store s9 is not read"):
        await source.read(IMAGE, 0, 4)


@pytest.mark.parametrize("words", [b"", b"no JSON", b'{"error": 5}', b"x" * 100_000])
async def test_refusal_without_a_valid_message_is_raised(server, source, words):
    server.behaviours = [http_server.fine, conflict(words), conflict(words)]
    with pytest.raises(errors.ChunkRefused, match="the server answered 409"):
        await source.read(IMAGE, 0, 4)


def options(**of_glance):
    conf = cfg.ConfigOpts()
    conf.register_opts(glance.GlanceSource.options(), group=glance.GROUP)
    conf.register_opts(gateway.GatewaySource.options(), group=gateway.GROUP)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in of_glance.items():
        conf.set_override(name, value, glance.GROUP)
    return conf


async def test_gateway_credentials_default_to_those_of_glance():
    keystone = {"auth_url": "http://192.0.2.1:5000/v3"}
    user = {"username": "acstor", "password": "p$$1", "project_name": "service"}
    credential = {"application_credential_id": "i", "application_credential_secret": "s"}
    for auth_type, given in [("password", user), ("v3applicationcredential", credential)]:
        conf = options(auth_type=auth_type, valid_interfaces="public", **keystone, **given)
        own, theirs = conf[gateway.GROUP], conf[glance.GROUP]
        for name in ("auth_type", "valid_interfaces", *keystone, *given):
            assert own[name] == theirs[name]
        await gateway.GatewaySource.from_conf(own).aclose()
    conf.set_override("auth_url", "http://192.0.2.2/v3", gateway.GROUP)
    assert conf[gateway.GROUP].auth_url == "http://192.0.2.2/v3"


def test_configuration_without_keystone_names_the_option():
    with pytest.raises(errors.Unusable, match=r"\[source_gateway\] auth_url: it is not set"):
        gateway.GatewaySource.from_conf(options()[gateway.GROUP])


async def test_glance_without_ranges_is_asked_for_a_range_only_once(server):
    server.files[AT_GLANCE] = DATA
    first = glance.GlanceSource(fake_glance.session(server.url))
    both = source_client.SourceClient(
        [first, gateway.GatewaySource(fake_glance.session(server.url))]
    )
    no_ranges = http_server.status(400)
    server.behaviours = [http_server.fine, no_ranges]  # its record, and a range of it
    assert await both.size_bytes(IMAGE) == len(DATA)
    before = len(server.asked)
    for offset in range(0, 40, 4):
        assert await both.read(IMAGE, offset, 4) == DATA[offset : offset + 4]
    assert len(server.asked) == before + 10  # ranges, only of the gateway
    await both.aclose()


async def test_glance_is_asked_for_ranges_again_after_a_while(server):
    server.files[AT_GLANCE] = DATA
    source = glance.GlanceSource(fake_glance.session(server.url), range_retry_s=0.0)
    server.behaviours = [http_server.fine, http_server.status(400)]
    with pytest.raises(errors.ChunkRefused):
        await source.read(IMAGE, 0, 4)
    assert await source.read(IMAGE, 0, 4) == DATA[:4]  # the image was moved to a file store
    await source.aclose()


async def test_size_request_asks_glance_for_ranges_again(server):
    server.files[AT_GLANCE] = DATA
    source = glance.GlanceSource(fake_glance.session(server.url))
    server.behaviours = [http_server.fine, http_server.status(400)]
    with pytest.raises(errors.ChunkRefused, match="name the source gateway as well"):
        await source.size_bytes(IMAGE)
    with pytest.raises(errors.ChunkRefused, match="only file and cinder stores"):
        await source.read(IMAGE, 0, 4)
    assert await source.size_bytes(IMAGE) == len(DATA)
    assert await source.read(IMAGE, 0, 4) == DATA[:4]
    await source.aclose()
