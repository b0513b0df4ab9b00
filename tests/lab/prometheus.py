# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus server with acstor's alerts.

Alerts wait for minutes; :func:`hurried` shortens them to seconds.
"""

import contextlib
import json
import pathlib
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import yaml

from tests.lab import local

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "etc/prometheus/acstor.rules.yaml"
_RANGE = re.compile(r"\[\d+[smh]\]")

Targets = Mapping[str, Mapping[str, str]]
"""Addresses by instance, by job."""


class Prometheus:
    """The API of a Prometheus server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of a response.

        :raises urllib.error.HTTPError: it refuses the query
        """
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the firing alerts: ``labels`` and ``annotations`` of each."""
        found: list[dict[str, Any]] = self.ask("alerts")["alerts"]
        return [alert for alert in found if alert["state"] == "firing"]


@contextlib.contextmanager
def running(
    folder: pathlib.Path, targets: Targets, rules: pathlib.Path = RULES, every: str = "1s"
) -> Iterator[Prometheus]:
    """Run a server for the block.

    :param rules: its alerts
    :param every: its scrape and evaluation interval
    """
    address = f"{local.LOOPBACK}:{local.unused_port()}"
    conf = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [at], "labels": {"instance": name}} for name, at in named.items()
                ],
            }
            for job, named in targets.items()
        ],
    }
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(conf))
    argv = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log, contextlib.ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(argv, stdout=log, stderr=log))
        stack.callback(server.kill)
        yield Prometheus(address)


def hurried(folder: pathlib.Path, thresholds: Mapping[str, str]) -> pathlib.Path:
    """Write alerts that fire after a few scrapes; return the file.

    :param thresholds: replacements in expressions, by the replaced text
    :raises LookupError: no expression has a text to replace
    """
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    left = set(thresholds)
    for rule in rules:
        rule.pop("for", None)
        rule["expr"] = _RANGE.sub("[4s]", rule["expr"])
        for text in thresholds:
            if text in rule["expr"]:
                rule["expr"] = rule["expr"].replace(text, thresholds[text])
                left.discard(text)
    if left:
        raise LookupError(f"no alert has {', '.join(sorted(left))}")
    path = folder / "hurried.rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    return path
