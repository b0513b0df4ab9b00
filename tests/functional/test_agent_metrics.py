# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint: its output parses and equals status."""

import json
import socket
import threading
import urllib.request

import pytest
from prometheus_client import parser

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

CHUNK = geometry.DEFAULT_CHUNK_BYTES


@pytest.fixture
def port() -> int:
    return local.unused_port()


def scrape(port: int) -> dict[tuple[str, frozenset], float]:
    """Return every sample by its name and labels."""
    with urllib.request.urlopen(f"http://{local.LOOPBACK}:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def one(samples: dict, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_endpoint_agrees_with_status(images, start, port):
    data = local.random_bytes(40 * CHUNK + 5, zero_share=0.3)
    image_id = images.add(data)
    agent = start(metrics_listen=f"{local.LOOPBACK}:{port}", metrics_by_image=True)
    for _ in range(2):
        agent.image_path(image_id).read_bytes()
    hosts.wait_written(agent)
    status, samples = agent.status(), scrape(port)
    shown = status["images"][image_id]
    for what in ("read", "fetched"):
        for origin, counts in shown[what].items():
            for unit in ("bytes", "requests"):
                name = f"acstor_{what}_{unit}_total"
                assert one(samples, name, image=image_id, origin=origin) == counts[unit]
    assert (
        one(samples, "acstor_read_duration_seconds_count", image=image_id)
        == shown["latency"]["count"]
    )
    assert one(samples, "acstor_read_duration_seconds_sum", image=image_id) == pytest.approx(
        shown["latency"]["total_s"]
    )
    endless = one(samples, "acstor_read_duration_seconds_bucket", image=image_id, le="+Inf")
    assert endless == shown["latency"]["count"] > 0
    turns = one(samples, "acstor_event_loop_lag_seconds_count")
    assert turns >= status["event_loop"]["count"] > 100
    assert 0 < status["event_loop"]["longest_s"] < status["uptime_s"]
    for name in ("source_bytes", "served_bytes", "served_chunks", "invalid_chunks", "failovers"):
        assert one(samples, f"acstor_{name}_total") == status["exchange"][name]
    for name in ("stored_bytes", "disk_bytes", "limit_bytes", "chunks"):
        assert one(samples, f"acstor_cache_{name}") == status["cache"][name] > 0
    for name in ("evictions", "corrupt_chunks", "rejected_chunks", "write_errors"):
        assert one(samples, f"acstor_cache_{name}_total") == status["cache"][name]
    assert one(samples, "acstor_ring_epoch") == status["ring"]["epoch"]
    assert one(samples, "process_start_time_seconds") > 0
    guests_bytes = sum(counts["bytes"] for counts in status["read"].values())
    assert guests_bytes >= len(data)
    assert status["fetched"]["source"]["bytes"] == status["exchange"]["source_bytes"] > 0


def test_failed_reads_are_counted(images, start, port):
    image_id = images.add(local.random_bytes(4 * CHUNK))
    images.path(image_id).write_bytes(bytes(4 * CHUNK))
    agent = start(metrics_listen=f"{local.LOOPBACK}:{port}", read_deadline_s=0.3)
    with pytest.raises(OSError, match="Input/output error"):
        agent.image_path(image_id).read_bytes()
    assert one(scrape(port), "acstor_failed_reads_total") >= 1


def test_scrapes_succeed_while_images_are_attached_and_read(images, start, port):
    agent = start(metrics_listen=f"{local.LOOPBACK}:{port}")
    pid = agent.worker_pid()
    end = threading.Event()
    failures: list[Exception] = []

    def keep_scraping() -> None:
        while not end.is_set():
            try:
                scrape(port)
            except Exception as e:
                failures.append(e)

    scrapers = [threading.Thread(target=keep_scraping) for _ in range(3)]
    for scraper in scrapers:
        scraper.start()
    try:
        for number in range(30):
            data = local.random_bytes(CHUNK, seed=number)
            assert agent.image_path(images.add(data)).read_bytes() == data
    finally:
        end.set()
        for scraper in scrapers:
            scraper.join(10)
    assert failures == []
    assert agent.status()["worker_pid"] == pid


def test_malformed_requests_do_not_harm_the_endpoint(images, start, port):
    agent = start(metrics_listen=f"{local.LOOPBACK}:{port}")
    for data in (b"\x00" * 1000, b"GET /" + b"x" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection((local.LOOPBACK, port), timeout=5) as link:
            link.sendall(data)
    assert json.loads(agent.ctl("--json", "status"))["worker_pid"] == agent.worker_pid()
    assert one(scrape(port), "acstor_ring_hosts") == 0
