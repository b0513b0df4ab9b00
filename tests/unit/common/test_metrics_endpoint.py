# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint with slow, silent and malformed clients."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures

import prometheus_client
import pytest
from prometheus_client import core
from prometheus_client import registry

from acstor_common import errors
from acstor_common.service import metrics_endpoint
from acstor_common.service import version
from tests.fakes import manual_clock

PATIENCE_S = 60.0


@contextlib.contextmanager
def endpoint(
    address: str = "127.0.0.1:{port}", deadline_s: float = metrics_endpoint.DEADLINE_S
) -> Iterator[int]:
    """Serve on a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    own = prometheus_client.CollectorRegistry()
    prometheus_client.Gauge("of_a_test", "A number", registry=own).set(7)
    where = address.format(port=port)
    stop = metrics_endpoint.serve(where, own, "an option", deadline_s=deadline_s)
    try:
        yield port
    finally:
        stop()


def scrape(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def test_own_and_process_metrics_are_exported() -> None:
    with endpoint() as port:
        assert "of_a_test 7.0" in scrape(port)
        assert "process_open_fds" in scrape(port)


def test_exported_version_is_the_installed_one() -> None:
    with endpoint() as port:
        assert f'acstor_build_info{{version="{version.installed()}"}} 1.0' in scrape(port)


def test_endpoint_listens_on_ipv6() -> None:
    with endpoint("[::1]:{port}") as port:
        assert "of_a_test 7.0" in scrape(port, "[::1]")


def test_address_in_use_is_named_with_its_option() -> None:
    with endpoint() as port, pytest.raises(errors.Unusable, match=f"an option.*:{port}"):
        metrics_endpoint.serve(
            f"127.0.0.1:{port}", prometheus_client.CollectorRegistry(), "an option"
        )


def test_silent_clients_are_limited_and_the_oldest_displaced() -> None:
    with endpoint() as port, contextlib.ExitStack() as held:
        before = threading.active_count()
        silent = [
            held.enter_context(connect(port)) for _ in range(3 * metrics_endpoint.CONNECTIONS)
        ]
        for one in silent[: 2 * metrics_endpoint.CONNECTIONS]:
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        assert threading.active_count() - before <= metrics_endpoint.CONNECTIONS + 1
        assert "of_a_test 7.0" in scrape(port)


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.0\r\n"])
def test_unfinished_request_is_closed_at_the_deadline(said: bytes) -> None:
    with endpoint(deadline_s=0.2) as port, connect(port) as slow:
        slow.sendall(said)
        began_s = time.monotonic()
        assert slow.recv(1) == b""
        assert time.monotonic() - began_s < 5.0
        assert "of_a_test 7.0" in scrape(port)


def test_long_or_unsupported_request_is_refused() -> None:
    with endpoint() as port, connect(port) as long:
        with contextlib.suppress(ConnectionError):
            long.sendall(b"GET /" + b"x" * metrics_endpoint.REQUEST_BYTES)
            assert long.recv(1) == b""
        with connect(port) as other:
            other.sendall(b"POST /metrics HTTP/1.0\r\n\r\n")
            assert other.recv(100).startswith(b"HTTP/1.0 405 ")
        assert "of_a_test 7.0" in scrape(port)


class Collected(registry.Collector):
    """A slow collector that counts its calls."""

    def __init__(self) -> None:
        self.times, self.at_once, self.most = 0, 0, 0

    def collect(self) -> Iterator[core.Metric]:
        self.times += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        time.sleep(0.01)
        self.at_once -= 1
        yield core.GaugeMetricFamily("times", "How often it was asked", self.times)


def test_metrics_are_collected_once_a_second_by_one_thread() -> None:
    own, collected, now_s = prometheus_client.CollectorRegistry(), Collected(), [100.0]
    own.register(collected)
    answer = metrics_endpoint.MetricsApp(own, manual_clock.FunctionClock(lambda: now_s[0]))
    asked = collected.times  # by register

    def shown() -> bytes:
        return b"".join(answer({"REQUEST_METHOD": "GET"}, lambda status, headers: None))

    with futures.ThreadPoolExecutor(16) as pool:
        assert len({found.result() for found in [pool.submit(shown) for _ in range(64)]}) == 1
    assert (collected.times, collected.most) == (asked + 1, 1)
    now_s[0] += metrics_endpoint.KEPT_S - 0.001
    shown()
    assert collected.times == asked + 1
    now_s[0] += 0.001
    shown()
    assert collected.times == asked + 2


WITHOUT_DESCRIPTORS = """
import resource, socket, socketserver, sys
import prometheus_client
from acstor_common.service import metrics_endpoint

accepts, accept, held = [], socketserver.TCPServer.get_request, []

def counted(server):
    accepts.append(server)
    return accept(server)

socketserver.TCPServer.get_request = counted
metrics_endpoint.serve(sys.argv[1], prometheus_client.CollectorRegistry(), "an option")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    while True:
        held.append(socket.socket())
except OSError:
    print("none left", flush=True)
sys.stdin.readline()
print(len(accepts), flush=True)
for sock in held:
    sock.close()
sys.stdin.readline()
"""


def test_endpoint_without_descriptors_pauses_and_answers_once_it_has_some() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [sys.executable, "-c", WITHOUT_DESCRIPTORS, f"127.0.0.1:{port}"]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        assert process.stdout.readline() == "none left\n"
        with connect(port) as waiting:
            waiting.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            time.sleep(2.0)
            process.stdin.write("\n")
            assert 1 <= int(process.stdout.readline()) <= 2.0 / metrics_endpoint.FAILED_ACCEPT_S + 2
            assert waiting.recv(12) == b"HTTP/1.0 200"
        process.stdin.write("\n")
