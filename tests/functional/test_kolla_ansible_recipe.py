# SPDX-License-Identifier: Apache-2.0
"""The recipe for Kolla-Ansible: its own templates and plug-ins write acstor's configurations.

The test takes the tasks that write configurations out of Kolla-Ansible's roles, and runs acstor's
role with the action ``config``. No container runs.

"""

import configparser
import json
import pathlib
import re
import shutil

import pytest
import yaml

from acstor_agent import conf as agent_conf
from acstor_agent.cmd import agent
from acstor_common.service import conf as common_conf
from acstor_glance import conf as glance_conf
from acstor_glance.cmd import manage
from tests.lab import deployment_tools
from tests.lab import documents

pytestmark = pytest.mark.timeout(3 * deployment_tools.RUN_S)  # the fixture runs three programs
RECIPE = deployment_tools.PACKAGING / "kolla-ansible"
PICKED = {
    "nova-cell": (
        "Ensuring config directories exist",
        "Copying over config.json files for services",
        "Copying over nova.conf",
    ),
    "glance": (
        "Ensuring config directories exist",
        "Check if policies shall be overwritten",
        "Set glance policy file",
        "Copying over config.json files for services",
        "Copying over glance-api.conf",
        "Copying over property-protections-rules.conf",
        "Copying over existing policy file",
    ),
}
GLOBALS = {
    "kolla_internal_vip_address": "127.0.0.1",
    "network_interface": "lo",
    "kolla_base_distro": "debian",
    "kolla_same_external_internal_vip": True,  # computed by a collection that is not installed here
    "nova_console": "none",
    "om_enable_rabbitmq_tls": True,
    "enable_nova_ssh": False,
    "acstor_keystone_password": "one",
    "acstor_agent_keystone_password": "two",
}
SERVICES = ("acstor-agent-holder", "acstor-agent", "acstor-glance-listener")
CONTROLLERS = ("acstor-decision", "acstor-decision-api", "acstor-decision-db-sync")


