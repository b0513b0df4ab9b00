# SPDX-License-Identifier: Apache-2.0
"""Glance's list of images, page by page, over ``http_server``."""

import http.server
import json
import urllib.parse
from collections.abc import Sequence
from typing import Any

from tests.fakes import glance_records
from tests.fakes import http_server

SCHEMA = "v2/schemas/image"
ANY_IMAGE = json.dumps({"name": "image", "properties": {}}).encode()
"""A schema of images, which glanceclient fetches first."""


class ListedImages(dict[str, bytes]):
    """Images in the order of their IDs; a deleted one is no marker for tenants (400).

    :param deleted: images that are deleted once the first page was sent
    """

    def __init__(self, image_ids: Sequence[str], deleted: Sequence[str] = ()) -> None:
        super().__init__()
        self.image_ids, self._deleted, self.prefix = sorted(image_ids), deleted, ""

    def get(self, path: str, default: Any = None) -> Any:
        """Return the page that a request names; empty for an unknown marker."""
        asked = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(asked.query))
        marker = query.pop("marker", "")
        if asked.path != f"{self.prefix}v2/images" or (marker and marker not in self.image_ids):
            return b""
        found = [name for name in self.image_ids if name > marker]
        page = found[: int(query["limit"])]
        body: dict[str, Any] = {"images": [glance_records.record(id=name) for name in page]}
        if len(page) < len(found):
            more = urllib.parse.urlencode({**query, "marker": page[-1]})
            body["next"] = f"/v2/images?{more}"
            self.image_ids = [name for name in self.image_ids if name not in self._deleted]
        return json.dumps(body).encode()


def answer(handler: http.server.BaseHTTPRequestHandler, asked: http_server.ClientRequest) -> None:
    """Send a page, or 400 for an unknown marker."""
    code = 200 if asked.body else 400
    http_server.answer(handler, code, asked.body, {"Content-Type": "application/json"})
