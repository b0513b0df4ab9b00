# SPDX-License-Identifier: Apache-2.0
"""Traces of requests, by osprofiler, OpenStack's own library.

A request is traced if its headers have a valid HMAC of a key in ``[profiler] hmac_keys``.
Otherwise spans cost a look-up and send nothing.  Spans never have error messages, tokens or SQL
parameters, because these may be secret.
"""

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from acstor_common import errors
from acstor_common.model import clocks

LOG = logging.getLogger(__name__)

DEFAULT_HMAC_KEY = "SECRET_KEY"  # osprofiler's default of ``hmac_keys``, which is public
MAX_SPANS = 100  # of one request in one process; osprofiler itself has no limit
MAX_HEADER_CHARS = 1024
SLOW_BACKEND_S = 0.5
SUSPEND_S = 60.0  # without new spans, after the backend failed or took SLOW_BACKEND_S

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Any]
Notify = Callable[[dict[str, Any]], None]


class SpanLimiter:
    """Forwards start and stop of spans to osprofiler's driver, within limits.

    A failed or slow backend suspends tracing.  Drivers need the stop of each forwarded start.
    """

    def __init__(
        self,
        notify: Notify,
        current: Callable[[], object],
        *,
        max_spans: int = MAX_SPANS,
        slow_backend_s: float = SLOW_BACKEND_S,
        clock: clocks.Clock = time,
    ) -> None:
        self._notify, self._current, self._clock = notify, current, clock
        self._max_spans, self._slow_backend_s = max_spans, slow_backend_s
        self._paused_until_s = -float("inf")
        self._local = threading.local()

    def __call__(self, info: dict[str, Any]) -> None:
        """Forward one point of a trace."""
        forwarded = self._forwarded_of_request()
        span_id = info.get("trace_id")
        if str(info.get("name")).endswith("-start"):
            if (
                self._local.spans >= self._max_spans
                or self._clock.monotonic() < self._paused_until_s
            ):
                return
            self._local.spans += 1
            forwarded.add(span_id)
        elif span_id not in forwarded:
            return
        else:
            forwarded.discard(span_id)
        self._send(info)

    def _forwarded_of_request(self) -> set[Any]:
        """Return the open spans of this thread's request, which has its own profiler."""
        owner = self._current()
        if getattr(self._local, "owner", None) is not owner:
            self._local.owner, self._local.spans, self._local.forwarded = owner, 0, set()
        forwarded: set[Any] = self._local.forwarded
        return forwarded

    def _send(self, info: dict[str, Any]) -> None:
        began_s, why = self._clock.monotonic(), ""
        try:
            self._notify(info)
        except Exception as e:  # drivers raise errors of their own libraries
            why = type(e).__name__
        took_s = self._clock.monotonic() - began_s
        if took_s >= self._slow_backend_s:
            why = why or f"one span took {took_s:.1f} s"
        if why:
            self._paused_until_s = self._clock.monotonic() + SUSPEND_S
            LOG.warning("[profiler] connection_string: %s; no traces for %g s", why, SUSPEND_S)


def enable(conf: cfg.ConfigOpts, service: str) -> bool:
    """Make this process send its spans as ``service``, if ``[profiler] enabled``; return if so.

    :raises errors.Unusable: osprofiler or its driver cannot be used, or the key is a public one
    """
    try:
        from osprofiler import opts
    except ImportError as e:
        conf.register_opt(cfg.BoolOpt("enabled", default=False), "profiler")
        if conf.profiler.enabled:
            remedy = "Install acstor with its extra tracing, or the package python3-osprofiler"
            raise errors.Unusable("[profiler] enabled", f"no library: {e}", remedy) from e
        return False
    opts.set_defaults(conf)
    if not conf.profiler.enabled:
        return False
    keys = [key.strip() for key in conf.profiler.hmac_keys.split(",")]
    if DEFAULT_HMAC_KEY in keys or not any(keys):
        why = "with no key, or osprofiler's published one, anyone could trace requests"
        raise errors.Unusable("[profiler] hmac_keys", why, "Set a random key")
    _start_driver(conf, service)
    return True


