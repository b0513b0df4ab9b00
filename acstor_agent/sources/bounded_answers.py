# SPDX-License-Identifier: Apache-2.0
"""Bounds size and duration of the responses that a keystoneauth session reads.

keystoneauth reads a whole body into memory, and its timeout is one of silence.
"""

import time
from collections.abc import Iterator
from typing import Any
from typing import Final

from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session

MAX_BYTES: Final = 4 << 20
"""Of a body; a token response contains the service catalogue."""
WITHIN_S: Final = 120.0
"""From the request to the last byte of the body."""


def bound(session: keystone_session.Session) -> None:
    """Make a session fail on larger or slower bodies, as on a lost connection."""
    for scheme in ("http://", "https://"):
        session.session.mount(scheme, _Adapter())


class _Adapter(keystone_session.TCPKeepAliveAdapter):
    def send(self, *args: Any, **kwargs: Any) -> Any:
        until_s = time.monotonic() + WITHIN_S
        response = super().send(*args, **kwargs)
        response.raw = _Body(response.raw, until_s)
        return response


class _Body:
    """Stands in for the response of urllib3, from which requests reads the body.

    :param raw: urllib3's response
    """

    def __init__(self, raw: Any, until_s: float) -> None:
        self._raw, self._until_s = raw, until_s
        self.close, self.release_conn = raw.close, raw.release_conn

    def stream(self, count: int, decode_content: bool) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive.

        :raises exceptions.ConnectFailure: the body is too large or too slow
        """
        size_bytes = 0
        while data := self._raw.read1(count, decode_content=decode_content):
            size_bytes += len(data)
            if size_bytes > MAX_BYTES or time.monotonic() > self._until_s:
                self.close()
                bounds = f"{MAX_BYTES} bytes or {WITHIN_S:g} s"
                raise exceptions.ConnectFailure(f"the answer takes more than {bounds}")
            yield data
