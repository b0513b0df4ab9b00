# SPDX-License-Identifier: Apache-2.0
"""The recipe for OpenStack-Helm: values that its charts know, and DaemonSets valid in Kubernetes.

If helm is installed, the tests render the charts with the values. No Kubernetes runs.

"""

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from acstor_agent.cmd import agent
from tests.lab import deployment_tools

RECIPE = deployment_tools.PACKAGING / "openstack-helm"
CHARTS = ("nova", "libvirt", "glance")
OWN = {"extraObjects", "DEFAULT", "oslo_policy", "volumeMounts", "volumes", "nova_compute"}
"""Values below which the charts take any key, or a list."""
MOUNTED = {"nova": ("nova-compute", 2), "libvirt": ("libvirt", 1), "glance": ("glance-api", 1)}
"""By chart: the container with acstor's mounts, and how many it has."""


def load(file: pathlib.Path) -> Any:
    return yaml.safe_load(file.read_text())


def unknown_keys(values: Any, chart: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of values that a chart's own values do not have."""
    if not isinstance(values, dict):
        return
    for key, value in values.items():
        if not isinstance(chart, dict) or key not in chart:
            yield f"{path}.{key}"
        elif key not in OWN or isinstance(chart[key], dict):
            yield from () if key in OWN else unknown_keys(value, chart[key], f"{path}.{key}")


@pytest.mark.parametrize("name", CHARTS)
def test_values_exist_in_the_chart(name):
    chart = deployment_tools.require_clone("openstack-helm") / name
    found = list(unknown_keys(load(RECIPE / f"{name}.yaml"), load(chart / "values.yaml")))
    # A chart's mounts are an empty mapping; only its templates have their keys.
    assert [key for key in found if not key.startswith(".pod.mounts.")] == []


def test_kubernetes_validates_the_daemonsets():
    deployment_tools.require()
    argv = ["kubernetes-validate", "--strict", RECIPE / "agent.yaml"]
    deployment_tools.run(argv, RECIPE, {})


def test_linter_finds_nothing(tmp_path):
    deployment_tools.require()
    rules = {"line-length": {"max": 120}, "document-start": "disable", "comments": "disable"}
    conf = deployment_tools.write(tmp_path / "yamllint", {"extends": "default", "rules": rules})
    deployment_tools.run(["yamllint", "--strict", "-c", conf, RECIPE], tmp_path, {})


def test_agent_reads_the_options_of_its_environment(tmp_path, monkeypatch):
    file = tmp_path / "acstor-agent.conf"
    file.write_text("[acstor_agent]\nsources = file\n")
    *_, pods = yaml.safe_load_all((RECIPE / "agent.yaml").read_text())
    [container] = pods["spec"]["template"]["spec"]["containers"]
    names = [one["name"] for one in container["env"] if one["name"].startswith("OS_")]
    for number, name in enumerate(names):
        monkeypatch.setenv(name, str(number))
    own = agent.load_conf(["--config-file", str(file)]).acstor_agent
    options = [name.removeprefix("OS_ACSTOR_AGENT__").lower() for name in names]
    assert options == ["host", "peer_listen", "control_group", "mirror_group"]
    assert [own[option] for option in options] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("name", CHARTS)
def test_chart_renders_with_the_values(tmp_path, name):
    clone = deployment_tools.require_clone("openstack-helm")
    program = shutil.which("helm", path=f"{deployment_tools.VENV / 'bin'}:/usr/local/bin:/usr/bin")
    if program is None:
        pytest.skip("helm is not installed")
    for chart in ("helm-toolkit", name):
        shutil.copytree(clone / chart, tmp_path / chart)
    values = ["--values", RECIPE / f"{name}.yaml"]
    deployment_tools.run([program, "dependency", "build", name], tmp_path, {})
    deployment_tools.run([program, "lint", name, *values], tmp_path, {})
    said = deployment_tools.run([program, "template", name, name, *values], tmp_path, {})
    rendered = [one for one in yaml.safe_load_all(said) if one]
    containers = [
        container
        for one in rendered
        if one["kind"] in ("DaemonSet", "Deployment")
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    wanted, mounts = MOUNTED[name]
    [found] = [one for one in containers if one["name"] == wanted]
    own = [one for one in found["volumeMounts"] if one["name"].startswith("acstor")]
    assert len(own) == mounts
    if name == "nova":
        assert found["image"] == "registry.example:5000/acstor/nova:1.0.0"
        assert "acstor-nova" in {one["metadata"]["name"] for one in rendered}
