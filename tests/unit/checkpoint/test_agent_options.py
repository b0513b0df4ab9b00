# SPDX-License-Identifier: Apache-2.0
"""Options that the checkpoint daemon reads from its agent's configuration."""

import pathlib

import pytest
from oslo_config import cfg

from acstor_checkpoint import agent_files
from acstor_checkpoint import capture_service
from acstor_checkpoint import conf as checkpoint_conf
from acstor_checkpoint import vault_service
from acstor_common import errors


def read(folder: pathlib.Path, **options: object) -> cfg.ConfigOpts:
    path = folder / "checkpoint.conf"
    options = {"agent_config_file": folder / "agent.conf", **options}
    path.write_text("[acstor_checkpoint]\n" + "".join(f"{n} = {v}\n" for n, v in options.items()))
    conf = cfg.ConfigOpts()
    checkpoint_conf.register_opts(conf)
    conf([], default_config_files=[str(path)], default_config_dirs=[])
    return conf


def test_identity_and_files_come_from_the_agents_configuration(tmp_path: pathlib.Path) -> None:
    (tmp_path / "agent.conf").write_text(
        "[DEFAULT]\ntransport_url = rabbit://agent\n"
        "[acstor_agent]\nhost = h7\nstate_dir = /srv/state\ncache_limit_bytes = 1GiB\n"
    )
    conf = read(tmp_path)
    agent = checkpoint_conf.agent_options(conf)
    assert vault_service.host_of(agent) == "h7"
    assert vault_service.open_identity(agent).files[0] == pathlib.Path("/srv/state/identity/ca.pem")
    assert agent_files.AgentFiles.from_options(agent).state_dir == pathlib.Path("/srv/state")
    assert conf.transport_url is None


def test_agents_identity_dir_option_is_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "agent.conf").write_text("[acstor_agent]\nhost = h7\nidentity_dir = /etc/own\n")
    agent = checkpoint_conf.agent_options(read(tmp_path))
    assert vault_service.open_identity(agent).files[0].parent == pathlib.Path("/etc/own")


def test_missing_agent_configuration_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.Unusable, match=r"agent_config_file: .*agent\.conf"):
        checkpoint_conf.agent_options(read(tmp_path))


def test_invalid_host_option_of_the_agent_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "agent.conf").write_text("[acstor_agent]\nhost = no host\n")
    with pytest.raises(errors.Unusable, match=r"\[acstor_agent\] host"):
        vault_service.open_identity(checkpoint_conf.agent_options(read(tmp_path)))


@pytest.mark.parametrize(("listen", "port"), [("", 7202), ("192.0.2.1:7300", 7300)])
def test_vaults_of_other_hosts_have_the_own_port(
    tmp_path: pathlib.Path, listen: str, port: int
) -> None:
    own = read(tmp_path, vault_listen=listen).acstor_checkpoint
    assert capture_service._vault_port(own) == port
