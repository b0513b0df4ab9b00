# SPDX-License-Identifier: Apache-2.0
"""Client of the gateway, with the token of the snapshot's requester."""

import contextlib
import http
import itertools
import logging
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Protocol

import msgspec
import requests
import urllib3
from keystoneauth1 import exceptions

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.service import bounded_responses
from acstor_common.service import tracing

LOG = logging.getLogger(__name__)

SLOWEST_BYTES_S = 1 * geometry.MIB
"""Of the new image's disk, each second until the deadlines; the gateway allows as much."""
_DONE = "done"
MAX_LINE_BYTES = 16 * 1024


class GatewayLimits(NamedTuple):
    """Limits of a client.

    :param idle_s: longest silence while a delta is sent; between two changes the gateway may copy
        much of the base, 45 GB at 25 MB/s in that time
    :param answer_bytes: of an answer; the gateway sends a line each five seconds
    """

    timeout_s: tuple[float, float] = (10.0, 60.0)  # to connect, and of silence
    idle_s: float = 1800.0
    answer_bytes: int = 64 * geometry.MIB


LIMITS = GatewayLimits()


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


class GatewayClient:
    """Client for one caller; methods raise GatewayUnreachable or GatewayRefused, with deadlines."""

    def __init__(
        self,
        url: str,
        ca_file: str,
        headers: Mapping[str, str] | None = None,
        limits: GatewayLimits = LIMITS,
    ) -> None:
        self._limits = limits
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

    def flatten_image(
        self, image_id: str, disk_format: str, body: Body, disk_bytes: int = 0
    ) -> int:
        """Make an image from a delta; return its size in Glance in bytes.

        :param disk_bytes: size of its disk, for the deadlines of the upload and of the answer
        """
        path = f"/v1/images/{image_id}/delta"
        headers = {"Content-Type": "application/octet-stream"}
        within_s = self._limits.idle_s + disk_bytes / SLOWEST_BYTES_S
        sent = _TimedBody(body, within_s)
        with self._asked(
            "PUT", path, headers, within_s, params={"format": disk_format}, data=sent
        ) as answer:
            _check(answer, http.HTTPStatus.OK)
            until_s = time.monotonic() + within_s
            for line in self._lines(answer):
                if time.monotonic() > until_s:
                    raise TimeoutError(f"it did not finish within {within_s:.0f} s")
                if line.error is not None:
                    raise errors.GatewayRefused(answer.status_code, line.error.message)
                if line.state == _DONE:
                    return line.size
        raise errors.GatewayUnreachable(self._url, "it closed the connection before it finished")

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        within_s: float = bounded_responses.WITHIN_S,
        **more: Any,
    ) -> Iterator[requests.Response]:
        # The connect timeout applies to each piece of the body.
        timeout_s = self._limits.idle_s if "data" in more else self._limits.timeout_s
        try:
            with tracing.Span("acstor_gateway_call", path=path), requests.Session() as session:
                bounded_responses.bound_requests(
                    session, max_bytes=self._limits.answer_bytes, within_s=within_s
                )
                with session.request(
                    method,
                    f"{self._url}{path}",
                    headers={**self._headers, **tracing.trace_headers(), **(headers or {})},
                    timeout=timeout_s,
                    verify=self._verify,
                    allow_redirects=False,
                    stream=True,
                    **more,
                ) as answer:
                    yield answer
        except (OSError, urllib3.exceptions.HTTPError, exceptions.ClientException) as e:
            raise errors.GatewayUnreachable(self._url, str(e)) from e  # those of requests: OSError

    def _lines(self, answer: requests.Response) -> Iterator[_Line]:
        for raw in _cut(answer):
            try:
                yield msgspec.json.decode(raw, type=_Line)
            except msgspec.MsgspecError as e:
                raise errors.GatewayUnreachable(self._url, f"invalid answer: {e}") from e


class _TimedBody:
    """A body whose upload has a deadline; each piece has the timeout of the socket."""

    def __init__(self, body: Body, within_s: float) -> None:
        self._body, self._within_s = body, within_s

    def __len__(self) -> int:
        return len(self._body)

    def __iter__(self) -> Iterator[bytes]:
        until_s = time.monotonic() + self._within_s
        for piece in self._body:
            if time.monotonic() > until_s:
                raise TimeoutError(f"it did not receive the delta within {self._within_s:.0f} s")
            yield piece


def _cut(answer: requests.Response) -> Iterator[bytes]:
    """Yield lines as soon as they are complete; split overlong ones."""
    left = b""
    for piece in answer.iter_content(MAX_LINE_BYTES):  # as much as there is
        *lines, left = (left + piece).split(b"\n")
        yield from lines
        while len(left) >= MAX_LINE_BYTES:
            yield left[:MAX_LINE_BYTES]
            left = left[MAX_LINE_BYTES:]


def _check(answer: requests.Response, wanted: http.HTTPStatus) -> None:
    if answer.status_code != wanted:
        raise errors.GatewayRefused(answer.status_code, _words(answer))


def _words(answer: requests.Response) -> str:
    raw = b"".join(itertools.islice(answer.iter_content(1), MAX_LINE_BYTES))
    with contextlib.suppress(msgspec.MsgspecError):
        line = msgspec.json.decode(raw, type=_Line)
        if line.error is not None and line.error.message:
            return line.error.message
    return str(answer.reason)
