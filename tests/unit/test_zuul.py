# SPDX-License-Identifier: Apache-2.0
"""The jobs for OpenStack's CI name only existing things."""

import pathlib
import re
import shlex
from typing import Any

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENTRIES: list[dict[str, Any]] = yaml.safe_load((ROOT / ".zuul.yaml").read_text())
JOBS = {entry["job"]["name"]: entry["job"] for entry in ENTRIES if "job" in entry}
[PROJECT] = [entry["project"] for entry in ENTRIES if "project" in entry]
FOREIGN_JOBS = {"devstack-tempest"}
CLONED_INTO = "acstor"  # below DevStack's folder of repositories: the project's own name


def parts() -> set[str]:
    """Return the valid first arguments of tools/test.sh."""
    usage = re.search(r"tools/test\.sh \[([a-z|]+)\]", (ROOT / "tools/test.sh").read_text())
    assert usage
    return set(usage[1].split("|"))


def test_pipelines_run_exactly_the_defined_jobs() -> None:
    concrete = sorted(name for name, job in JOBS.items() if not job.get("abstract"))
    for_each_change, at_night = PROJECT["check"]["jobs"], PROJECT["periodic"]["jobs"]
    assert PROJECT["gate"]["jobs"] == for_each_change
    assert sorted((*for_each_change, *at_night)) == concrete


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_parent_and_playbook_exist(job: dict[str, Any]) -> None:
    assert job.get("parent") in {None, *JOBS, *FOREIGN_JOBS}
    assert "run" not in job or (ROOT / job["run"]).is_file()


def test_jobs_run_existing_parts_of_the_script() -> None:
    run = {
        job["vars"]["acstor_part"] for job in JOBS.values() if job.get("parent") == "acstor-test"
    }
    assert run == {"lint", "unit", "functional", "nightly", "all"}
    assert run <= parts()


def test_playbook_runs_the_script() -> None:
    [play] = yaml.safe_load((ROOT / JOBS["acstor-test"]["run"]).read_text())
    [task] = play["tasks"]
    _, script, *_ = shlex.split(task["ansible.builtin.command"]["cmd"])
    assert (ROOT / script).is_file()


def test_devstack_job_loads_the_plugin_and_its_tempest_tests() -> None:
    reported = JOBS["acstor-tempest"]["vars"]
    [name] = reported["devstack_plugins"]
    assert f"define_plugin {name}\n" in (ROOT / "devstack/settings").read_text()
    [tests] = [path.removeprefix(f"{CLONED_INTO}/") for path in reported["tempest_plugins"]]
    assert (ROOT / tests / "pyproject.toml").is_file()
    regex = re.compile(reported["tempest_test_regex"])
    modules = sorted((ROOT / tests).glob("*/tests/test_*.py"))
    assert modules
    names = [".".join(path.relative_to(ROOT / tests).with_suffix("").parts) for path in modules]
    assert all(regex.search(name) for name in names)
