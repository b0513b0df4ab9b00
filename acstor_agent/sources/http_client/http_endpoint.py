# SPDX-License-Identifier: Apache-2.0
"""Server and request target of a URL."""

import functools
import urllib.parse
from typing import NamedTuple

from acstor_common.model import addresses

URLS_REMEMBERED = 256
_SAFE = "/%:=&~+!$,;'@()*"


class HttpEndpoint(NamedTuple):
    """The server of a URL."""

    is_tls: bool
    host: str  # name for the resolver and the certificate
    port: int

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        whole = addresses.with_port(self.host, self.port)
        return whole.removesuffix(":443" if self.is_tls else ":80")


@functools.lru_cache(URLS_REMEMBERED)
def endpoint_of(url: str) -> tuple[HttpEndpoint, str]:
    """Return the server and the request target of a URL; ignore credentials.

    >>> endpoint_of("http://images.example.org:8080/a b/c?d=e")
    (HttpEndpoint(is_tls=False, host='images.example.org', port=8080), '/a%20b/c?d=e')

    :raises ValueError: it is not an http:// or https:// URL
    """
    parsed = urllib.parse.urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("it is not an http:// or https:// URL")
    is_tls = parsed.scheme == "https"
    host = parsed.hostname
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    port = parsed.port or (443 if is_tls else 80)
    target = urllib.parse.quote(parsed.path or "/", safe=_SAFE)
    query = urllib.parse.quote(parsed.query, safe=_SAFE + "?")
    return HttpEndpoint(is_tls, host, port), f"{target}?{query}" if query else target
