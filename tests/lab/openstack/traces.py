# SPDX-License-Identifier: Apache-2.0
"""The spans that services send to the broker by osprofiler's driver ``messaging``."""

import contextlib
from collections.abc import Iterator

import oslo_messaging
from oslo_config import cfg

from tests.lab import runs
from tests.lab.openstack import ini
from tests.lab.openstack import rabbitmq
from tests.lab.otlp_receiver import Span

KEY = "a-key-of-the-lab"
OPTIONS: ini.Sections = {
    "profiler": {"enabled": True, "hmac_keys": KEY, "connection_string": "messaging://"}
}
"""The osprofiler options of any service."""


class Spans:
    """The received spans; an endpoint of oslo.messaging."""

    def __init__(self) -> None:
        self.found: list[Span] = []
        self.results: dict[str, str] = {}  #: by the span's ID

    def info(self, _context: object, _publisher: str, _event: str, sent: dict, _more: dict) -> None:
        """Handle a span's start or end."""
        function = sent["info"].get("function", {})
        kind, name = sent["name"].rpartition("-")[::2][::-1]
        if kind == "stop":
            self.results[sent["trace_id"]] = function.get("result", "")
            return
        span = (sent["base_id"], sent["trace_id"], sent["parent_id"], function)
        self.found.append(Span(f"{sent['project']}-{sent['service']}", name, *span))

    def parents(self, span: Span) -> list[Span]:
        """Return the spans around a span, from the nearest to the root."""
        by_id = {one.span_id: one for one in self.found}
        around = []
        while (one := by_id.get((around[-1] if around else span).parent_id)) is not None:
            around.append(one)
        return around

    def wait_for(self, trace_id: str | None, name: str, within_s: float = 60.0) -> list[Span]:
        """Return a trace's spans of one name, or all, after one of that name has ended."""

        def found() -> list[Span]:
            return [one for one in self.found if one.name == name and is_wanted(one)]

        def is_wanted(span: Span) -> bool:
            return trace_id in (None, span.trace_id)

        def has_ended() -> bool:
            return any(one.span_id in self.results for one in found())

        def others() -> str:
            return ", ".join(f"{one.service} {one.name}" for one in self.found if is_wanted(one))

        runs.wait_for(has_ended, within_s, name, others)
        return found()


@contextlib.contextmanager
def received(broker: rabbitmq.RabbitMQ) -> Iterator[Spans]:
    """Receive the spans of all services on a broker."""
    conf = cfg.ConfigOpts()
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    transport = oslo_messaging.get_notification_transport(conf, broker.url)
    spans, targets = Spans(), [oslo_messaging.Target(topic="profiler")]
    listener = oslo_messaging.get_notification_listener(
        transport, targets, [spans], executor="threading"
    )
    listener.start()
    try:
        yield spans
    finally:
        listener.stop()
        listener.wait()
        transport.cleanup()
