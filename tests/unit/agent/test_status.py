# SPDX-License-Identifier: Apache-2.0
import types

import msgspec
import pytest

from acstor_agent.control import image_status
from acstor_agent.control import status
from acstor_agent.core import health_issues
from acstor_agent.core.images import image_usage
from acstor_agent.peers import peer_network
from acstor_agent.sources import base
from acstor_agent.sources import source_client
from acstor_common.model import ids
from tests.fakes import admission
from tests.fakes import one_host

NET = peer_network.PeerNetwork(ids.HostId("h1"), admission=admission.Admission())
CHUNK = one_host.CHUNK
USE = image_usage.UsageEvidence(is_open=True, is_base=False, idle_s=7.0)


@pytest.fixture
async def host(tmp_path):
    async with one_host.one_host(tmp_path) as made:
        made.add(one_host.image_bytes(4 * CHUNK) + bytes(2 * CHUNK))
        yield made


def of_image(host):
    fetched = host.chunks.counters.fetched.get(one_host.IMAGE)
    return image_status.of_image(
        host.mirrors.get_nowait(one_host.IMAGE), fetched, 1_500_000_000, USE, None
    )


async def test_unopened_image_is_reported_without_sizes(host):
    shown = of_image(host)
    assert (shown["size_bytes"], shown["cached_bytes"], shown["touched_s"]) == (None, None, 1.5)
    assert shown["read"]["cache"] == {"requests": 0, "bytes": 0}
    assert (shown["is_used"], shown["is_open"]) == (True, True)


async def test_image_report_counts_sizes_and_bytes_by_origin(host):
    image = await host.mirrors.attach_image(one_host.IMAGE)
    await image.read_at(2 * CHUNK, 4 * CHUNK)
    await image.read_at(2 * CHUNK, CHUNK)
    shown = of_image(host)
    assert shown["size_bytes"] == 6 * CHUNK
    assert shown["chunk_bytes"] == CHUNK
    assert shown["cached_bytes"] == 2 * CHUNK
    assert {origin: counts["bytes"] for origin, counts in shown["read"].items()} == {
        "zero": 2 * CHUNK,
        "boot": 0,
        "cache": CHUNK,
        "peer": 0,
        "home": 0,
        "source": 2 * CHUNK,
    }
    assert shown["fetched"]["source"] == {"requests": 2, "bytes": 2 * CHUNK}
    assert shown["latency"]["count"] == 2 == sum(shown["latency"]["buckets"])
    exchange = status.of_exchange(host.chunks, NET)
    assert (exchange["source_bytes"], exchange["chunks_in_flight"]) == (2 * CHUNK, 0)
    assert status.of_cache(host.cache)["stored_bytes"] == 2 * CHUNK


async def test_status_can_be_encoded_as_json(host):
    await (await host.mirrors.attach_image(one_host.IMAGE)).read_at(0, CHUNK)
    exchanged = status.of_exchange(host.chunks, NET)
    picture = [of_image(host), exchanged, status.of_cache(host.cache)]
    assert msgspec.json.decode(msgspec.json.encode(picture)) == picture


def test_hanging_or_down_source_is_reported_as_a_fault(monkeypatch):
    monkeypatch.setattr(status, "time", types.SimpleNamespace(time=lambda: 1000.0))
    down = health_issues.HealthIssue("no answer within 30 s", 900.0)
    sources = [
        source_client.SourceStatus("/fine", None, base.Health(0, 0.0, 4)),
        source_client.SourceStatus("/hangs", None, base.Health(2, 70.0, 0)),
        source_client.SourceStatus("http://down/", down, base.Health(1, 99.0, 0)),
    ]
    assert status.of_faults(health_issues.HealthIssues(), sources) == {
        "source /hangs": {"why": "2 calls to it hang", "since_s": 930.0},
        "source http://down/": {"why": "no answer within 30 s", "since_s": 900.0},
    }
    assert status.of_sources(sources)["/fine"] == {
        "hanging_calls": 0,
        "hanging_for_s": 0.0,
        "missed_attempts": 4,
    }
