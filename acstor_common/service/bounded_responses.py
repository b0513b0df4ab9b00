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
"""Of a body; a token response contains the service catalog."""
MAX_LIST_BYTES: Final = 16 << 20
"""Of a body with a page of 1,000 servers or images."""
WITHIN_S: Final = 120.0
"""From the request to the last byte of the body."""


def bound(
    session: keystone_session.Session, max_bytes: int = MAX_BYTES, within_s: float = WITHIN_S
) -> None:
    """Make a session fail on larger or slower bodies, as on a lost connection."""
    for scheme in ("http://", "https://"):
        session.session.mount(scheme, _Adapter(max_bytes, within_s))


class _Adapter(keystone_session.TCPKeepAliveAdapter):
    def __init__(self, max_bytes: int, within_s: float) -> None:
        super().__init__()
        self._max_bytes, self._within_s = max_bytes, within_s

    def send(self, *args: Any, **kwargs: Any) -> Any:
        until_s = time.monotonic() + self._within_s
        response = super().send(*args, **kwargs)
        why = f"the answer takes more than {self._max_bytes} bytes or {self._within_s:g} s"
        response.raw = _Body(response.raw, self._max_bytes, until_s, why)
        return response


class _Body:
    """Stands in for the response of urllib3, from which requests reads the body.

    :param raw: urllib3's response
    :param why: error text of a body that is too large or too slow
    """

    def __init__(self, raw: Any, max_bytes: int, until_s: float, why: str) -> None:
        self._raw, self._max_bytes, self._until_s, self._why = raw, max_bytes, until_s, why
        self.close, self.release_conn = raw.close, raw.release_conn

    def stream(self, count: int, decode_content: bool) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive.

        :raises exceptions.ConnectFailure: the body is too large or too slow
        """
        size_bytes = 0
        while data := self._raw.read1(count, decode_content=decode_content):
            size_bytes += len(data)
            if size_bytes > self._max_bytes or time.monotonic() > self._until_s:
                self.close()
                raise exceptions.ConnectFailure(self._why)
            yield data
