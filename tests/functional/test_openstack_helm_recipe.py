# SPDX-License-Identifier: Apache-2.0
"""The recipe for OpenStack-Helm: values that its charts know, and DaemonSets valid in Kubernetes.

helm renders the charts with the values, and Nova reads its rendered configuration. No Kubernetes
runs.

"""

import base64
import configparser
import functools
import pathlib
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from acstor_agent.cmd import agent
from tests.functional import test_nova_versions
from tests.lab import deployment_tools
from tests.lab.openstack import installed

RECIPE = deployment_tools.PACKAGING / "openstack-helm"
CHARTS = ("nova", "libvirt", "glance")
CHARTS_OF_NOVA = 33
"""The release of Nova in the charts' images: 2026.1."""
OWN = {"extraObjects", "DEFAULT", "oslo_policy", "volumeMounts", "volumes", "nova_compute"}
"""Values below which the charts take any key, or a list."""
MOUNTED = {"nova": ("nova-compute", 2), "libvirt": ("libvirt", 1), "glance": ("glance-api", 1)}
"""By chart: the container with acstor's mounts, and how many it has."""

released = test_nova_versions.released


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


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Return a function that renders a chart with its values, once."""
    helm, clone = deployment_tools.require_helm(), deployment_tools.require_clone("openstack-helm")
    folder = tmp_path_factory.mktemp("charts")
    shutil.copytree(clone / "helm-toolkit", folder / "helm-toolkit")

    @functools.cache
    def rendered(name: str) -> list[dict[str, Any]]:
        shutil.copytree(clone / name, folder / name)
        values = ["--values", RECIPE / f"{name}.yaml"]
        deployment_tools.run([helm, "dependency", "build", name], folder, {})
        deployment_tools.run([helm, "lint", name, *values], folder, {})
        said = deployment_tools.run([helm, "template", name, name, *values], folder, {})
        return [one for one in yaml.safe_load_all(said) if one]

    return rendered


def pod_of(rendered: list[dict[str, Any]], container: str) -> dict[str, Any]:
    """Return the specification of the pod with this container."""
    pods = [
        one["spec"]["template"]["spec"]
        for one in rendered
        if one["kind"] in ("DaemonSet", "Deployment")
    ]
    [found] = [pod for pod in pods if container in [every["name"] for every in pod["containers"]]]
    return found


def text_in(rendered: list[dict[str, Any]], file: str) -> str:
    """Return a configuration file of a Secret."""
    texts = {one["data"][file] for one in rendered if file in one.get("data", {})}
    [found] = texts
    return base64.b64decode(found).decode()


@pytest.mark.parametrize("name", CHARTS)
def test_container_of_the_rendered_chart_mounts_the_files_of_acstor(render, name):
    wanted, mounts = MOUNTED[name]
    pod = pod_of(render(name), wanted)
    [container] = [one for one in pod["containers"] if one["name"] == wanted]
    own = [one for one in container["volumeMounts"] if one["name"].startswith("acstor")]
    assert len(own) == mounts
    assert {one["name"] for one in own} <= {one["name"] for one in pod["volumes"]}
    if name == "nova":
        assert container["image"] == "registry.example:5000/acstor/nova:1.0.0"


@pytest.mark.parametrize("name", CHARTS)
def test_kubernetes_validates_the_pods_of_the_rendered_chart(render, name, tmp_path):
    own = [one for one in render(name) if one["kind"] in ("DaemonSet", "Deployment")]
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(own))
    deployment_tools.run(["kubernetes-validate", "--strict", file], tmp_path, {})


@pytest.mark.skipif(
    not installed.is_ready(),
    reason=f"the services of OpenStack are not installed: {installed.REMEDY}",
)
def test_nova_of_the_rendered_chart_uses_acstor(render, released):
    rendered = render("nova")
    pod = pod_of(rendered, "nova-compute")
    [mounted] = [one for one in pod["volumes"] if one["name"] == "nova-etc-snippets"]
    assert {"configMap": {"name": "acstor-nova"}} in mounted["projected"]["sources"]
    [own] = [one for one in rendered if one["metadata"]["name"] == "acstor-nova"]
    conf = f"{text_in(rendered, 'nova-compute.conf')}\n{own['data']['acstor.conf']}"
    nova = released(CHARTS_OF_NOVA)
    test_nova_versions.check_taken(nova, *test_nova_versions.start_nova(nova, conf))


def test_glance_of_the_rendered_chart_reads_files_that_are_mounted(render):
    rendered = render("glance")
    [mounted] = [
        one for one in pod_of(rendered, "glance-api")["volumes"] if one["name"] == "acstor-glance"
    ]
    files = {f"/etc/glance/acstor/{one['path']}" for one in mounted["configMap"]["items"]}
    glance = configparser.ConfigParser(interpolation=None)
    glance.read_string(text_in(rendered, "glance-api.conf"))
    assert glance["DEFAULT"]["disabled_notifications"] == "image.send"
    assert glance["oslo_messaging_notifications"]["driver"] == "messagingv2"
    assert glance["DEFAULT"]["property_protection_rule_format"] == "roles"
    assert files == {
        glance["DEFAULT"]["property_protection_file"],
        f"{glance['oslo_policy']['policy_dirs']}/acstor.yaml",
    }
