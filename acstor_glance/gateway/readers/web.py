# SPDX-License-Identifier: Apache-2.0
"""The store ``http``: GET with a range, from whatever web server a location names."""

import http
import threading
from typing import Any

import requests

from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import base

REDIRECTS = 5


class WebReader(base.Reader):
    """Reads what lies on web servers, with the certificates and proxies of the store's options."""

    def __init__(self, name: str, options: Any, timeout_s: float) -> None:
        super().__init__(name)
        self._options, self._timeout_s = options, timeout_s
        self._own = threading.local()

    def read(self, location: Any, asked: byte_range.ByteRange) -> base.Part:
        """Read a part of an object; see :meth:`base.Reader.read`."""
        wanted = {
            "Range": f"bytes={asked.offset}-{asked.offset + asked.length - 1}",
            "Accept-Encoding": "identity",
        }
        try:
            with self._session().get(
                location.get_uri(), headers=wanted, stream=True, timeout=self._timeout_s
            ) as answer:
                status = answer.status_code
                if status == http.HTTPStatus.OK:
                    raise base.NotRead(self.name, "the web server does no range requests")
                if status != http.HTTPStatus.PARTIAL_CONTENT:
                    raise self.of_status(status, f"the web server answers {status}")
                data = answer.raw.read(asked.length + 1)
                content_range = answer.headers.get("Content-Range", "")
        except (requests.exceptions.RequestException, OSError) as error:
            raise base.StoreUnreachable(self.name, type(error).__name__) from error
        return self.of_answer(asked, content_range, data)

    def _session(self) -> requests.Session:
        """Return the connections of this thread: a session is not for several."""
        session: requests.Session | None = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = requests.Session()
            session.trust_env = False
            session.max_redirects = REDIRECTS
            session.verify = (
                self._options.https_ca_certificates_file or not self._options.https_insecure
            )
            session.proxies = dict(self._options.http_proxy_information or {})
        return session
