# SPDX-License-Identifier: Apache-2.0
"""rally's scenarios of servers on a cloud of the lab.

A scenario passes if each of its iterations does; its seconds are the mean of an iteration.
"""

import json
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from acstor_common import errors
from tests.lab import runs
from tests.lab import tool_venv
from tests.lab.openstack import accounts
from tests.lab.openstack import api
from tests.lab.openstack import tempest
from tests.lab.openstack import tempest_cloud
from tests.lab.openstack import tempest_results
from tests.outside import qemu_source

VENV = tool_venv.ToolVenv(qemu_source.CACHE / "rally", ("rally==5.1.1", "rally-openstack==4.1.0"))
ACTIONS = ("hard_reboot", "stop_start", "pause_unpause", "suspend_resume", "shelve_unshelve")
SCENARIOS: Mapping[str, Mapping[str, object]] = {
    "boot_server": {},
    "boot_and_delete_server": {},
    "boot_and_delete_multiple_servers": {"count": 4},
    "boot_and_rebuild_server": {},
    "boot_and_bounce_server": {"actions": [{action: 1} for action in ACTIONS]},
    "boot_and_migrate_server": {},
    "boot_and_live_migrate_server": {"block_migration": True},
    "resize_server": {"confirm": True},
    "snapshot_server": {},
}
"""Scenario of ``NovaServers`` to its arguments beside image and flavor."""

_TIMES, _CONCURRENCY = 4, 2
_SETUP_S = 300.0
_CONF = """\
[DEFAULT]
log_file = {folder}/rally.log
[database]
connection = sqlite:///{folder}/rally.db
"""


class Rally:
    """rally with one environment, a cloud of the lab.

    :param folder: for its files
    :raises errors.Unusable: a command of it failed
    """

    def __init__(self, folder: pathlib.Path, auth_url: str) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "rally.conf").write_text(_CONF.format(folder=folder))
        spec = folder / "environment.json"
        spec.write_text(json.dumps({"existing@openstack": _environment(auth_url)}))
        self._run(_SETUP_S, "db", "create")
        self._run(_SETUP_S, "env", "create", "--name", "lab", "--spec", spec)

    def play(self, scenario: str, deadline_s: float) -> dict[str, Any]:
        """Return the result of a scenario, in the form of Tempest's tests.

        :raises subprocess.TimeoutExpired: it took longer
        """
        task, report = self._folder / "task.json", self._folder / "report.json"
        task.write_text(json.dumps(_task(scenario)))
        self._run(deadline_s, "task", "start", task)
        self._run(_SETUP_S, "task", "report", "--json", "--out", report)
        return result_of(json.loads(report.read_text()))

    def _run(self, deadline_s: float, *words: str | pathlib.Path) -> None:
        argv = [VENV.folder / "bin/rally", "--config-file", self._folder / "rally.conf", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = os.environ | {"HOME": str(self._folder)}
        record = self._folder / f"rally{runs.RECORD_SUFFIX}"
        with runs.started(argv, record, cwd=self._folder, env=environment, **pipes) as process:
            output, _ = process.communicate(timeout=deadline_s)
        if process.returncode not in (0, 2):  # 2: a scenario failed
            why = f"exit {process.returncode}: {output[-2000:]}"
            raise errors.Unusable(f"rally {' '.join(map(str, words))}", why)


def _environment(auth_url: str) -> dict[str, object]:
    names = {"user_domain_name": "Default", "project_domain_name": "Default"}
    project = accounts.USERS["admin"].project
    admin = {"username": "admin", "password": api.PASSWORD, "project_name": project, **names}
    return {"auth_url": auth_url, "region_name": api.REGION, "admin": admin}


def _task(scenario: str) -> dict[str, object]:
    first, second = tempest_cloud.FLAVORS
    arguments = {"image": {"name": first}, "flavor": {"name": first}, **SCENARIOS[scenario]}
    if scenario == "resize_server":
        arguments["to_flavor"] = {"name": second}
    if scenario == "boot_and_rebuild_server":
        arguments |= {"from_image": arguments.pop("image"), "to_image": {"name": second}}
    subtask = {
        "title": scenario,
        "scenario": {f"NovaServers.{scenario}": arguments},
        "runner": {"constant": {"times": _TIMES, "concurrency": _CONCURRENCY}},
        "contexts": {"users": {"tenants": 1, "users_per_tenant": 1}},
        "sla": {"failure_rate": {"max": 0}},
    }
    return {"version": 2, "title": scenario, "subtasks": [subtask]}


def result_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in rally's JSON report of a task with one workload."""
    workload = report["tasks"][0]["subtasks"][0]["workloads"][0]
    iterations = workload["data"]
    durations = [item["duration"] for item in iterations]
    failures = [item["error"] for item in iterations if item["error"]]
    is_passed = workload["pass_sla"] and len(iterations) == _TIMES and not failures
    return {
        "outcome": tempest_results.PASSED if is_passed else tempest_results.FAILED,
        "seconds": round(statistics.fmean(durations), 2) if durations else None,
        "reason": _reason(failures) if not is_passed else "",
    }


def _reason(failures: Sequence[Sequence[str]]) -> str:
    shown = " ".join(failures[0][:2]) if failures else "its context or clean-up failed"
    return f"{len(failures)} of {_TIMES} iterations failed: {' '.join(shown.split())}"


def run(way: str, ids: Mapping[str, str], stop_s: float) -> dict[str, Any]:
    """Run scenarios on a new cloud.

    :param ids: scenario's name in the results to its name in :data:`SCENARIOS`
    :param stop_s: no scenario runs longer; by the monotonic clock
    """
    begin, tests = time.monotonic(), {}
    with tempest_cloud.started(way) as (lab, files, folder):
        tempest.upload_images(lab, files, way)
        rally = Rally(folder / "rally", lab.keystone.auth_url)
        for name, scenario in ids.items():
            try:
                tests[name] = rally.play(scenario, max(stop_s - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                break
            print(f"acstor: {name}: {tests[name]}", flush=True)
    seconds = round(time.monotonic() - begin)
    facts = {"seconds": seconds, "listed": len(ids), "is_cut": len(tests) < len(ids)}
    return {"way": way, **facts, "tests": tests}
