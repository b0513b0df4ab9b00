# SPDX-License-Identifier: Apache-2.0
"""The phases of the DevStack plugin against a recording of DevStack's functions.

Every written option must be known to acstor's programs; no action may be done twice or for a
disabled service.

"""

import pathlib
import re
import stat
import subprocess
import tomllib
from collections.abc import Callable
from collections.abc import Iterable

import pytest
from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_checkpoint import conf as checkpoint_conf
from acstor_decision import conf as decision_conf
from acstor_decision.api import conf as api_conf
from acstor_glance import conf as glance_conf
from acstor_nova import conf as nova_conf

DEVSTACK = pathlib.Path(__file__).resolve().parents[2] / "devstack"
BY_DEFAULT = ["acstor-agent", "acstor-glance-listener", "acstor-decision", "acstor-api"]
SERVICES = [*BY_DEFAULT, "acstor-checkpointd", "acstor-gateway"]
ALL = " ".join((*SERVICES, "n-api", "n-cpu", "n-sch", "tempest"))
# Options of others that acstor sets; everything else has to be one of acstor's own.
FOREIGN = {
    ("DEFAULT", "config_source"),
    ("DEFAULT", "disabled_notifications"),
    ("acstor", "agent_metrics"),
    ("acstor", "driver"),
    ("database", "connection"),
    ("filter_scheduler", "weight_classes"),
    ("image_import_opts", "image_import_plugins"),
    ("keystone_authtoken", "interface"),
    ("keystone_authtoken", "www_authenticate_uri"),
    ("service_available", "acstor"),
}
GUIDE = DEVSTACK / "README.rst"
SCRIPTS = tomllib.loads((DEVSTACK.parent / "pyproject.toml").read_text())["project"]["scripts"]
AUTH = {"auth_type", "auth_url", "username", "password", "project_name"}
AUTH |= {"user_domain_name", "project_domain_name"}

# DevStack's functions: each records its calls.
FUNCTIONS = r"""
set -o errexit
record() { printf '%s\n' "$*" >>"$RECORD"; }
for name in iniset iniset_rpc_backend setup_develop run_process stop_process recreate_database \
    get_or_create_user get_or_create_role get_or_create_service get_or_create_endpoint \
    get_or_add_user_project_role get_or_create_project define_plugin enable_service; do
    eval "$name() { record $name \"\$@\"; }"
done
sudo() { record sudo "$@"; case $1 in install | ln) command "$@" ;; esac; }
is_service_enabled() {
    local wanted
    for wanted in "$@"; do [[ " $ENABLED " == *" $wanted "* ]] && return 0; done
    return 1
}
trueorfalse() { local given=${!2:-$1}; echo "$given"; }
database_connection_url() { echo "mysql+pymysql://root@127.0.0.1/$1"; }
get_python_exec_prefix() { echo "$FOLDER/bin"; }
mountpoint() { return 0; }
which() { echo "/usr/bin/$1"; }
LIBVIRT_GROUP=libvirt ACSTOR_LINKS_DIR=${ACSTOR_LINKS_DIR:-$FOLDER/links}
mkdir -p "$ACSTOR_LINKS_DIR"
DEST=$FOLDER/dest DATA_DIR=$FOLDER/data HOST_IP=192.0.2.7 SERVICE_HOST=192.0.2.7
REGION_NAME=RegionOne KEYSTONE_SERVICE_URI=http://192.0.2.7/identity
SERVICE_PASSWORD=secret SERVICE_PROJECT_NAME=service SERVICE_DOMAIN_NAME=Default
STACK_USER=root LOCAL_HOSTNAME=compute1 NOVA_CONF=nova.conf GLANCE_API_CONF=glance-api.conf
GLANCE_IMAGE_IMPORT_CONF=glance-image-import.conf TEMPEST_CONFIG=tempest.conf
GLANCE_CONF_DIR=$FOLDER/etc/glance NOVA_CONF_DIR=$FOLDER/etc/nova
ACSTOR_DIR=$DEVSTACK/.. ACSTOR_CONF_DIR=$FOLDER/etc/acstor
ACSTOR_CONTROL_SOCKET=$FOLDER/run/control.sock
mkdir -p "$FOLDER/bin"
printf '#!/bin/sh\necho "ran $0 $*" >>"$RECORD"\n' >"$FOLDER/bin/acstor-decision-manage"
chmod +x "$FOLDER/bin/acstor-decision-manage"
source "$DEVSTACK/settings"
"""

