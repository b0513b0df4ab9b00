# SPDX-License-Identifier: Apache-2.0
"""A receiver of OTLP traces over HTTP, like Jaeger or an OpenTelemetry collector."""

import contextlib
import http.server
import threading
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.lab import runs

PATH = "/v1/traces"


class Span(NamedTuple):
    """A span; IDs are hexadecimal."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]


class Receiver:
    """The received spans."""

    def __init__(self, port: int) -> None:
        self.url = f"otlp://127.0.0.1:{port}"  #: for [profiler] connection_string
        self.spans: list[Span] = []

    def take(self, body: bytes) -> None:
        """Decode a request and store its spans."""
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            of_resource = {one.key: one.value.string_value for one in group.resource.attributes}
            self.spans += (
                Span(
                    of_resource["service.name"],
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    {one.key: one.value.string_value for one in span.attributes},
                )
                for scope in group.scope_spans
                for span in scope.spans
            )

    def of_trace(self, base_id: str) -> list[Span]:
        """Return the received spans of a trace."""
        return [span for span in self.spans if span.trace_id == uuid.UUID(base_id).hex]

    def wait_for(self, base_id: str, name: str, within_s: float = 30.0) -> list[Span]:
        """Wait for a span of this name; return all spans of its trace."""

        def has_come() -> bool:
            return any(span.name == name for span in self.of_trace(base_id))

        runs.wait_for(has_come, within_s, name, lambda: str(self.spans))
        time.sleep(0.1)  # the rest of the batch
        return self.of_trace(base_id)


@contextlib.contextmanager
def running() -> Iterator[Receiver]:
    """Run a receiver on a loopback port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == PATH:
                receiver.take(body)
            self.send_response(200 if self.path == PATH else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
