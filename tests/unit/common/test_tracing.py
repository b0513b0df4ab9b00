# SPDX-License-Identifier: Apache-2.0
"""Tracing of requests: HMAC check, spans sent, and failing backends."""

import sys
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator

import oslo_messaging
import pytest
from opentelemetry import trace
from oslo_config import cfg
from osprofiler import _utils as signatures
from osprofiler import notifier
from osprofiler import opts
from osprofiler import profiler
from osprofiler import web
from werkzeug import test

from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.service import tracing
from acstor_common.wire import message_bus
from tests.fakes import manual_clock
from tests.lab import otlp_receiver

KEY, OTHER_KEY = "b0a7c0ffee", "5eed5eed"
BASE_ID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Disable tracing in this process after a test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(web, "_ENABLED", None)
        patched.setattr(web, "_HMAC_KEYS", None)
        before = notifier.get()
        yield
        notifier.set(before)
        profiler.clean()


@pytest.fixture(scope="module")
def receiver() -> Iterator[otlp_receiver.Receiver]:
    """Return a receiver; OpenTelemetry accepts one per process."""
    with otlp_receiver.running() as made:
        yield made


def configured(**options: object) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    for group, options_of_group in opts.list_opts():
        common_conf.register(conf, cfg.OptGroup(group), options_of_group)
    for name, value in options.items():
        conf.set_override(name, value, "profiler")
    return conf


@pytest.fixture(scope="module")
def driver(receiver: otlp_receiver.Receiver) -> Callable[[dict[str, object]], None]:
    """Return osprofiler's driver as :func:`tracing.enable` starts it, once per process."""
    keys = f"{OTHER_KEY}x, {KEY}"
    conf = configured(enabled=True, hmac_keys=keys, connection_string=receiver.url)
    assert tracing.enable(conf, "lighthouse")
    return notifier.get()


@pytest.fixture
def traced(driver, receiver: otlp_receiver.Receiver) -> otlp_receiver.Receiver:
    notifier.set(driver)
    web.enable(KEY)
    receiver.spans.clear()
    return receiver


def signed(key: str = KEY, **info: object) -> dict[str, str]:
    packed, mac = signatures.signed_pack({"base_id": BASE_ID, "parent_id": BASE_ID, **info}, key)
    return {web.X_TRACE_INFO: packed.decode(), web.X_TRACE_HMAC: mac}


def received(receiver: otlp_receiver.Receiver) -> list[otlp_receiver.Span]:
    trace.get_tracer_provider().force_flush()
    return receiver.spans


def lamp(environ, start_response):
    """A WSGI application with nested spans; the inner one fails."""
    with tracing.Span("acstor_outside", image="i1") as outer:
        try:
            with tracing.Span("acstor_inside"):
                raise ValueError("the password is hunter2")
        except ValueError:
            outer.add_results(bytes=7)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"lit"]


def test_request_with_a_valid_hmac_is_traced_with_its_steps(traced):
    answer = test.Client(tracing.wrap_app(lamp, True)).get("/lamp?a=b", headers=signed())
    assert answer.text == "lit"
    inside, outside, request = received(traced)
    assert {one.trace_id for one in (inside, outside, request)} == {uuid.UUID(BASE_ID).hex}
    assert {one.service for one in (inside, outside, request)} == {"acstor-lighthouse"}
    assert (inside.name, outside.name, request.name) == (
        "acstor_inside",
        "acstor_outside",
        "WSGI_GET_/lamp",
    )
    assert inside.parent_id == outside.span_id
    assert outside.parent_id == request.span_id
    assert outside.attributes["kwargs"] == "image=i1"
    assert outside.attributes["result"] == "bytes=7"
    assert "hunter2" not in str(traced.spans)
    assert tracing.current_profiler() is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed(OTHER_KEY),
        {**signed(), web.X_TRACE_HMAC: "0" * 40},
        {**signed(), web.X_TRACE_HMAC: "é" * 40},
        {**signed(), web.X_TRACE_INFO: signed(user="root")[web.X_TRACE_INFO]},
        signed(user="root"),
    ],
)
def test_request_without_a_valid_hmac_is_not_traced(traced, headers):
    answer = test.Client(tracing.wrap_app(lamp, True)).get("/lamp", headers=headers)
    assert answer.text == "lit"
    assert received(traced) == []