Play = Callable[..., list[list[str]]]


@pytest.fixture
def play(tmp_path: pathlib.Path) -> Play:
    """Return a function that runs phases and returns their calls."""

    def run(*phases: str, enabled: str = ALL, settings: str = "") -> list[list[str]]:
        record = tmp_path / "record"
        record.write_text("")
        steps = "\n".join(f'source "$DEVSTACK/plugin.sh" {phase}' for phase in phases)
        subprocess.run(
            ["bash", "-c", settings + FUNCTIONS + steps],
            check=True,
            env={
                "PATH": "/usr/bin:/bin",
                "RECORD": str(record),
                "FOLDER": str(tmp_path),
                "DEVSTACK": str(DEVSTACK),
                "ENABLED": enabled,
            },
        )
        return [line.split() for line in record.read_text().splitlines()]

    return run


STACK = ("stack pre-install", "stack install", "stack post-config", "stack extra")
STACK = (*STACK, "stack test-config")


def calls(made: Iterable[list[str]], name: str) -> list[list[str]]:
    return [words[1:] for words in made if words[0] == name]


def known_options() -> set[tuple[str, str]]:
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    lists = (agent_conf.list_opts(), glance_conf.list_opts(), nova_conf.list_opts())
    lists = (*lists, decision_conf.list_opts(), api_conf.list_opts(), checkpoint_conf.list_opts())
    return {(group.name, opt.dest) for one in lists for group, options in one for opt in options}


def test_every_written_option_is_known(play: Play) -> None:
    written = {(group, name) for _, group, name, *_ in calls(play(*STACK), "iniset")}
    signs_in = {"source_glance", "acstor_glance", "keystone_authtoken", "nova"}
    own = {
        (group, name)
        for group, name in written - FOREIGN
        if not (group in signs_in and name in AUTH)
    }
    assert {("acstor_agent", "sources"), ("acstor_glance", "state_dir")} <= own
    assert own <= known_options()


def test_each_service_is_started_once_with_its_own_configuration(play: Play) -> None:
    started = {name: command for name, *command in calls(play(*STACK), "run_process")}
    assert sorted(started) == sorted(SERVICES)
    assert len(calls(play(*STACK), "run_process")) == len(started)
    for name in ("acstor-agent", "acstor-checkpointd"):
        assert started[name][-2:] == ["root", "root"]


def test_agent_precedes_nova_compute_and_the_database_the_service(play: Play) -> None:
    assert calls(play("stack post-config"), "run_process")[0][0] == "acstor-agent"
    extra = play("stack extra")
    names = [words[0] for words in extra]
    assert names.index("recreate_database") < names.index("ran") < names.index("run_process")


def test_nova_stays_unchanged_if_disabled(play: Play) -> None:
    files = {file for file, *_ in calls(play(*STACK), "iniset")}
    assert {"nova.conf", "glance-api.conf"} <= files
    kept = play(*STACK, settings="ACSTOR_FOR_NOVA=False\n")
    assert "nova.conf" not in {file for file, *_ in calls(kept, "iniset")}


def test_separate_compute_node_gets_only_the_agent(play: Play) -> None:
    made = play(*STACK, enabled="acstor-agent n-cpu")
    [[_, extras]] = calls(made, "setup_develop")
    assert extras == "agent,nova,osc"
    files = {pathlib.Path(file).name for file, *_ in calls(made, "iniset")}
    assert files == {"acstor-agent.conf", "nova.conf"}
    assert not calls(made, "recreate_database")


def test_unstack_stops_services_and_mount_and_clean_removes_the_rest(
    play: Play, tmp_path: pathlib.Path
) -> None:
    made = play("unstack", "clean")
    assert sorted(name for [name] in calls(made, "stop_process")) == sorted(SERVICES)
    done = [" ".join(words) for words in calls(made, "sudo")]
    assert any(words.startswith("umount") for words in done)
    assert any(words.startswith("rm -rf --one-file-system") for words in done)
    gone = f"{tmp_path}/run/control.sock {tmp_path}/etc/nova/nova-scheduler.conf.d/acstor.conf"
    assert f"rm -f {gone}" in done


