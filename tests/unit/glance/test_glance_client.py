# SPDX-License-Identifier: Apache-2.0
"""The client of Glance: URLs, streams, and errors, which name who must act."""

import http.server
import itertools
import json
import pathlib
import threading

import pytest
import requests
from glanceclient import exc as glance_errors
from keystoneauth1 import exceptions as keystone_errors
from oslo_config import cfg

from acstor_common import errors
from acstor_glance.client import glance_client
from acstor_glance.client import range_support
from acstor_glance.gateway import image_lookup
from tests.fakes import glance_options
from tests.fakes import glance_records
from tests.fakes import http_server
from tests.fakes import listed_images

RECORD = f"v2/images/{glance_records.IMAGE_ID}"
WAIT_S = 60.0


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (glance_errors.HTTPNotFound("no such image"), errors.ImageGone),
        (glance_errors.HTTPServiceUnavailable("later"), errors.ImageServiceUnreachable),
        (glance_errors.HTTPConflict("busy"), errors.ImageServiceUnreachable),
        (glance_errors.HTTPInternalServerError("bug"), errors.ImageServiceUnreachable),
        (glance_errors.CommunicationError("refused"), errors.ImageServiceUnreachable),
        (glance_errors.InvalidEndpoint("timeout"), errors.ImageServiceUnreachable),
        (glance_errors.HTTPForbidden("no"), errors.ImageServiceRefused),
        (glance_errors.HTTPUnauthorized("who"), errors.ImageServiceRefused),
        (glance_errors.HTTPBadRequest("what"), errors.ImageServiceRefused),
        (keystone_errors.ConnectFailure("away"), errors.ImageServiceUnreachable),
        (keystone_errors.ServiceUnavailable(), errors.ImageServiceUnreachable),
        (keystone_errors.EndpointNotFound(), errors.ImageServiceUnreachable),
        (keystone_errors.NotFound("a token"), errors.ImageServiceUnreachable),
        (keystone_errors.Unauthorized("wrong password"), errors.ImageServiceRefused),
        (keystone_errors.MissingRequiredOptions([]), errors.ImageServiceRefused),
        (requests.exceptions.ChunkedEncodingError("cut"), errors.ImageServiceUnreachable),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_library_error_is_translated(raised: Exception, expected: type[Exception]) -> None:
    with (
        pytest.raises(expected, match=r"^list of images: ") as caught,
        glance_client.translate_errors("list of images"),
    ):
        raise raised
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised


def test_error_of_a_missing_role_names_the_role() -> None:
    with (
        pytest.raises(errors.ImageServiceRefused, match="needs a role"),
        glance_client.translate_errors("x"),
    ):
        raise glance_errors.HTTPForbidden("Forbidden")


def test_html_page_is_not_quoted_in_the_error() -> None:
    with (
        pytest.raises(errors.ImageServiceUnreachable) as caught,
        glance_client.translate_errors("x"),
    ):
        raise glance_errors.HTTPBadGateway("Bad Gateway\n<html>" + "x" * 9999)
    assert len(str(caught.value)) < 400
    assert "<html>" not in str(caught.value)


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}])
def test_malformed_error_response_counts_as_unreachable(
    tmp_path: pathlib.Path, headers: dict[str, str]
) -> None:
    """glanceclient raises KeyError, or AttributeError for JSON without objects."""
    with http_server.serve({listed_images.SCHEMA: listed_images.ANY_IMAGE}) as server:
        server.always = lambda handler, asked: http_server.answer(
            handler, 502, b'{"a": 1}', headers
        )
        with pytest.raises(errors.ImageServiceUnreachable, match="its answer is malformed"):
            glance_client.connect(configured(tmp_path, server.url)).get_image("i1")


class Locations:
    """Glance's response to a request for an image's locations."""

    def __init__(self, *found: object) -> None:
        self.http_client, self._found = self, found

    def get(self, path: str) -> tuple[None, list[object]]:
        assert path == "/v2/images/i1/locations"
        return None, list(self._found)


def test_inactive_locations_are_left_out() -> None:
    """Glance 33 has no status of locations; a newer one may list locations without bytes."""
    client = glance_client.GlanceClient.__new__(glance_client.GlanceClient)
    client._client = Locations(
        {"url": "file:///1", "metadata": {"store": "fs"}},
        {"url": "file:///2", "metadata": {}, "status": "active"},
        {"url": "file:///3", "metadata": {"store": "far"}, "status": "pending"},
        {"url": "file:///4", "metadata": {"store": "far"}, "status": "uploading"},
    )
    assert client.list_locations("i1") == [("file:///1", "fs"), ("file:///2", "")]


def configured(folder: pathlib.Path, url: str, option: str = "endpoint") -> cfg.ConfigOpts:
    """Return the options of a client that needs no Keystone."""
    file = folder / "acstor-glance.conf"
    lines = ("[acstor_glance]", "auth_type = none", f"state_dir = {folder}", f"{option} = {url}")
    file.write_text("\n".join(lines))
    return glance_options.conf(file)


def glance(handler: http.server.BaseHTTPRequestHandler, asked: http_server.ClientRequest) -> None:
    answer = http_server.fine if "range" in asked.headers else listed_images.answer
    answer(handler, asked)


@pytest.mark.parametrize("option", ["endpoint", "endpoint_override"])
@pytest.mark.parametrize("path", glance_records.CATALOG_PATHS)
def test_glance_is_found_below_any_form_of_its_url(
    tmp_path: pathlib.Path, option: str, path: str
) -> None:
    files = {
        listed_images.SCHEMA: listed_images.ANY_IMAGE,
        RECORD: json.dumps(glance_records.record()).encode(),
        f"{RECORD}/file": b"bytes",
    }
    with http_server.serve(files | {f"image/{name}": files[name] for name in files}) as server:
        server.always = glance
        conf = configured(tmp_path, server.url.rstrip("/") + path, option)
        image = glance_client.connect(conf).get_image(glance_records.IMAGE_ID)
        assert image == glance_records.image()
        found = range_support.RangeProber(conf).has_ranges(image)
        assert found.support is range_support.RangeSupport.RANGES
        answer = image_lookup.adapter_of(conf).get(f"/{RECORD}", authenticated=False)
        assert answer.json()["id"] == image.id


def test_connection_is_closed_when_an_unfinished_download_is_given_up(
    tmp_path: pathlib.Path,
) -> None:
    """Glance cannot delete an image while it is being sent."""
    has_ended = threading.Event()

    def send(handler: http.server.BaseHTTPRequestHandler, asked: http_server.ClientRequest) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/octet-stream")
        handler.send_header("Content-Length", str(1 << 30))
        handler.end_headers()
        try:
            for _ in itertools.repeat(None, 1 << 10):
                handler.wfile.write(bytes(1 << 20))
        except ConnectionError:
            has_ended.set()

    with http_server.serve({f"{RECORD}/file": b"image"}) as server:
        server.always = send
        images = glance_client.connect(configured(tmp_path, server.url))
        with pytest.raises(ZeroDivisionError):
            with images.open_image_data(glance_records.IMAGE_ID) as pieces:
                assert next(pieces)
                raise ZeroDivisionError
        assert has_ended.wait(WAIT_S)
        del pieces  # it had the response until now