def test_message_continues_the_trace_of_its_sender(traced):
    cfg.CONF([], project="acstor", default_config_files=[])
    transport = message_bus.open_transport(
        cfg.CONF, lambda conf: oslo_messaging.get_rpc_transport(conf, "kombu+memory:////")
    )
    delivered = threading.Semaphore(0)
    endpoint = message_bus.Endpoint({"lit": lambda _: delivered.release()})
    target = oslo_messaging.Target(topic="traced-lighthouses", server="h1")
    served = message_bus.serve(transport, target, endpoint, threading.Event())
    try:
        client = oslo_messaging.get_rpc_client(transport, target)
        with tracing.continue_trace(signed()):
            client.cast(tracing.trace_headers(), "lit", payload=1)
        for context in ({}, signed(OTHER_KEY), {web.X_TRACE_INFO: 7, web.X_TRACE_HMAC: "0"}):
            client.cast(context, "lit", payload=1)
        assert all(delivered.acquire(timeout=30) for _ in range(4))
    finally:
        served.close()
        transport.cleanup()
    [message] = received(traced)
    assert (message.name, message.attributes["kwargs"]) == ("acstor_message", "method=lit")
    assert message.trace_id == uuid.UUID(BASE_ID).hex


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "text",
        {},
        {web.X_TRACE_INFO: "x" * 2000, web.X_TRACE_HMAC: "0" * 40},
        {**signed(), web.X_TRACE_HMAC: "é" * 40},
        signed(base_id=["a list"]),
        signed(parent_id=7),
    ],
)
def test_malformed_trace_headers_are_ignored(traced, headers):
    with tracing.continue_trace(headers):
        assert tracing.current_profiler() is None
        assert tracing.trace_headers() == {}


def test_nothing_is_traced_by_default():
    app = tracing.wrap_app(lamp, tracing.enable(configured(), "lighthouse"))
    assert app is lamp
    with tracing.continue_trace(signed()):
        assert tracing.current_profiler() is None


def test_tracing_without_osprofiler_is_off_and_enabling_it_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "osprofiler", None)
    conf = cfg.ConfigOpts()
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    assert not tracing.enable(conf, "lighthouse")
    conf.set_override("enabled", True, "profiler")
    with pytest.raises(errors.Unusable, match="extra tracing"):
        tracing.enable(conf, "lighthouse")


@pytest.mark.parametrize("keys", ["SECRET_KEY", "", " , ", f"{KEY},SECRET_KEY"])
def test_default_or_empty_hmac_key_is_refused(keys, receiver):
    conf = configured(enabled=True, hmac_keys=keys, connection_string=receiver.url)
    with pytest.raises(errors.Unusable, match="hmac_keys"):
        tracing.enable(conf, "lighthouse")


def test_unusable_driver_is_refused_without_its_password():
    conf = configured(enabled=True, hmac_keys=KEY, connection_string="gopher://u:hunter2@h")
    with pytest.raises(errors.Unusable, match="connection_string") as refused:
        tracing.enable(conf, "lighthouse")
    assert "hunter2" not in str(refused.value)


class Backend:
    """A driver that is slow or fails."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.failure: Exception | None = None
        self.took_s = self.now_s = 0.0

    def notify(self, info: dict[str, str]) -> None:
        self.points.append(info["name"])
        self.now_s += self.took_s
        if self.failure:
            raise self.failure


def limiter(backend: Backend, request: object, max_spans: int = 3) -> tracing.SpanLimiter:
    return tracing.SpanLimiter(
        backend.notify,
        lambda: request,
        max_spans=max_spans,
        clock=manual_clock.FunctionClock(lambda: backend.now_s),
    )


def test_spans_of_a_request_are_limited_and_balanced():
    backend, request = Backend(), ["first"]
    made = tracing.SpanLimiter(backend.notify, lambda: request[0], max_spans=3)
    for name in ("first", "second"):
        request[0] = name
        made({"name": "outer-start", "trace_id": "0"})
        for number in range(1, 10):
            made({"name": "inner-start", "trace_id": str(number)})
            made({"name": "inner-stop", "trace_id": str(number)})
        made({"name": "outer-stop", "trace_id": "0"})
    assert backend.points == 2 * ["outer-start", *2 * ["inner-start", "inner-stop"], "outer-stop"]


@pytest.mark.expect_log("no traces for 60 s")
@pytest.mark.parametrize("failure", [OSError("the password is hunter2"), None])
def test_failing_or_slow_backend_is_paused(failure, watched_log):
    backend = Backend()
    backend.failure, backend.took_s = failure, 0.0 if failure else 2.0
    made = limiter(backend, "request")
    made({"name": "outer-start", "trace_id": "0"})
    backend.failure, backend.took_s = None, 0.0
    made({"name": "inner-start", "trace_id": "1"})
    made({"name": "inner-stop", "trace_id": "1"})
    made({"name": "outer-stop", "trace_id": "0"})
    assert backend.points == ["outer-start", "outer-stop"]
    assert "hunter2" not in str(watched_log.messages)
    backend.now_s += 61.0
    made({"name": "again-start", "trace_id": "2"})
    assert backend.points[-1] == "again-start"


def test_step_continues_if_its_span_cannot_be_sent(traced):
    def fail(info: dict[str, object]) -> None:
        raise OSError("no broker")

    notifier.set(fail)  # like Nova's own driver, which has no limiter
    with tracing.continue_trace(signed()), tracing.Span("acstor_step_one") as span:
        span.add_results(bytes=1)
    assert tracing.current_profiler() is None
