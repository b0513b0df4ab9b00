# SPDX-License-Identifier: Apache-2.0
"""Reads blobs by HTTP range requests from any web server; the connections are in http_link.py."""

import httpx
from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import http_link
from acstor_agent.sources import http_range
from acstor_common import errors

GROUP = "source_http"


class HttpSource(base.Driver):
    """The blobs below ``url``, over a bounded number of connections that are kept open.

    :param url: base URL; the blob's file name is appended
    :raises errors.Unusable: the URL or a limit makes no sense
    """

    def __init__(self, url: str, limits: http_link.Limits | None = None) -> None:
        parsed = _parsed(url)
        self._base_url = str(parsed.copy_with(userinfo=b"")).rstrip("/") + "/"
        auth = (parsed.username, parsed.password) if parsed.userinfo else None
        self._link = http_link.Link(GROUP, limits or http_link.Limits(), auth)

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_http``."""
        return [
            cfg.StrOpt(
                "url",
                secret=True,
                help="Base URL; <image id>.raw and <image id>.acmap are appended. It may contain "
                "a user name and a password, but no query.",
            ),
            *http_link.options(),
        ]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "HttpSource":
        """Make the source from the group ``source_http``."""
        return cls(group.url or "", http_link.limits_of(group))

    @property
    def where(self) -> str:
        """The base URL without credentials."""
        return self._base_url

    @property
    def in_flight(self) -> int:
        """One request per connection."""
        return self._link.connections

    async def size_bytes(self, blob: base.Blob) -> int:
        """Return the size that the answer to a range of one byte tells."""
        what, where = f"the size of {blob.name}", self._base_url + blob.name
        return await self._link.size_bytes(http_range.Asked(what, where, 0, 1))

    async def read_range(self, blob: base.Blob, offset: int, length: int) -> bytes:
        """Read the range with one request."""
        what, where = blob.part(offset, length), self._base_url + blob.name
        return await self._link.read(http_range.Asked(what, where, offset, length))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._link.aclose()


def _parsed(url: str) -> httpx.URL:
    """Return ``url`` if blobs can be below it; no message shows it, it may hold a password."""
    what, remedy = "[source_http] url", "Set it to something like http://images.example.org/acstor/"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise errors.Unusable(what, "it is not a URL", remedy) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise errors.Unusable(what, "it is not an http:// or https:// URL", remedy)
    if parsed.query or parsed.fragment:
        raise errors.Unusable(what, "it has a query or a fragment; blob names go last", remedy)
    return parsed
