# SPDX-License-Identifier: Apache-2.0
"""Membership in a cloud: which hosts have peers, and which modules only they import."""

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio
from oslo_config import cfg

from acstor_agent import settings
from acstor_agent.cloud import membership
from acstor_agent.cmd import agent
from acstor_agent.runtime import supervised_tasks
from acstor_common.model import ids

HERE = ids.HostId("h1")
BROKER = "transport_url = kombu+memory:////"
ALONE = "[acstor_agent]\nkeep_images = none"
IMPORTS = """
import sys
from acstor_agent.cloud import membership
from acstor_agent.cmd import agent
membership.import_optional(agent.load_conf(["--config-file", sys.argv[1]]))
print(*sorted({"oslo_messaging", "pyroute2"} & sys.modules.keys()))
"""


@pytest.fixture(autouse=True)
def own_global_conf() -> Iterator[None]:
    yield
    cfg.CONF.reset()


def configured(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "agent.conf"
    path.write_text(f"[DEFAULT]\n{text}\n")
    return path


def member(
    folder: pathlib.Path, text: str, supervised: supervised_tasks.SupervisedTasks
) -> membership.Membership:
    conf = agent.load_conf(["--config-file", str(configured(folder, text))])
    conf.set_override("state_dir", str(folder), "acstor_agent")
    identity = settings.make_identity_files(conf.acstor_agent, HERE)
    rings = membership.ring_store_of(conf.acstor_agent, identity)
    return membership.Membership(conf, HERE, identity, rings, supervised)


@pytest.mark.parametrize(("text", "has_others"), [("", False), (BROKER, True)])
async def test_host_has_peers_only_with_a_configured_broker(
    tmp_path: pathlib.Path, nursery: trio.Nursery, text: str, has_others: bool
) -> None:
    supervised = supervised_tasks.SupervisedTasks(nursery)
    made = member(tmp_path, text, supervised)
    assert (made.has_others, supervised.issues.now) == (has_others, {})
    await made.stop()


@pytest.mark.expect_log("message bus: .*transport_url")
async def test_invalid_transport_url_is_reported_and_counts_as_none(
    tmp_path: pathlib.Path, nursery: trio.Nursery
) -> None:
    supervised = supervised_tasks.SupervisedTasks(nursery)
    made = member(tmp_path, "transport_url = pigeon://loft/", supervised)
    assert not made.has_others
    assert "[DEFAULT] transport_url" in supervised.issues.now["message bus"].why


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        (ALONE, ""),
        ("", "pyroute2"),  # hydration reads the traffic of the host's links
        (f"{BROKER}\n{ALONE}", "oslo_messaging pyroute2"),
    ],
)
def test_only_modules_that_the_host_uses_are_imported_before_the_fork(
    tmp_path: pathlib.Path, text: str, imported: str
) -> None:
    argv = [sys.executable, "-c", IMPORTS, str(configured(tmp_path, text))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == imported
