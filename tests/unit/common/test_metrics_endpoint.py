# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint, with clients that do not behave."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import prometheus_client
import pytest

from acstor_common import errors
from acstor_common import metrics_endpoint

PATIENCE_S = 60.0


@contextlib.contextmanager
def endpoint(address: str = "127.0.0.1:{port}") -> Iterator[int]:
    """Serve on a port of the loopback that is free."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Gauge("of_a_test", "A number", registry=registry).set(7)
    stop = metrics_endpoint.serve(address.format(port=port), registry, "an option")
    try:
        yield port
    finally:
        stop()


def scrape(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def test_numbers_are_shown_and_those_of_the_process() -> None:
    with endpoint() as port:
        assert "of_a_test 7.0" in scrape(port)
        assert "process_open_fds" in scrape(port)


def test_address_may_be_one_of_ipv6() -> None:
    with endpoint("[::1]:{port}") as port:
        assert "of_a_test 7.0" in scrape(port, "[::1]")


def test_address_that_is_taken_is_named_with_its_option() -> None:
    with endpoint() as port, pytest.raises(errors.Unusable, match=f"an option.*:{port}"):
        metrics_endpoint.serve(
            f"127.0.0.1:{port}", prometheus_client.CollectorRegistry(), "an option"
        )


def test_clients_that_say_nothing_take_so_many_threads_and_no_more() -> None:
    with endpoint() as port, contextlib.ExitStack() as held:
        before = threading.active_count()
        silent = [
            held.enter_context(connect(port)) for _ in range(3 * metrics_endpoint.CONNECTIONS)
        ]
        refused = 0
        for one in silent[metrics_endpoint.CONNECTIONS :]:  # they came last, and are closed
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
            refused += 1
        assert refused == 2 * metrics_endpoint.CONNECTIONS
        assert threading.active_count() - before <= metrics_endpoint.CONNECTIONS


def test_client_that_says_nothing_is_closed_after_a_while_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_endpoint._Handler, "timeout", 0.2)
    with endpoint() as port, contextlib.ExitStack() as held:
        silent = [held.enter_context(connect(port)) for _ in range(metrics_endpoint.CONNECTIONS)]
        for one in silent:
            assert one.recv(1) == b""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:  # a place is given back a moment after its connection was closed
            try:
                assert "of_a_test 7.0" in scrape(port)
            except OSError:
                assert time.monotonic() < give_up_s
                time.sleep(0.05)
            else:
                break
