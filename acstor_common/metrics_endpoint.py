# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint of every service: one registry at one address, in threads of its own.

Who scrapes costs a thread for a while and no more.  CONNECTIONS are answered at a
time, one more is closed, and one on which nothing comes for TIMEOUT_S, too.
"""

import socket
import socketserver
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from acstor_common import addresses
from acstor_common import errors
from acstor_common import supervised

CONNECTIONS = 16
TIMEOUT_S = 10.0


class _Handler(simple_server.WSGIRequestHandler):
    """Answers one request; writes nothing to the log."""

    timeout = TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """A thread for each connection, CONNECTIONS at most."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], is_shared: bool) -> None:
        self.allow_reuse_port = is_shared
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.Semaphore(CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is one left."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then let another one have the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke."""


class _Loops(registry.Collector):
    """Shows how often the loops of this process failed."""

    def collect(self) -> Iterator[core.Metric]:
        """Yield the one metric, as of now."""
        family = core.CounterMetricFamily(
            "acstor_loop_failures",
            "Failures of the loops of this process, by name",
            labels=["loop"],
        )
        for name, times in sorted(supervised.failures().items()):
            family.add_metric([name], times)
        yield family


def serve(
    address: str,
    own: prometheus_client.CollectorRegistry,
    option: str,
    is_shared: bool = False,
) -> Callable[[], None]:
    """Start the endpoint; return what stops it.

    :param own: what is shown, beside the process's own figures
    :param option: the option that has the address, for the error
    :param is_shared: other processes of the same user listen there as well, and show the same; so
        nothing of one process is shown beside it
    :raises errors.Unusable: the address cannot be used
    """
    if not is_shared:
        prometheus_client.ProcessCollector(registry=own)
        own.register(_Loops())
    try:
        server = _Server(addresses.parse(address), is_shared)
    except (ValueError, OSError) as e:
        raise errors.Unusable(option, f"{address}: {e}") from e
    server.set_app(prometheus_client.make_wsgi_app(own))
    thread = supervised.start("metrics", server.serve_forever, is_vital=False)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
