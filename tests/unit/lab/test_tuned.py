# SPDX-License-Identifier: Apache-2.0
"""Constants that a test changes in a process of its own."""

import importlib
import os
import pathlib
import subprocess

import pytest

from tests.lab import tuned

NAMES = [value for name, value in vars(tuned).items() if name.isupper() and "." in value]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_that_of_a_plain_value_in_the_product(name: str) -> None:
    module, _, constant = name.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), constant), int | float | str)


COMMAND = """
import sys

from acstor_glance.prepare import plan

def main():
    print(plan.RETRY_FIRST_S, *sys.argv)
    return 3
"""


def test_command_runs_with_what_was_changed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shown.py").write_text(COMMAND)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [*tuned.argv("shown", {tuned.RETRY_FIRST_S: 7}), "--option", "x"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "7 shown --option x\n"), done.stderr


def test_constant_that_is_not_there_ends_the_command() -> None:
    argv = tuned.argv("acstor_agent.cmd.ctl", {"acstor_glance.prepare.plan.NO_SUCH_THING": 7})
    done = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "NO_SUCH_THING" in done.stderr


def test_change_keeps_the_kind_of_number(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, constant = tuned.BUILD_LONGEST_S.rpartition(".")
    here = importlib.import_module(module)
    monkeypatch.setattr(here, constant, 300.0)
    tuned.change({tuned.BUILD_LONGEST_S: 7})
    changed = getattr(here, constant)
    assert changed == 7.0 and isinstance(changed, float)
