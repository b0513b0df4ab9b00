# SPDX-License-Identifier: Apache-2.0
"""Prometheus endpoint of every service, with bounds on the load that clients can cause.

One connection is accepted each ACCEPT_INTERVAL_S; one more than CONNECTIONS closes the oldest.  One
thread at a time collects metrics, which are cached for KEPT_S.
"""

import io
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import clocks
from acstor_common.service import version
from acstor_common.util import supervision

CONNECTIONS = 16
ACCEPT_INTERVAL_S = 0.01
FAILED_ACCEPT_S = 0.5  # pause after it: without descriptors, the next one would fail at once
DEADLINE_S = 10.0  # of a connection
REQUEST_BYTES = 8 * 1024
KEPT_S = 1.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The text format that every version of Prometheus reads."""


class MetricsApp:
    """WSGI application that shows a registry, cached for KEPT_S."""

    def __init__(
        self, own: prometheus_client.CollectorRegistry, clock: clocks.Clock = time
    ) -> None:
        self._registry, self._clock = own, clock
        self._lock = threading.Lock()
        self._kept, self._kept_until_s = b"", -float("inf")

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]
    ) -> Iterable[bytes]:
        """Answer a GET request for any path."""
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET")])
            return []
        body = self._text()
        headers = [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))]
        start_response("200 OK", headers)
        return [body]

    def _text(self) -> bytes:
        with self._lock:
            if self._clock.monotonic() >= self._kept_until_s:
                self._kept = prometheus_client.generate_latest(self._registry)
                self._kept_until_s = self._clock.monotonic() + KEPT_S
            return self._kept


class _Handler(simple_server.WSGIRequestHandler):
    def setup(self) -> None:
        """Read the request's head; a head that is too long becomes empty."""
        super().setup()
        self.rfile.close()
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            more = self.connection.recv(REQUEST_BYTES + 1 - len(head))
            head += more
            if not more or len(head) > REQUEST_BYTES:
                head = b""
                break
        self.rfile = io.BufferedReader(io.BytesIO(head))

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing."""


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], is_shared: bool, deadline_s: float) -> None:
        self.allow_reuse_port, self._deadline_s = is_shared, deadline_s
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._lock = threading.Lock()
        self._open: dict[Any, float] = {}  # connection -> time accepted, oldest first
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(FAILED_ACCEPT_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, and delay the next accept."""
        with self._lock:
            displaced = next(iter(self._open)) if len(self._open) >= CONNECTIONS else None
            if displaced is not None:
                self._end(displaced)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)
        time.sleep(ACCEPT_INTERVAL_S)

    def service_actions(self) -> None:
        with self._lock:
            for request, since_s in list(self._open.items()):
                if time.monotonic() - since_s < self._deadline_s:
                    break
                self._end(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for request in list(self._open):
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection."""

    def _end(self, request: Any) -> None:
        """Make a connection's thread fail at once; that thread closes it."""
        del self._open[request]
        try:
            request.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed by the client


class _Loops(registry.Collector):
    def collect(self) -> Iterator[core.Metric]:
        family = core.CounterMetricFamily(
            "acstor_loop_failures",
            "Failures of the loops of this process, by name",
            labels=["loop"],
        )
        for name, times in sorted(supervision.failures().items()):
            family.add_metric([name], times)
        yield family


class _Build(registry.Collector):
    def __init__(self) -> None:
        self._version = version.installed()

    def collect(self) -> Iterator[core.Metric]:
        yield core.InfoMetricFamily("acstor_build", "The build", {"version": self._version})


def serve(
    address: str,
    own: prometheus_client.CollectorRegistry,
    option: str,
    is_shared: bool = False,
    deadline_s: float = DEADLINE_S,
) -> Callable[[], None]:
    """Start the endpoint; return the function that stops it.  Unusable: a bad ``address``.

    :param option: name of the option with the address, for errors
    :param is_shared: processes share the port (SO_REUSEPORT); metrics of one process are left out
    """
    own.register(_Build())
    if not is_shared:
        prometheus_client.ProcessCollector(registry=own)
        own.register(_Loops())
    try:
        server = _Server(addresses.parse(address), is_shared, deadline_s)
    except (ValueError, OSError) as e:
        raise errors.Unusable(option, f"{address}: {e}") from e
    server.set_app(MetricsApp(own))
    thread = supervision.start("metrics", server.serve_forever, is_vital=False)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
