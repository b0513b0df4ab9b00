# SPDX-License-Identifier: Apache-2.0
"""Alerts and the dashboard, on a real Prometheus that scrapes real agents."""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.fakes import hosts
from tests.lab import local
from tests.lab import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "etc/prometheus/acstor.rules.yaml"
DASHBOARD = ROOT / "etc/grafana/acstor.json"
READY_S = 60.0

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's package prometheus"),
]


class Prometheus:
    """The API of a Prometheus server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer.

        :raises urllib.error.HTTPError: it does not take the question
        """
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


@pytest.fixture
def prometheus(tmp_path: pathlib.Path) -> Iterator[tuple[Prometheus, list[int]]]:
    """Return a server that scrapes agents at the returned ports and knows our alerts."""
    address = f"{local.LOOPBACK}:{local.unused_port()}"
    ports = [local.unused_port(), local.unused_port()]
    conf = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "acstor-agent",
                "static_configs": [{"targets": [f"{local.LOOPBACK}:{port}" for port in ports]}],
            }
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(conf))
    argv = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/tsdb",
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log, contextlib.ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(argv, stdout=log, stderr=log))
        stack.callback(server.kill)
        yield Prometheus(address), ports


def expressions_of_dashboard() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def expressions_of_alerts() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:acstor_\w+|process_\w+|up)\b", expression))


def test_each_alert_is_raised_by_its_trouble_and_by_nothing_else() -> None:
    runs.tool(["promtool", "test", "rules", ROOT / "tests/functional/alerts.yaml"])


def test_dashboard_and_alerts_ask_for_what_agents_really_tell(images, start, prometheus) -> None:
    server, ports = prometheus
    image_id = images.add(local.random_bytes(1 << 20))
    for number, port in enumerate(ports):
        agent = start(f"h{number}", metrics_listen=f"{local.LOOPBACK}:{port}")
        agent.image_path(image_id).read_bytes()
    wanted = expressions_of_dashboard() + expressions_of_alerts()
    names = set().union(*map(metric_names, wanted))
    assert len(names) > 15
    missing, health = names, {"unknown"}
    end_s = time.monotonic() + READY_S
    while (missing or "unknown" in health) and time.monotonic() < end_s:
        time.sleep(0.5)
        with contextlib.suppress(OSError):  # it is not up yet
            missing = names - set(server.ask("label/__name__/values"))
            groups = server.ask("rules")["groups"]
            health = {rule["health"] for group in groups for rule in group["rules"]}
    assert not missing
    assert health == {"ok"}
    for expression in wanted:
        server.ask("query", query=expression.replace("$instance", ".*"))


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        assert panel["title"], panel
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
