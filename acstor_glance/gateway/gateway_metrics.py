# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the gateway; ``doc/source/admin/gateway.rst`` explains some.

All processes of the WSGI server write to files in ``PROMETHEUS_MULTIPROC_DIR`` (prometheus-client's
multiprocess mode) and listen at the same address (SO_REUSEPORT); any of them answers for all.
Clients must not choose label values.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator

import prometheus_client
from prometheus_client import metrics_core
from prometheus_client import multiprocess

from acstor_common import errors
from acstor_common.service import metrics_endpoint

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
OPTION = "[acstor_gateway] metrics_listen"
OTHER = "other"  # store label for locations without a known store
STORE_LABELS = ("store", "driver")
FAULTS = (
    "absent",
    "credentials",
    "full",
    "late",
    "not_read",
    "other_bytes",
    "unreachable",
)
SERVICES = ("glance", "keystone")
STATUSES = (200, 206, 400, 401, 403, 404, 405, 409, 411, 413, 416, 500, 502, 503, 504)
"""Labels created at start, so that alerts see each counter rise from 0."""
OUTCOMES = ("done", "refused", "busy", "client", "base", "glance", "fault")
FLATTEN_KINDS = ("base", "delta", "image")
"""Bytes read of backing images and deltas, and bytes of results."""
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class GatewayMetrics:
    """The metrics of this process; raises errors.Unusable."""

    def __init__(self) -> None:
        _make_folder()
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = self._counter(
            "acstor_gateway_requests", "Requests, by HTTP status", ["status"]
        )
        self._service_faults = self._counter(
            "acstor_gateway_service_errors",
            "Requests that failed because a service did not answer, by service",
            ["service"],
        )
        self.store_faults = self._counter(
            "acstor_gateway_store_errors",
            "Reads that failed at a store, by error",
            [*STORE_LABELS, "error"],
        )
        self.read_bytes = self._counter(
            "acstor_gateway_read_bytes", "Bytes read from stores", STORE_LABELS
        )
        self.read_seconds = prometheus_client.Histogram(
            "acstor_gateway_read_duration_seconds",
            "Duration of reads from stores, without the time in the queue",
            STORE_LABELS,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.reads_in_flight = self._gauge(
            "acstor_gateway_reads_in_flight", "Reads from stores in progress"
        )
        self.reads_limit = self._gauge(
            "acstor_gateway_reads_limit", "Limit of concurrent reads from a store"
        )
        self._add_flatten_jobs()
        for status in STATUSES:
            self._requests.labels(str(status))
        for service in SERVICES:
            self._service_faults.labels(service)

    def _add_flatten_jobs(self) -> None:
        self._flatten_jobs = self._counter(
            "acstor_gateway_flatten_jobs",
            "Flattened images, made from a backing image and a delta, by outcome",
            ["outcome"],
        )
        self._flatten_bytes = self._counter(
            "acstor_gateway_flatten_bytes",
            "Bytes read and written by flatten jobs, by kind",
            ["kind"],
        )
        self.flatten_jobs_in_flight = self._gauge(
            "acstor_gateway_flatten_jobs_in_flight", "Flatten jobs in progress", ()
        )
        self.flatten_jobs_limit = self._gauge(
            "acstor_gateway_flatten_jobs_limit", "Limit of concurrent flatten jobs", ()
        )
        for outcome in OUTCOMES:
            self._flatten_jobs.labels(outcome)
        for part in FLATTEN_KINDS:
            self._flatten_bytes.labels(part)

    def count_response(self, status: int) -> None:
        """Count an answer."""
        self._requests.labels(str(status)).inc()

    def count_service_fault(self, service: str) -> None:
        """Count a request that failed because one of SERVICES did not answer."""
        self._service_faults.labels(service).inc()

    def count_job(self, outcome: str, **of_bytes: int) -> None:
        """Count a finished job by one of OUTCOMES; bytes are by FLATTEN_KINDS."""
        self._flatten_jobs.labels(outcome).inc()
        for part, count_bytes in of_bytes.items():
            self._flatten_bytes.labels(part).inc(count_bytes)

    def serve(self, address: str) -> Callable[[], None]:
        """Start the Prometheus endpoint in a thread; return a function that stops it."""
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            return metrics_endpoint.serve(address, self.registry, OPTION)
        shown = prometheus_client.CollectorRegistry()
        shown.register(_AllProcesses(pathlib.Path(folder)))
        return metrics_endpoint.serve(address, shown, OPTION, is_shared=True)

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> prometheus_client.Counter:
        return prometheus_client.Counter(name, text, list(labels), registry=self.registry)

    def _gauge(
        self, name: str, text: str, labels: Iterable[str] = STORE_LABELS
    ) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(
            name, text, list(labels), registry=self.registry, multiprocess_mode="livesum"
        )


class StoreMetrics:
    """The metrics of one store; ``reads`` limits concurrent reads per process."""

    def __init__(self, counters: GatewayMetrics, store: str, driver: str, reads: int = 0) -> None:
        self._faults = {
            fault: counters.store_faults.labels(store, driver, fault) for fault in FAULTS
        }
        self._bytes = counters.read_bytes.labels(store, driver)
        self._seconds = counters.read_seconds.labels(store, driver)
        self._in_flight = counters.reads_in_flight.labels(store, driver)
        counters.reads_limit.labels(store, driver).set(reads)

    def count_start(self) -> None:
        """Count the start of a read."""
        self._in_flight.inc()

    def count_end(self, seconds: float) -> None:
        """Count the end of a read."""
        self._in_flight.dec()
        self._seconds.observe(seconds)

    def count_bytes(self, count_bytes: int) -> None:
        """Count bytes read."""
        self._bytes.inc(count_bytes)

    def count_fault(self, fault: str) -> None:
        """Count one of FAULTS."""
        self._faults[fault].inc()


class _AllProcesses:
    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._files = multiprocess.MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[metrics_core.Metric]:
        """Yield the sums, without gauges of processes that have ended."""
        for file in self._folder.glob("gauge_live*.db"):
            pid = file.stem.rpartition("_")[2]
            if pid.isdecimal() and not _is_running(int(pid)):
                with contextlib.suppress(FileNotFoundError):  # another process was scraped too
                    multiprocess.mark_process_dead(int(pid), str(self._folder))  # type: ignore[no-untyped-call]
        yield from self._files.collect()  # type: ignore[no-untyped-call]


def _make_folder() -> None:
    if folder := os.environ.get(FOLDER_VARIABLE):
        try:
            pathlib.Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise errors.Unusable(FOLDER_VARIABLE, f"{folder}: {error.strerror}") from error


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
