# SPDX-License-Identifier: Apache-2.0
"""Reads blobs by HTTP range requests from any web server."""

import urllib.parse

from oslo_config import cfg

from acstor_agent.sources import base
from acstor_agent.sources import driver
from acstor_agent.sources.http_client import http_endpoint
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.http_client import http_range
from acstor_common import errors

GROUP = "source_http"


class HttpSource(driver.Driver):
    """The blobs below ``url``, by file name; raises Unusable if the URL or a limit is invalid."""

    def __init__(self, url: str, limits: http_pool.HttpLimits | None = None) -> None:
        self._base_url, auth = _parsed(url)
        limits = limits or http_pool.HttpLimits()
        self._pool = http_pool.HttpPool(GROUP, limits, auth, follows_redirects=True)

    @classmethod
    def options(cls) -> list[cfg.Opt]:
        """Return the options of the group ``source_http``."""
        return [
            cfg.StrOpt(
                "url",
                secret=True,
                help="Base URL; <image id>.raw, or <image id>.qcow2, and <image id>.acmap are "
                "appended. It may contain "
                "a user name and a password, but no query.",
            ),
            *http_pool.options(),
        ]

    @classmethod
    def from_conf(cls, group: cfg.ConfigOpts.GroupAttr) -> "HttpSource":
        """Create the source from the group ``source_http``."""
        return cls(group.url or "", http_pool.limits_of(group))

    @property
    def location(self) -> str:
        """The base URL without credentials."""
        return self._base_url

    @property
    def max_concurrent_reads(self) -> int:
        """The limit of connections, each with one request at a time."""
        return self._pool.connections

    async def size_bytes(self, blob: base.Blob) -> int:
        """Read one byte, and return the blob's size from the response."""
        what, where = f"the size of {blob.file_name}", self._base_url + blob.file_name
        return await self._pool.size_bytes(http_range.RangeRequest(what, where, 0, 1))

    async def fill_run(self, run: driver.BlobRun) -> None:
        """Read the run with one request."""
        where = self._base_url + run.blob.file_name
        await self._pool.fill_run(
            run, http_range.RangeRequest(run.description, where, run.offset, run.length)
        )

    def source_health(self) -> base.Health:
        """Return how many calls of the DNS resolver hang, and how long the oldest has hung."""
        hanging = self._pool.hanging
        return base.Health(hanging.calls, hanging.for_s)

    @property
    def rtt_s(self) -> float:
        """Least round-trip time of the connections."""
        return self._pool.rtt_s

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


def _parsed(url: str) -> tuple[str, tuple[str, str] | None]:
    """Return the base URL, and user and password; no error shows these."""
    what, remedy = "[source_http] url", "Set it to something like http://images.example.org/acstor/"
    try:
        parsed = urllib.parse.urlsplit(url)
        auth, _, authority = parsed.netloc.rpartition("@")
        base_url = f"{parsed.scheme}://{authority}{parsed.path.rstrip('/')}/"
        http_endpoint.endpoint_of(base_url)
    except ValueError:
        raise errors.Unusable(what, "it is not an http:// or https:// URL", remedy) from None
    if parsed.query or parsed.fragment:
        raise errors.Unusable(what, "it has a query or a fragment; blob names go last", remedy)
    user, _, password = map(urllib.parse.unquote, auth.partition(":"))
    return base_url, (user, password) if auth else None
