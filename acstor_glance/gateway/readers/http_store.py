# SPDX-License-Identifier: Apache-2.0
"""The store ``http``: GET with a range, from the web server of a location.

Tenants may name and run these servers: a read has a deadline and limits (:mod:`bounded_responses`),
:mod:`address_filter` denies internal addresses, redirects to other servers are not followed.
"""

import http
import http.cookiejar
import threading
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any

import requests
import urllib3
from keystoneauth1 import exceptions

from acstor_common.model import addresses
from acstor_common.service import bounded_responses
from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import address_filter
from acstor_glance.gateway.readers import base

REDIRECTS = 5


class WebReader(base.Reader):
    """Reads from web servers, with the store's options; ``networks`` are allowed."""

    def __init__(
        self,
        name: str,
        options: Any,
        timeout_s: float,
        networks: Sequence[addresses.Network] = (),
    ) -> None:
        super().__init__(name)
        self._connection_class = type(
            "Connection", (address_filter.FilteredConnection,), {"networks": networks}
        )
        self._options, self._timeout_s = options, timeout_s
        self._own = threading.local()
        self._late = f"it took longer than {timeout_s:g} s"

    def read(self, location: Any, requested: byte_range.ByteRange) -> base.ObjectRange:
        """Read a range; see :meth:`base.Reader.read`."""
        until_s = time.monotonic() + self._timeout_s
        try:
            with self._ask(location.get_uri(), requested, until_s) as answer:
                status = answer.status_code
                if status == http.HTTPStatus.OK:
                    raise base.RangesUnsupported(self.name, "the web server supports no ranges")
                if status != http.HTTPStatus.PARTIAL_CONTENT:
                    raise self.status_error(status, f"the web server answers {status}")
                data = answer.raw.read(requested.length + 1)
                content_range = answer.headers.get("Content-Range", "")
        except address_filter.InternalAddress as error:
            why = "[acstor_gateway] internal_web_networks does not allow its internal address"
            raise base.RangesUnsupported(self.name, why) from error
        except (
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            exceptions.ClientException,
            OSError,
            ValueError,  # invalid URL, or redirect to one
        ) as error:
            is_late = time.monotonic() >= until_s - address_filter.LEAST_S
            why = self._late if is_late else type(error).__name__
            raise base.StoreUnreachable(self.name, why) from error
        return self.parse_response(requested, content_range, data)

    def _ask(self, url: str, requested: byte_range.ByteRange, until_s: float) -> requests.Response:
        wanted = {
            "Range": f"bytes={requested.offset}-{requested.offset + requested.length - 1}",
            "Accept-Encoding": "identity",
        }
        server = _server_of(url)
        for _ in range(1 + REDIRECTS):
            left_s = max(address_filter.LEAST_S, until_s - time.monotonic())
            answer = self._session().get(
                url,
                headers=wanted,
                stream=True,
                timeout=urllib3.Timeout(total=left_s),  # type: ignore[arg-type]
                allow_redirects=False,
            )
            if not answer.is_redirect:
                return answer
            answer.close()
            url = urllib.parse.urljoin(url, answer.headers["Location"])
            if _server_of(url) != server:
                why = "the web server redirects to another one, which is not in Glance's location"
                raise base.RangesUnsupported(self.name, why)
        raise base.RangesUnsupported(
            self.name, f"the web server redirects more than {REDIRECTS} times"
        )

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, self._adapter())
            session.trust_env = False
            session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
            session.verify = (
                self._options.https_ca_certificates_file or not self._options.https_insecure
            )
            session.proxies = dict(self._options.http_proxy_information or {})
        return session

    def _adapter(self) -> bounded_responses.Adapter:
        return bounded_responses.Adapter(
            bounded_responses.MAX_LIST_BYTES,
            self._timeout_s,
            self._connection_class,
            streams_images=False,
        )


def _server_of(url: str) -> tuple[str, str, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
