# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import urllib.parse
from collections.abc import Iterator

import pytest

from acstor_common.model import ids
from acstor_decision.core import threshold
from acstor_decision.switch_loads import base
from acstor_decision.switch_loads import prometheus
from acstor_decision.switch_loads import static
from tests.fakes import prometheus_server

Load = threshold.SwitchLoad


@pytest.fixture
def server() -> Iterator[prometheus_server.PrometheusServer]:
    with prometheus_server.PrometheusServer() as running:
        yield running


def load(configure, name: str, **options) -> base.SwitchLoads:
    conf = configure()
    for option, value in options.items():
        conf.set_override(option, value, f"switch_loads_{name}")
    return base.load(name, conf)


def hosts(**places: str) -> dict[ids.HostId, base.HostLoad]:
    return {ids.HostId(host): base.HostLoad(place, 100.0) for host, place in places.items()}


@pytest.fixture
def path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the path of the file that ``static`` reads."""
    found = tmp_path / "switches.json"
    monkeypatch.setattr(static, "PATH", str(found))
    return found


def test_none_has_no_switches(configure):
    assert load(configure, "none").read_levels({}) == ()


def test_static_reads_its_file_each_time(configure, path):
    path.write_text('{"levels": [[{"traffic": 1, "capacity": 2.5}], []]}')
    loads = load(configure, "static")
    assert loads.read_levels({}) == [[Load(1, 2.5)], []]
    path.write_text('{"levels": []}')
    assert loads.read_levels({}) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"levels": [[{"traffic": "much"}]]}', None])
def test_static_names_its_file_when_it_is_invalid(configure, path, text):
    if text is not None:
        path.write_text(text)
    with pytest.raises(base.LoadsUnknown, match=r"switches\.json"):
        load(configure, "static").read_levels({})


def test_hosts_sums_the_traffic_that_leaves_each_place(configure):
    loads = load(configure, "hosts", capacity_bytes_s=[250.0, 300.0, 400.0])
    levels = loads.read_levels(hosts(a="p1/r1", b="p1/r1", c="p1/r2", d="p2/r3"))
    assert [sorted(switch.traffic for switch in level) for level in levels] == [
        [100.0, 100.0, 200.0],
        [100.0, pytest.approx(700 / 3)],  # two thirds of the traffic of a and b leave their rack
        [pytest.approx(100 / 3 * 3 + 100)],
    ]
    assert {switch.capacity for switch in levels[1]} == {300.0}


def test_hosts_without_capacities_or_hosts_has_no_loads(configure):
    assert load(configure, "hosts").read_levels(hosts(a="p1/r1")) == []
    assert load(configure, "hosts", capacity_bytes_s=[1.0]).read_levels({}) == [[]]


def test_prometheus_joins_traffic_and_capacity(configure, server):
    traffic = {("0", "e1"): 5.0, ("0", "e2"): 7.5, ("2", "root"): 95.0, ("1", "unknown"): 1.0}
    capacity = {("0", "e1"): 10.0, ("0", "e2"): 10.0, ("2", "root"): 100.0}
    server.vectors = {prometheus.TRAFFIC_QUERY: traffic, prometheus.CAPACITY_QUERY: capacity}
    loads = load(configure, "prometheus", url=server.url)
    assert loads.read_levels({}) == [[Load(5, 10), Load(7.5, 10)], [], [Load(95, 100)]]
    assert threshold.busy_levels(loads.read_levels({})) == (2,)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error"}),
        (503, {"status": "error"}),
        (200, "<html>"),
        (200, {"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}),
        (200, prometheus_server.vector({("x", "e1"): 1.0})),
        (200, prometheus_server.vector({("99", "e1"): 1.0})),
        (200, prometheus_server.vector({("0", "e1"): float("nan")})),
        (200, []),
    ],
)
def test_invalid_prometheus_response_is_an_error_with_its_address(configure, server, status, body):
    server.answer = status, body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(base.LoadsUnknown, match=urllib.parse.urlsplit(server.url).netloc):
        load(configure, "prometheus", url=server.url).read_levels({})


def test_unreachable_prometheus_is_an_error(configure):
    with pytest.raises(base.LoadsUnknown, match="refused"):
        load(configure, "prometheus", url="http://127.0.0.1:1").read_levels({})
