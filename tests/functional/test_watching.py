# SPDX-License-Identifier: Apache-2.0
"""Alerts and the dashboard, on a real Prometheus that scrapes real agents; findings of vaults."""

import contextlib
import json
import pathlib
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import prometheus_client
import pytest
import yaml

from acstor_checkpoint import metrics as checkpoint_metrics
from acstor_checkpoint.holders import holder_group
from acstor_checkpoint.schedule import failures
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from acstor_decision import conf as decision_conf
from acstor_decision.core import cloud_state
from acstor_decision.core import health_checks
from acstor_decision.db import database
from acstor_glance import metrics
from acstor_glance.gateway import gateway_metrics
from tests.fakes import hosts
from tests.lab import decision
from tests.lab import documents
from tests.lab import local
from tests.lab import prometheus as prometheus_
from tests.lab import runs
from tests.lab import tuned
from tests.lab import vaults
from tests.lab.openstack import rabbitmq

DASHBOARD = prometheus_.ROOT / "etc/grafana/acstor.json"
READY_S = 60.0

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's package prometheus"),
]


@pytest.fixture
def prometheus(tmp_path: pathlib.Path) -> Iterator[tuple[prometheus_.Prometheus, list[int]]]:
    """Return a server with our alerts that scrapes two agents and a decision service."""
    ports = [local.unused_port() for _ in range(3)]
    first, second, third = (f"{local.LOOPBACK}:{port}" for port in ports)
    targets = {
        "acstor-agent": {"h0": first, "h1": second},
        "acstor-decision": {"one": third},
    }
    with prometheus_.running(tmp_path / "prometheus", targets) as server:
        yield server, ports


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard without its rows."""
    every = json.loads(DASHBOARD.read_text())["panels"]
    assert every[0]["type"] == "row"
    return [panel for panel in every if panel["type"] != "row"]


def expressions_of_dashboard() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(prometheus_.RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions_of_alerts() -> list[str]:
    return [rule["expr"] for rule in alerts()]


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:acstor_\w+|process_\w+|up)\b", expression))


def names_of_the_gateway() -> set[str]:
    """Metrics of a gateway from the start, before any read or error."""
    reported = gateway_metrics.GatewayMetrics()
    gateway_metrics.StoreMetrics(reported, "s3", "s3")
    return {sample.name for family in reported.registry.collect() for sample in family.samples}


def names_of_a_vault(folder: pathlib.Path) -> set[str]:
    """Metrics of a checkpoint daemon's vault from the start."""
    folder.mkdir()
    kept = vault_store.VaultStore(folder, quota.VaultLimits(0, 0, 0), ids.HostId("h1"))
    reported = prometheus_client.CollectorRegistry()
    reported.register(checkpoint_metrics.VaultCollector(kept))
    kept.close()
    return {sample.name for family in reported.collect() for sample in family.samples}


def test_each_alert_fires_only_on_its_fault() -> None:
    runs.tool(["promtool", "test", "rules", prometheus_.ROOT / "tests/functional/alerts.yaml"])


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[str]:
    if not pathlib.Path("/usr/sbin/rabbitmq-server").exists():
        pytest.skip("needs Debian's package rabbitmq-server")
    made = rabbitmq.RabbitMQ(tmp_path / "broker")
    try:
        made.start()
        made.wait_ready()
        yield made.url
    finally:
        made.kill()


@pytest.fixture
def service(tmp_path: pathlib.Path, broker: str, prometheus: Any) -> Iterator[decision.Instance]:
    database = f"sqlite:///{tmp_path}/decision.sqlite"
    listen = f"{local.LOOPBACK}:{prometheus[1][2]}"
    with decision.Instance(tmp_path, "one", broker, database, metrics_listen=listen) as made:
        yield made


class NoCheckpoints:
    """A host without checkpoints, because a vault is too slow."""

    def __init__(self) -> None:
        self.failures = failures.Failures()
        slow = holder_group.HolderSlow(ids.HostId("h2"), is_stalled=True)
        self.failures.count_failure(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), slow)
        self.failures.note_wait(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), "h2")

    def overdue_s(self) -> dict[ids.ImageId, float]:
        return {}

    running_captures_s = overdue_s


def names_of_checkpoints() -> set[str]:
    """Return the metrics of the checkpoint daemon about the servers of its host."""
    reported = checkpoint_metrics.CheckpointCollector(NoCheckpoints()).collect()
    return {sample.name for family in reported for sample in family.samples}