def _start_driver(conf: cfg.ConfigOpts, service: str) -> None:
    from osprofiler import notifier
    from osprofiler import profiler
    from osprofiler import requests
    from osprofiler import web
    from osprofiler.drivers import base

    host = socket.gethostname()
    try:  # not notifier.create, which logs the URL with its password, and hides errors
        driver = base.get_driver(
            conf.profiler.connection_string, project="acstor", service=service, host=host, conf=conf
        )
    except Exception as e:  # drivers raise errors of their own libraries
        why = f"osprofiler's driver cannot be used ({type(e).__name__})"
        remedy = "Is the library that the driver needs installed?"
        raise errors.Unusable("[profiler] connection_string", why, remedy) from e
    notifier.set(SpanLimiter(driver.notify, profiler.get))
    web.enable(conf.profiler.hmac_keys)
    if conf.profiler.trace_requests:
        requests.enable()
    LOG.info("requests with a key of [profiler] hmac_keys are traced")


def wrap_app(app: Wsgi, is_enabled: bool) -> Wsgi:
    """Return a WSGI application that traces requests, if :func:`enable` returned True."""
    if not is_enabled:
        return app
    from osprofiler import web

    traced: Wsgi = web.WsgiMiddleware(app)

    def choose(environ: Any, start_response: Any) -> Any:
        is_ascii = str(environ.get("HTTP_X_TRACE_HMAC", "")).isascii()  # else osprofiler fails
        return (traced if is_ascii else app)(environ, start_response)

    return choose


def trace_headers() -> dict[str, str]:
    """Return signed headers that continue this thread's trace elsewhere; empty without one."""
    if current_profiler() is None:
        return {}
    from osprofiler import web

    return dict(web.get_trace_id_headers())


@contextlib.contextmanager
def continue_trace(headers: object) -> Iterator[None]:
    """Run the block in the trace of :func:`trace_headers`; without one if they are not valid."""
    info = _verified(headers)
    if info is None:
        yield
        return
    from osprofiler import profiler

    profiler.init(info["hmac_key"], info["base_id"], info.get("parent_id"))
    try:
        yield
    finally:
        profiler.clean()


def _verified(headers: object) -> dict[str, Any] | None:
    web = sys.modules.get("osprofiler.web")
    if web is None or not isinstance(headers, Mapping):
        return None
    keys = getattr(web, "_HMAC_KEYS", None)  # set by enable
    signed = headers.get(web.X_TRACE_INFO), headers.get(web.X_TRACE_HMAC)
    if not keys or not all(
        isinstance(one, str) and one.isascii() and len(one) <= MAX_HEADER_CHARS for one in signed
    ):
        return None
    from osprofiler import _utils as signatures  # the middleware's; there is no public way

    info = signatures.signed_unpack(*signed, keys)
    if not isinstance(info, dict) or not {"base_id"} <= info.keys():
        return None
    is_text = all(isinstance(info.get(key, ""), str) for key in ("base_id", "parent_id"))
    return info if is_text else None


def current_profiler() -> Any:
    """Return osprofiler's state of this thread's traced request; None: it is not traced."""
    profiler = sys.modules.get("osprofiler.profiler")
    return None if profiler is None else profiler.get()


class Span:
    """A step of a traced request, as a context manager; does nothing without a trace.

    :param name: must not end in "-", "a", "r", "s" or "t", which osprofiler's OTLP driver cuts off
    :param attributes: details of the step; nothing secret
    """

    def __init__(self, name: str, /, **attributes: object) -> None:
        self._name, self._attributes = name, attributes
        self._results: dict[str, object] = {}
        self._profiler: Any = None

    def __enter__(self) -> "Span":
        self._profiler = current_profiler()
        if self._profiler is not None:
            function = {"name": self._name, "kwargs": _text(self._attributes)}
            self._send(self._profiler.start, self._name, {"function": function})
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._profiler is not None:
            info: dict[str, Any] = {"function": {"result": _text(self._results)}}
            if kind is not None:
                info |= {"etype": kind.__name__, "message": ""}
            self._send(self._profiler.stop, info)

    def _send(self, send: Callable[..., None], *args: Any) -> None:
        try:
            send(*args)
        except Exception as e:  # in Nova, whose driver has no SpanLimiter
            LOG.debug("%s is not in the trace: %s", self._name, type(e).__name__)

    def add_results(self, **results: object) -> None:
        """Record results of the step; nothing secret."""
        self._results |= results


def _text(attributes: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attributes.items())
