# SPDX-License-Identifier: Apache-2.0
"""The recipe for OpenStack-Ansible: its own roles write acstor's options into the configurations.

The test takes the tasks that write configurations out of the roles os_nova and os_glance, and runs
them with OpenStack-Ansible's variables, the plug-in config_template and the recipe's variables.

"""

import configparser
import pathlib
from typing import Any

import pytest
import yaml

from tests.lab import deployment_tools
from tests.lab import documents

RECIPE = deployment_tools.PACKAGING / "openstack-ansible"
POLICIES = deployment_tools.PACKAGING.parent / "etc/glance/policy.d/acstor.yaml"
PICKED = {
    "os_nova": ("nova_post_install.yml", ("Set nova config facts", "Generate nova config")),
    "os_glance": (
        "glance_post_install.yml",
        (
            "Deploy Glance configuration files",
            "Place policy.yaml file",
            "Implement property protection",
        ),
    ),
}
CONTROL = (
    *("galera_all", "rabbitmq_all", "memcached", "keystone_all", "glance_all", "glance_api"),
    *("nova_api_os_compute", "nova_conductor", "nova_scheduler", "infra_hosts"),
)
SECRETS = (
    *("nova_container_mysql_password", "nova_api_container_mysql_password"),
    *("nova_oslomsg_rpc_password", "nova_service_password", "nova_metadata_proxy_secret"),
    *("memcached_encryption_key", "neutron_service_password", "placement_service_password"),
    *("glance_container_mysql_password", "glance_oslomsg_rpc_password", "glance_service_password"),
)


def inventory(out: pathlib.Path) -> dict[str, Any]:
    """Return an inventory of a controller and a compute host, both on this machine."""
    values = {
        **dict.fromkeys(SECRETS, "secret"),
        "ansible_connection": "local",
        "ansible_python_interpreter": str(deployment_tools.VENV / "bin/python"),
        "management_address": "192.0.2.1",
        "internal_lb_vip_address": "192.0.2.2",
        "external_lb_vip_address": "192.0.2.3",
        "nova_virt_type": "kvm",
        "nova_system_group_name": "root",
        "glance_system_group_name": "root",
    }
    groups: dict[str, Any] = {name: {"hosts": {"infra1": None}} for name in CONTROL}
    groups["nova_compute"] = {"hosts": {"compute1": None}}
    groups["nova_all"] = {"children": {"nova_compute": None, "nova_api_os_compute": None}}
    return {"all": {"vars": values, "children": groups}}


def make_roles(folder: pathlib.Path) -> None:
    """Copy the roles, with only the tasks under test."""
    for name, (file, tasks) in PICKED.items():
        clone = deployment_tools.require_clone(f"openstack-ansible-{name}")
        role = deployment_tools.copy_role(clone, folder / name)
        first = [{"include_vars": f"{part}.yml"} for part in ("debian", "source_install")]
        deployment_tools.pick_tasks(role, file, tasks, first)


def place_recipe(folder: pathlib.Path) -> None:
    """Copy the recipe as the page says, with ``folder`` in place of /etc/openstack_deploy."""
    lines = [
        *documents.section("install/deployment_tools.rst", "OpenStack-Ansible", "mkdir"),
        *documents.section("install/deployment_tools.rst", "OpenStack-Ansible", "cp"),
    ]
    copy = "\n".join(lines).replace("/etc/openstack_deploy", str(folder))
    deployment_tools.run(["bash", "-ec", copy], deployment_tools.PACKAGING.parent, {})
    for file in (folder / "group_vars").iterdir():
        file.write_text(file.read_text().replace("/etc/openstack_deploy", str(folder)))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of the written configurations."""
    deployment_tools.require()
    folder = tmp_path_factory.mktemp("osa")
    written, stock, own = folder / "out", folder / "stock", folder / "own"
    make_roles(folder / "roles")
    for path in (written, stock, own):
        path.mkdir()
    collections = folder / "collections/ansible_collections/openstack"
    collections.mkdir(parents=True)
    plugin = deployment_tools.require_clone("ansible-config_template")
    (collections / "config_template").symlink_to(plugin)
    values = deployment_tools.require_clone("openstack-ansible") / "inventory/group_vars"
    (stock / "group_vars").symlink_to(values)
    deployment_tools.write(stock / "hosts.yml", inventory(written))
    place_recipe(own)
    deployment_tools.write(own / "hosts.yml", {"all": {}})
    book = [
        {"hosts": group, "tasks": [{"import_role": {"name": role, "tasks_from": "picked"}}]}
        for group, role in (("nova_compute", "os_nova"), ("glance_all", "os_glance"))
    ]
    play = deployment_tools.write(folder / "play.yml", book)
    extra = [f"nova_conf_version_dir={written}", f"glance_etc_dir={written}"]
    words = [word for value in extra for word in ("-e", value)]
    variables = {
        "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
        "ANSIBLE_ROLES_PATH": str(folder / "roles"),
    }
    argv = ["ansible-playbook", "-i", stock, "-i", own, *words, play]
    deployment_tools.run(argv, folder, variables)
    return written


def options(file: pathlib.Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.read_string(file.read_text())
    return found


def test_nova_compute_gets_the_image_backend(out):
    nova = options(out / "nova.conf")
    assert nova["DEFAULT"]["config_source"] == nova["acstor"]["driver"] == "acstor"
    assert nova["DEFAULT"]["compute_driver"] == "libvirt.LibvirtDriver"
    assert "images_type" not in nova["libvirt"]


def test_glance_gets_policies_protections_and_notifications(out):
    glance = options(out / "glance-api.conf")
    assert glance["DEFAULT"]["disabled_notifications"] == "image.send"
    assert glance["DEFAULT"]["property_protection_rule_format"] == "roles"
    assert glance["oslo_messaging_notifications"]["driver"] == "messagingv2"
    written = yaml.safe_load((out / "policy.yaml").read_text())
    wanted = yaml.safe_load(POLICIES.read_text())
    assert {name: written.get(name) for name in wanted} == wanted
    protections = out / glance["DEFAULT"]["property_protection_file"]
    assert options(protections) == options(POLICIES.parents[1] / "property-protections-roles.conf")


def test_groups_and_playbook_match_the_role_of_acstor(tmp_path):
    deployment_tools.require()
    hosts = deployment_tools.write(tmp_path / "hosts.yml", inventory(tmp_path))
    own = ["-i", hosts, "-i", RECIPE / "acstor_groups.yml"]
    said = deployment_tools.run(["ansible-inventory", *own, "--graph"], tmp_path, {})
    for group in ("acstor_computes", "acstor_controllers", "acstor_glance"):
        assert f"@{group}:" in said
    book = RECIPE / "acstor.yml"
    deployment_tools.run(["ansible-playbook", *own, "--syntax-check", book], tmp_path, {})
    host = deployment_tools.run(["ansible-inventory", *own, "--host", "compute1"], tmp_path, {})
    assert '"acstor_nova": false' in host
