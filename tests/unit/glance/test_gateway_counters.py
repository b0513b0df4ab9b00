# SPDX-License-Identifier: Apache-2.0
"""The gateway's metrics, of one process and of several that share a folder and a port."""

import contextlib
import os
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client import parser

from acstor_common import errors
from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway.readers import base
from tests.lab import local
from tests.lab import runs

STORE = {"store": "s3", "driver": "s3"}

# Arguments: an address.  It counts a finished read and an unfinished one, and serves.
PROCESS = """
import sys
from acstor_glance.gateway import gateway_metrics
counted = gateway_metrics.GatewayMetrics()
store = gateway_metrics.StoreMetrics(counted, "s3", "s3", 16)
counted.count_response(206)
store.count_start()
store.count_end(0.03)
store.count_bytes(1000)
store.count_start()
counted.serve(sys.argv[1])
print("serves", flush=True)
sys.stdin.read()
"""


def scrape(address):
    """Return the samples, by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name.removeprefix("acstor_gateway_"), *sorted(sample.labels.items())): (
                sample.value
            )
            for family in families
            for sample in family.samples
        }


def value(samples, name, **labels):
    return samples.get((name, *sorted(labels.items())))


@pytest.fixture
def address():
    return f"{local.LOOPBACK}:{local.unused_port()}"


@pytest.fixture
def start(tmp_path, address):
    """Return a function that starts a process of the gateway."""
    with contextlib.ExitStack() as stack:

        def begin():
            process = subprocess.Popen(
                [sys.executable, "-c", PROCESS, address],
                env=os.environ
                | {gateway_metrics.FOLDER_VARIABLE: str(tmp_path / "made" / "numbers")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout.readline() == b"serves\n"
            return process

        yield begin


def test_any_process_reports_the_metrics_of_all(start, address):
    for _ in range(3):
        start()
    for _ in range(20):  # the kernel chooses any socket of the port
        samples = scrape(address)
        assert value(samples, "requests_total", status="206") == 3
        assert value(samples, "read_bytes_total", **STORE) == 3000
        assert value(samples, "reads_in_flight", **STORE) == 3
        assert value(samples, "reads_limit", **STORE) == 48
        assert value(samples, "read_duration_seconds_bucket", **STORE, le="0.02") == 0
        assert value(samples, "read_duration_seconds_bucket", **STORE, le="0.05") == 3
        assert not any(name.startswith("process_") for name, *_ in samples)  # of which process?


def test_ended_process_keeps_its_counts_without_reads_in_flight(start, address):
    first, second = start(), start()
    second.kill()
    second.wait()
    runs.wait_for(lambda: answers(address), 10, "the port of the one that is left", lambda: "")
    for _ in range(5):
        samples = scrape(address)
        assert value(samples, "requests_total", status="206") == 2
        assert value(samples, "reads_in_flight", **STORE) == 1
        assert value(samples, "reads_limit", **STORE) == 16
    assert first.poll() is None


def answers(address):
    with contextlib.suppress(OSError):
        return bool(scrape(address))
    return False


def test_second_process_without_a_shared_folder_is_refused(address, monkeypatch):
    monkeypatch.delenv(gateway_metrics.FOLDER_VARIABLE, raising=False)
    one = gateway_metrics.GatewayMetrics()
    one.count_response(409)
    stop = one.serve(address)
    try:
        samples = scrape(address)
        assert value(samples, "requests_total", status="409") == 1
        assert value(samples, "requests_total", status="502") == 0  # shown before the first
        assert value(samples, "service_errors_total", service="glance") == 0
        assert any(name.startswith("process_") for name, *_ in samples)
        with pytest.raises(errors.Unusable, match="metrics_listen"):
            gateway_metrics.GatewayMetrics().serve(address)
    finally:
        stop()


def test_folder_that_cannot_be_created_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(gateway_metrics.FOLDER_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(errors.Unusable, match="PROMETHEUS_MULTIPROC_DIR"):
        gateway_metrics.GatewayMetrics()


def test_port_of_another_program_is_not_shared(start, address):
    start()
    with pytest.raises(errors.Unusable, match="metrics_listen"):
        gateway_metrics.GatewayMetrics().serve(address)


def test_every_store_fault_has_a_counter():
    kinds = {base.StoreFault, *base.StoreFault.__subclasses__()}
    assert {kind.fault for kind in kinds} | {"full", "late"} == set(gateway_metrics.FAULTS)