def test_stack_removes_the_state_of_the_last_cloud(play: Play, tmp_path: pathlib.Path) -> None:
    """Its authority ends with its database: a certificate of it would be kept for days."""
    made = play("stack post-config")
    names = [words[0] for words in made]
    stopped = [name for [name] in calls(made[: names.index("iniset")], "stop_process")]
    assert sorted(stopped) == sorted(SERVICES)
    gone = f"sudo rm -rf --one-file-system {tmp_path}/etc/acstor {tmp_path}/data/acstor".split()
    assert made.index(gone) < names.index("iniset") < names.index("run_process")
    assert made.index(f"sudo umount {tmp_path}/data/acstor/mirror".split()) < made.index(gone)


def test_operator_commands_are_linked_until_clean(play: Play, tmp_path: pathlib.Path) -> None:
    play(*STACK)
    links = {path.name: path.readlink() for path in (tmp_path / "links").iterdir()}
    assert {"acstor-nova-manage", "acstor-agent-ctl", "acstor-glance-manage"} <= links.keys()
    assert links.keys() <= SCRIPTS.keys()
    assert all(to == tmp_path / "bin" / name for name, to in links.items())
    made = calls(play("clean"), "sudo")
    assert {words[-1] for words in made if words[:2] == ["rm", "-f"]} >= {
        str(tmp_path / "links" / name) for name in links
    }
    assert len(calls(play(*STACK, settings="ACSTOR_LINKS_DIR=$FOLDER/bin\n"), "sudo")) < len(
        calls(play(*STACK), "sudo")
    )


def test_control_socket_has_the_group_of_nova_compute(play: Play) -> None:
    """DevStack starts it with LIBVIRT_GROUP in place of its user's own group."""
    written = [words[1:] for words in calls(play(*STACK), "iniset")]
    assert ["acstor_agent", "control_group", "libvirt"] in written


def test_wsgi_services_use_the_uwsgi_of_devstack(play: Play) -> None:
    """Without a master uwsgi stops with status 30, and the unit is "failed"."""
    started = {name: words for name, *words in calls(play(*STACK), "run_process")}
    for name in ("acstor-api", "acstor-gateway"):
        assert started[name][:3] == ["/usr/bin/uwsgi", "--plugins", "http,python3"]
        assert {"--master", "--die-on-term", "--need-app"} <= set(started[name])


def test_public_urls_of_the_catalog_are_used(play: Play) -> None:
    """DevStack creates no others."""
    written = [words[1:] for words in calls(play(*STACK), "iniset")]
    assert ["keystone_authtoken", "interface", "public"] in written
    assert ["source_glance", "valid_interfaces", "public"] in written


@pytest.mark.parametrize("is_used", ["True", "False"])
def test_tempest_options_have_the_backend_and_the_metrics_urls(play: Play, is_used: str) -> None:
    """Without metrics the plug-in skips all its tests; without the backend they would fail."""
    made = play("stack test-config", settings=f"ACSTOR_FOR_NOVA={is_used}\n")
    written = calls(made, "iniset")
    assert ["tempest.conf", "service_available", "acstor", is_used] in written
    counters = "compute1:http://127.0.0.1:9464/metrics"
    assert ["tempest.conf", "acstor", "agent_metrics", counters] in written


@pytest.mark.parametrize("services", [ALL, ALL.replace("tempest", "")])
def test_deletion_protection_is_off_with_tempest(play: Play, services: str) -> None:
    written = calls(play(*STACK, enabled=services), "iniset")
    named = [line for line in written if line[2:] == ["protect_used_images", "False"]]
    assert len(named) == ("tempest" in services)


def test_guide_names_the_branch() -> None:
    """Without a branch DevStack takes master, which does not exist."""
    [line] = re.findall(r"^ +enable_plugin acstor .*$", GUIDE.read_text(), re.MULTILINE)
    assert line.endswith("> main")


def test_files_with_passwords_are_private(play: Play, tmp_path: pathlib.Path) -> None:
    play(*STACK)
    files = sorted((tmp_path / "etc/acstor").iterdir())
    assert [file.name for file in files] == [
        "acstor-agent.conf",
        "acstor-checkpoint.conf",
        "acstor-decision.conf",
        "acstor-gateway.conf",
        "acstor-glance.conf",
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    folders = {tmp_path / "etc/acstor": 0o750, tmp_path / "data/acstor": 0o711}
    own = ("state", "cache", "glance", "coordination", "checkpoint", "vault", "gateway-metrics")
    for name in own:
        folders[tmp_path / "data/acstor" / name] = 0o700
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in folders} == folders


