# SPDX-License-Identifier: Apache-2.0
"""Errors of Glance's and Keystone's libraries become acstor's errors, which name who must act."""

import pytest
import requests
from glanceclient import exc as glance_errors
from keystoneauth1 import exceptions as keystone_errors

from acstor_common import errors
from acstor_glance.client import glance_client


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