class Deployment:
    """Kolla-Ansible's playbooks with the recipe in them, as the page says, in a folder.

    :param folder: an empty folder

    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.site, self.etc = folder / "venv/share/kolla-ansible/ansible", folder / "etc"
        self.etc.mkdir()
        shutil.copytree(deployment_tools.KOLLA / "ansible", self.site)
        copy = "\n".join(documents.section("install/deployment_tools.rst", "Kolla-Ansible", "cp"))
        copy = copy.replace("$VIRTUAL_ENV", str(folder / "venv")).replace(
            "/etc/kolla/", f"{self.etc}/"
        )
        deployment_tools.run(["bash", "-ec", copy], RECIPE, {})
        for role, names in PICKED.items():
            deployment_tools.pick_tasks(self.site / "roles" / role, "config.yml", names)

    def configure(self) -> None:
        """Write all configurations below :attr:`out`."""
        passwords = self.etc / "passwords.yml"
        shutil.copy(deployment_tools.KOLLA / "etc_examples/kolla/passwords.yml", passwords)
        passwords.chmod(0o600)
        deployment_tools.run(["kolla-genpwd", "-p", passwords], self.folder, {})
        picked = [
            {"hosts": group, "tasks": [{"import_role": {"name": role, "tasks_from": "picked"}}]}
            for group, role in (("compute", "nova-cell"), ("glance-api", "glance"))
        ]
        own = {
            **GLOBALS,
            "CONFIG_DIR": str(self.etc),
            "node_config_directory": str(self.out),
            "ansible_become": False,
            "ansible_python_interpreter": str(deployment_tools.VENV / "bin/python"),
            "kolla_action": "config",
        }
        inventory = (deployment_tools.KOLLA / "ansible/inventory/all-in-one").read_text()
        (self.folder / "inventory").write_text(
            f"{inventory}\n[acstor-decision:children]\ncontrol\n"
        )
        files = [
            deployment_tools.write(self.etc / "globals.yml", own),
            self.etc / "globals.d/acstor.yml",
            passwords,
        ]
        books = [deployment_tools.write(self.site / "picked.yml", picked), self.site / "acstor.yml"]
        values = [word for file in files for word in ("-e", f"@{file}")]
        play = ["ansible-playbook", "-i", self.folder / "inventory", *values, *books]
        deployment_tools.run(play, self.site, {})

    def options(self, service: str, file: str) -> configparser.ConfigParser:
        """Return a written configuration."""
        found = configparser.ConfigParser(interpolation=None, strict=False)
        found.read_string((self.out / service / file).read_text())
        return found


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    deployment_tools.require()
    made = Deployment(tmp_path_factory.mktemp("kolla"))
    made.configure()
    return made


def test_nova_compute_alone_gets_the_image_backend(deployment):
    compute = deployment.options("nova-compute", "nova.conf")
    assert compute["DEFAULT"]["config_source"] == compute["acstor"]["driver"] == "acstor"
    assert compute["DEFAULT"]["compute_driver"] == "libvirt.LibvirtDriver"
    assert "images_type" not in compute["libvirt"]
    assert "acstor" not in deployment.options("nova-conductor", "nova.conf")


def test_glance_gets_policies_protections_and_notifications(deployment):
    glance = deployment.options("glance-api", "glance-api.conf")
    assert glance["DEFAULT"]["disabled_notifications"] == "image.send"
    assert glance["DEFAULT"]["property_protection_rule_format"] == "roles"
    assert glance["oslo_messaging_notifications"]["driver"] == "messagingv2"
    out, etc = deployment.out / "glance-api", deployment_tools.PACKAGING.parent / "etc/glance"
    assert glance["oslo_policy"]["policy_file"] == "policy.yaml"
    written = yaml.safe_load((out / "policy.yaml").read_text())
    assert written == yaml.safe_load((etc / "policy.d/acstor.yaml").read_text())
    rules = glance["DEFAULT"]["property_protection_file"]
    copied = json.loads((out / "config.json").read_text())["config_files"]
    assert rules in {file["dest"] for file in copied}
    protections = (out / pathlib.Path(rules).name).read_text()
    assert protections == (etc / "property-protections-roles.conf").read_text()


def test_acstor_reads_the_written_configurations(deployment):
    path = deployment.out / "acstor-agent/acstor-agent.conf"
    conf = agent.load_conf(["--config-file", str(path)])
    assert (conf.acstor_agent.control_group, conf.acstor_agent.mirror_group) == ("42436", "42436")
    assert conf.acstor_agent.peer_listen == "127.0.0.1:7201"
    assert conf.transport_url.startswith("rabbit://openstack:")
    assert common_conf.unknown(conf, agent_conf.list_opts()) == []
    path = deployment.out / "acstor-glance-listener/acstor-glance.conf"
    listener = manage.load_conf(str(path))
    assert common_conf.unknown(listener, glance_conf.list_opts()) == []
    assert deployment.options(path.parent.name, path.name)["acstor_glance"]["password"] == "one"
    service = deployment.options("acstor-decision", "acstor-decision.conf")
    assert service["keystone_authtoken"]["auth_url"] == "http://127.0.0.1:5000"
    for name in (*SERVICES, *CONTROLLERS):
        found = json.loads((deployment.out / name / "config.json").read_text())
        for file in found["config_files"]:
            assert (deployment.out / name / pathlib.Path(file["source"]).name).is_file()


@pytest.mark.parametrize(
    ("service", "file"),
    [
        ("acstor-agent", "acstor-agent.conf"),
        ("acstor-decision", "acstor-decision.conf"),
        ("acstor-glance-listener", "acstor-glance.conf"),
    ],
)
def test_broker_is_used_as_by_glance(deployment, service, file):
    own = deployment.options(service, file)["oslo_messaging_rabbit"]
    glance = deployment.options("glance-api", "glance-api.conf")["oslo_messaging_rabbit"]
    assert own["rabbit_quorum_queue"] == own["ssl"] == "true"
    assert set(own.items()) <= set(glance.items())


def test_role_passes_only_known_arguments_to_the_kolla_module():
    deployment_tools.require()
    module = (deployment_tools.KOLLA / "ansible/library/kolla_container.py").read_text()
    taken = set(re.findall(r"^        (\w+)=dict\(", module, re.M))
    role = RECIPE / "roles/acstor"
    tasks = [
        *yaml.safe_load((role / "handlers/main.yml").read_text()),
        *yaml.safe_load((role / "tasks/deploy.yml").read_text()),
    ]
    asked = [task["kolla_container"] for task in tasks if "kolla_container" in task]
    assert len(asked) == 1 + len(
        yaml.safe_load((role / "defaults/main.yml").read_text())["acstor_services"]
    )
    assert all(set(one) <= taken for one in asked), taken


@pytest.mark.parametrize(
    "argv",
    [
        ("yamllint", "--strict", "."),
        ("ansible-lint", "--strict", "--nocolor", "-c", ".ansible-lint", "acstor.yml"),
    ],
    ids=lambda argv: argv[0],
)
def test_linters_find_nothing(tmp_path, argv):
    deployment_tools.require()
    shutil.copytree(RECIPE, tmp_path / "recipe")
    deployment_tools.run(argv, tmp_path / "recipe", {})