def test_agent_user_is_a_reader_and_no_user_is_an_administrator(
    play: Play, tmp_path: pathlib.Path
) -> None:
    made = calls(play(*STACK), "get_or_add_user_project_role")
    granted = {(user, role) for role, user, *_ in made}
    assert granted == {
        ("acstor-agent", "acstor-reader"),
        ("acstor", "acstor-prepare"),
        ("acstor", "member"),
        ("acstor", "service"),
    }
    assert (tmp_path / "etc/glance/policy.d/acstor.yaml").is_file()
    set_users = {
        (pathlib.Path(file).name, group): value
        for file, group, name, value in (
            words for words in calls(play(*STACK), "iniset") if len(words) == 4
        )
        if name == "username"
    }
    assert set_users[("acstor-agent.conf", "source_glance")] == "acstor-agent"
    assert set_users[("acstor-glance.conf", "acstor_glance")] == "acstor"


def test_agents_enrol_only_with_an_api(play: Play) -> None:
    wanted = ["enrolment", "auth_section", "source_glance"]
    for enabled, is_there in ((ALL, True), (ALL.replace("acstor-api", ""), False)):
        written = [words[1:] for words in calls(play(*STACK, enabled=enabled), "iniset")]
        assert (wanted in written) == is_there


@pytest.mark.parametrize(
    ("enabled", "settings", "sources"),
    [
        (ALL, "", "glance,gateway"),
        (ALL.replace("acstor-gateway", ""), "", "glance"),
        ("acstor-agent n-cpu", "ACSTOR_SOURCES=glance,gateway\n", "glance,gateway"),
    ],
    ids=["gateway", "none", "gateway elsewhere"],
)
def test_agents_use_an_enabled_gateway(
    play: Play, enabled: str, settings: str, sources: str
) -> None:
    made = play(*STACK, enabled=enabled, settings=settings)
    written = [words[1:] for words in calls(made, "iniset")]
    assert ["acstor_agent", "sources", sources] in written


def test_gateway_uses_the_configuration_of_glance_and_is_in_the_catalog(
    play: Play, tmp_path: pathlib.Path
) -> None:
    """It is disabled by default."""
    [by_default] = calls(play("stack install"), "enable_service")
    assert by_default == BY_DEFAULT
    made = play(*STACK)
    [command] = [words for name, *words in calls(made, "run_process") if name == "acstor-gateway"]
    own = tmp_path / "etc/acstor/acstor-gateway.conf"
    assert f"ACSTOR_GATEWAY_CONF=glance-api.conf:{own}" in command
    assert "acstor_glance.gateway.wsgi:application" in command
    endpoints = [words[0] for words in calls(made, "get_or_create_endpoint")]
    assert endpoints == ["acstor", "acstor-gateway"]
    without = play(*STACK, enabled=ALL.replace("acstor-gateway", ""))
    files = {pathlib.Path(file).name for file, *_ in calls(without, "iniset")}
    assert "acstor-gateway.conf" not in files


def test_checkpoints_and_recovery_are_configured_if_enabled(play: Play) -> None:
    written = [words[1:] for words in calls(play(*STACK), "iniset")]
    assert ["acstor_checkpoint", "vault_listen", "192.0.2.7:7202"] in written
    assert ["acstor_checkpoint", "checkpoint_interval_s", "3600"] in written
    assert ["acstor", "decision_url", "http://192.0.2.7:9710"] in written
    assert ["nova", "project_name", "service"] in written
    made = play(*STACK, enabled=ALL.replace("acstor-checkpointd", "").replace("n-api", ""))
    written = [words[1:] for words in calls(made, "iniset")]
    assert not {"acstor_checkpoint", "nova"} & {group for group, *_ in written}
    asking = {file for file, _, name, *_ in calls(made, "iniset") if name == "decision_url"}
    assert "nova.conf" not in asking


def test_scheduler_uses_the_weigher_only_with_the_service(play: Play) -> None:
    weigher = "acstor_nova.weigher.ImageLocalityWeigher"
    for enabled, is_weighed in (
        (ALL, True),
        (ALL.replace("n-sch", ""), False),
        (ALL.replace("acstor-api", ""), False),
    ):
        made = calls(play(*STACK, enabled=enabled), "iniset")
        written = {(group, name): (file, value) for file, group, name, value in made}
        assert (("filter_scheduler", "weight_classes") in written) is is_weighed
        if is_weighed:
            file, value = written["filter_scheduler", "weight_classes"]
            assert file.endswith("nova-scheduler.conf.d/acstor.conf")
            assert value == f"nova.scheduler.weights.all_weighers,{weigher}"