def test_dashboard_and_alerts_use_only_exported_metrics(
    images, start, prometheus, broker, service, tmp_path
) -> None:
    server, ports = prometheus
    image_id = images.add(local.random_bytes(1 << 20))
    for number, port in enumerate(ports[:2]):
        identity = tmp_path / f"h{number}" / "agent" / "state" / "identity"
        decision.manage(
            service.config_file, "authority", "issue", f"h{number}", "--out", str(identity)
        )
        agent = start(
            f"h{number}",
            sections={"DEFAULT": {"transport_url": broker}},
            metrics_listen=f"{local.LOOPBACK}:{port}",
            constants={tuned.COLLECTION_S: decision.COLLECTION_S},
            traffic_interfaces="lo",
            keep_images="host",
        )
        agent.image_path(image_id).read_bytes()
    wanted = expressions_of_dashboard() + expressions_of_alerts()
    names = set().union(*map(metric_names, wanted))
    assert len(names) > 25
    reported = list(metrics.ListenerMetrics().registry.collect())
    names -= {family.name for family in reported} | {f"{family.name}_total" for family in reported}
    names -= names_of_the_gateway() | names_of_checkpoints()
    names -= names_of_a_vault(tmp_path / "vault")
    names.remove("acstor_fault_start_timestamp_seconds")  # absent without a fault
    names.remove("acstor_decision_host_silent")  # absent while all hosts report
    names.remove("acstor_loop_failures_total")  # absent without failed loops
    names -= {  # no server has a checkpoint
        "acstor_decision_checkpoint_deadline_timestamp_seconds",
        "acstor_decision_checkpoint_interval_seconds",
        "acstor_decision_checkpoint_timestamp_seconds",
    }
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


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[database.Database]:
    conf = decision_conf.load([])
    conf.set_override("connection", f"sqlite:///{tmp_path}/decision.sqlite", "database")
    made = database.Database(conf)
    yield made
    made.close()


def test_full_vault_of_a_host_without_libvirt_is_a_finding_until_resolved(
    broker: str, store: database.Database, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("libvirt")
    at_once = {tuned.CHECKPOINT_FAILURES_S: 0.5}
    connection = f"sqlite:///{tmp_path}/decision.sqlite"
    with (
        decision.Instance(tmp_path, "one", broker, connection, constants=at_once) as service,
        contextlib.ExitStack() as stack,
    ):
        for host in ("h1", "h2"):
            identity = tmp_path / host / "identity"
            decision.manage(service.config_file, "authority", "issue", host, "--out", str(identity))
        h2 = vaults.Vault(tmp_path / "h2", "h2")
        h1 = vaults.Vault(
            tmp_path / "h1",
            "h1",
            broker=broker,
            constants={
                tuned.CHECKPOINT_INTERVALS_AGAIN_S: 1.0,  # no Nova for the intervals
                tuned.SCRATCH_DIR: str(tmp_path / "s"),
            },
            vault_limit_bytes=0,
            state_dir=tmp_path / "h1" / "state",
            libvirt_uri=f"qemu+unix:///system?socket={tmp_path}/none",
        )
        stack.callback(h1.close)
        h1.start()
        disk = object_names.VaultDisk(h2.name, ids.ImageId("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"))
        with h2.client(h1) as client, pytest.raises(errors.VaultFull):
            client.put(disk, [object_names.SealedChunk(bytes(32), b"x")])

        def findings() -> list[str]:
            failures = store.checkpoint_failures(time.time())
            seen = cloud_state.CloudState(
                now_s=0.0,
                epoch=0,
                published_ago_s=None,
                hosts=(),
                images=(),
                unfinished=(),
                checkpoints=(),
                checkpoint_failures=failures,
            )
            found = [
                one for one in health_checks.find_problems(seen) if one.code == "checkpoint-failed"
            ]
            return [subject for one in found for subject in one.subjects]

        def is_found() -> bool:
            return findings() == ["vault on h1: full"]

        runs.wait_for(is_found, READY_S, "the finding", lambda: service.log() + h1.log())
        h1.kill()
        h1.start()  # no refusal since then
        runs.wait_for(lambda: findings() == [], READY_S, "no finding", service.log)


def test_every_panel_has_a_title_a_description_and_a_unit() -> None:
    for panel in panels():
        assert panel["title"], panel
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_panels_do_not_overlap() -> None:
    cells = [
        (at["x"] + x, at["y"] + y)
        for at in (panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"])
        for x in range(at["w"])
        for y in range(at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_dashboard_shows_all_metrics_of_critical_alerts() -> None:
    shown = set().union(*map(metric_names, expressions_of_dashboard()))
    critical = [rule["expr"] for rule in alerts() if rule["labels"]["severity"] == "critical"]
    assert len(critical) > 10
    asked = set().union(*map(metric_names, critical))
    shown |= {name.replace("_bucket", "_count") for name in shown}  # of one histogram
    assert asked - shown == set()


def test_documented_base_url_prefixes_each_runbook(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "etc/prometheus"
    folder.mkdir(parents=True)
    shutil.copy(prometheus_.RULES, folder)
    base = "https://docs.example.org/acstor"
    for line in documents.section("admin/monitoring.rst", "Metrics, alerts and dashboard"):
        runs.tool(["sh", "-c", f"cd {tmp_path} && {line.replace('BASE', base)}"])
    groups = yaml.safe_load((tmp_path / prometheus_.RULES.name).read_text())["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert urls == [f"{base}/{rule['annotations']['runbook_url']}" for rule in alerts()]
