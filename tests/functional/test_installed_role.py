# SPDX-License-Identifier: Apache-2.0
"""An installation of a single role in its own virtualenv, as an operator makes it."""

import pathlib
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.lab import runs

PROJECT = tomllib.loads((runs.CHECKOUT / "pyproject.toml").read_text())["project"]
BESIDE = ("pyproject.toml", "setup.cfg", "README.rst", "LICENSE")
PATIENCE_S = 900.0


@pytest.fixture(scope="module")
def workstation(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of the commands after ``pip install '.[osc]'``."""
    folder = tmp_path_factory.mktemp("workstation")
    tree = folder / "acstor"
    listing = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "acstor_*",
            "pyproject.toml",
            "setup.cfg",
            "README.rst",
            "LICENSE",
        ],
        cwd=runs.CHECKOUT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listing.stdout.decode().split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(runs.CHECKOUT / name, tree / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = [pathlib.Path(sys.executable).with_name("pip"), "--python", folder / "venv/bin/python"]
    options = ["--quiet", "--no-compile", "--constraint", runs.CHECKOUT / "constraints.txt"]
    subprocess.run(
        [*pip, "install", *options, f"{tree}[osc]"],
        check=True,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "PBR_VERSION": "0.0.1"},
    )
    return folder / "venv/bin"


@pytest.mark.timeout(2 * PATIENCE_S)
def test_commands_of_other_roles_name_the_missing_extra(workstation):
    """Commands that need no more than this role work."""
    works = set()
    for name, at in PROJECT["scripts"].items():
        extra = at.partition(".")[0].removeprefix("acstor_")
        done = subprocess.run(
            [workstation / name, "--help"], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode == 0 and done.stdout.startswith("usage:"):
            works.add(name)
            continue
        assert (done.returncode, done.stdout) == (2, ""), (name, done.stderr)
        [line] = done.stderr.splitlines()
        assert line.startswith(f"{name}: needs acstor[{extra}], which is not installed here")
    assert works <= {"acstor-agent-holder", "acstor-authority", "acstor-nova-manage"}


def test_data_files_are_installed(workstation):
    code = (
        "import importlib.resources as r; "
        "print(*sorted(f.name for f in (r.files('acstor_decision.api') / 'page').iterdir()))"
    )
    done = subprocess.run(
        [workstation / "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["status.css", "status.html", "status.js"]


def test_commands_of_the_role_are_importable(workstation):
    code = "import acstor_osc.plugin, acstor_osc.v1.image, acstor_osc.v1.host"
    subprocess.run([workstation / "python", "-c", code], check=True, timeout=120)
