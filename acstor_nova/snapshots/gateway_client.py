# SPDX-License-Identifier: Apache-2.0
"""Client of the gateway, with the token of the snapshot's requester.

Every failure is one of two errors, and every wait has a timeout.
"""

import contextlib
import http
import logging
import socket
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Protocol

import msgspec
import requests
import urllib3
from requests import adapters

from acstor_common import errors

LOG = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 1800.0
"""Longest silence while a delta is sent.

Between two changes the gateway may copy much of the base: 45 GB at 25 MB/s in that time.
"""
KEEPALIVE_S, KEEPALIVES = 20, 3
"""TCP keepalive, which detects a dead gateway."""
_SENT_S = (IDLE_TIMEOUT_S, IDLE_TIMEOUT_S)
_ASKED_S = (10.0, 60.0)
"""Timeouts to connect and to answer; the gateway may ask Keystone and others."""
_DONE = "done"
MAX_LINE_BYTES = 16 * 1024


class Body(Protocol):
    """A request's body of known length."""

    def __len__(self) -> int:
        """Return the length in bytes."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces."""


class _Error(msgspec.Struct):
    message: str = ""


class _Line(msgspec.Struct):
    """One line of the answer; the last one has state DONE or an error."""

    state: str = ""
    error: _Error | None = None
    size: int = 0


class _Alive(adapters.HTTPAdapter):
    """Adapter with TCP keepalive."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Create the pool manager."""
        options = [
            *urllib3.connection.HTTPConnection.default_socket_options,
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVES),
        ]
        super().init_poolmanager(*args, socket_options=options, **kwargs)


class GatewayClient:
    """Client for one caller; every method raises GatewayUnreachable or GatewayRefused."""

    def __init__(self, url: str, ca_file: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._verify: str | bool = ca_file or True
        self._headers = dict(headers or {})

    def check_gateway(self) -> None:
        """Check that there is a gateway."""
        with self._asked("GET", "/healthz") as answer:
            _check(answer, http.HTTPStatus.OK)

    def check_base(self, image_id: str) -> None:
        """Check that the caller and the gateway can read one byte of an image."""
        path = f"/v1/images/{image_id}/file"
        with self._asked("GET", path, headers={"Range": "bytes=0-0"}) as answer:
            _check(answer, http.HTTPStatus.PARTIAL_CONTENT)

    def flatten_image(self, image_id: str, disk_format: str, body: Body) -> int:
        """Make an image from a delta; return its size in Glance in bytes.

        :param image_id: the new image, whose record has the same format
        """
        path = f"/v1/images/{image_id}/changes"
        headers = {"Content-Type": "application/octet-stream"}
        asked = self._asked("PUT", path, headers=headers, params={"format": disk_format}, data=body)
        with asked as answer:
            _check(answer, http.HTTPStatus.OK)
            for line in self._lines(answer):
                if line.error is not None:
                    raise errors.GatewayRefused(answer.status_code, line.error.message)
                if line.state == _DONE:
                    return line.size
        raise errors.GatewayUnreachable(self._url, "it closed the connection before it was done")

    @contextlib.contextmanager
    def _asked(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Iterator[requests.Response]:
        # The connect timeout applies to each piece of the body.
        timeout_s = _SENT_S if "data" in more else _ASKED_S
        try:
            with (
                _session() as session,
                session.request(
                    method,
                    f"{self._url}{path}",
                    headers={**self._headers, **(headers or {})},
                    timeout=timeout_s,
                    verify=self._verify,
                    allow_redirects=False,
                    stream=True,
                    **more,
                ) as answer,
            ):
                yield answer
        except (OSError, urllib3.exceptions.HTTPError) as e:  # those of requests are OSError
            raise errors.GatewayUnreachable(self._url, str(e)) from e

    def _lines(self, answer: requests.Response) -> Iterator[_Line]:
        for raw in _cut(answer):
            try:
                yield msgspec.json.decode(raw, type=_Line)
            except msgspec.MsgspecError as e:
                raise errors.GatewayUnreachable(self._url, f"invalid answer: {e}") from e


def _session() -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Alive())
    return session


def _cut(answer: requests.Response) -> Iterator[bytes]:
    """Yield lines as soon as they are complete; split overlong ones."""
    line = bytearray()
    for byte in answer.iter_content(1):
        if byte == b"\n" or len(line) == MAX_LINE_BYTES:
            yield bytes(line)
            line.clear()
        else:
            line += byte


def _check(answer: requests.Response, wanted: http.HTTPStatus) -> None:
    """Raise errors.GatewayRefused for another status."""
    if answer.status_code != wanted:
        raise errors.GatewayRefused(answer.status_code, _words(answer))


def _words(answer: requests.Response) -> str:
    said = answer.raw.read(MAX_LINE_BYTES, decode_content=True)
    with contextlib.suppress(msgspec.MsgspecError):
        line = msgspec.json.decode(said, type=_Line)
        if line.error is not None and line.error.message:
            return line.error.message
    return str(answer.reason)
