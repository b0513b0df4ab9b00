# SPDX-License-Identifier: Apache-2.0
"""An agent that cannot start logs the reason, exits with status 1 and leaves nothing mounted."""

import os
import pathlib
import socket
import stat
import subprocess
import time

import pytest

from tests.fakes import hosts
from tests.lab import agents
from tests.lab import identities
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = 1 << 20


@pytest.mark.parametrize(
    ("section", "option", "value", "said"),
    [
        ("acstor_agent", "variants", "cache-random", "variants"),
        (
            "acstor_agent",
            "variants",
            "cache-lfu,cache-fifo",
            "cache-fifo and cache-lfu exclude",
        ),
        ("acstor_agent", "read_deadline_s", "-1", "read_deadline_s"),
        ("acstor_agent", "cache_limit_bytes", "a lot", "cache_limit_bytes"),
        ("acstor_agent", "host", "no host!", "[acstor_agent] host: not a host id: 'no host!'"),
        ("acstor_agent", "sources", "", "[acstor_agent] sources: it is empty"),
        ("acstor_agent", "sources", "file,tape", "there is no source 'tape'"),
        ("source_file", "folder", "images", "[source_file] folder: 'images' is not an absolute"),
        ("acstor_agent", "peer_listen", "here", "[acstor_agent] peer_listen: here: not an address"),
        ("acstor_agent", "mirror_group", "no-such-group", "there is no group no-such-group"),
        ("acstor_agent", "metrics_listen", "nowhere:1", "metrics_listen"),
        ("acstor_agent", "control_group", "no-such-group", "there is no group no-such-group"),
        ("acstor_agent", "peer_security", "secure", "secure needs a certificate of this host"),
        ("acstor_agent", "peer_security", "tls", "peer_security"),
        ("acstor", "mount_point", "/dev/null", "/dev/null"),
        ("acstor", "mount_point", "mirror", "[acstor] mount_point: 'mirror' is not an absolute"),
        ("acstor_agent", "cache_dir", "cache", "cache_dir: 'cache' is not an absolute path"),
    ],
)
def test_bad_option_is_named(tmp_path, section, option, value, said):
    config_file = hosts.configure(tmp_path, {section: {option: value}})
    status, words = hosts.refuse(config_file)
    assert status == 1
    assert said in words
    assert "Traceback" not in words
    assert not hosts.mounts(tmp_path)


def test_http_source_without_a_url_is_named(tmp_path):
    config_file = hosts.configure(tmp_path, {"acstor_agent": {"sources": "http"}})
    status, words = hosts.refuse(config_file)
    assert (status, "[source_http] url" in words) == (1, True)


def test_insecure_reachable_listener_is_logged(start):
    agent = start(
        peer_listen=f"0.0.0.0:{local.unused_port()}",
        peer_security="insecure",
    )
    assert "peer_security = insecure: anyone who reaches this host's port" in agent.log()


def test_reachable_agent_without_a_certificate_does_not_start(tmp_path):
    own = {"peer_listen": f"0.0.0.0:{local.unused_port()}"}
    status, words = hosts.refuse(hosts.configure(tmp_path, {"acstor_agent": own}))
    assert status == 1
    assert "secure needs a certificate" in words and "peer_security = insecure" in words
    assert not hosts.mounts(tmp_path)


def test_invalid_certificate_is_named(tmp_path):
    (tmp_path / "cert.pem").write_text("hello")
    good = identities.issue("h1")
    (tmp_path / "ca.pem").write_bytes(good.ca)
    (tmp_path / "key.pem").write_bytes(good.key)
    tls = {
        "peer_security": "secure",
        "identity_dir": tmp_path,
    }
    status, words = hosts.refuse(hosts.configure(tmp_path, {"acstor_agent": tls}))
    assert status == 1
    assert f"{tmp_path}/cert.pem" in words
    assert not hosts.mounts(tmp_path)


def test_invalid_configuration_file_is_named(tmp_path):
    (tmp_path / "broken.conf").write_text("[acstor_agent\nhost h1\n")
    status, words = hosts.refuse(tmp_path / "broken.conf")
    assert (status, "broken.conf" in words) == (1, True)
    status, words = hosts.refuse(tmp_path / "missing.conf")
    assert (status, "missing.conf" in words) == (1, True)


def test_mount_point_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    mount_point = {"acstor": {"mount_point": tmp_path / "file"}}
    status, words = hosts.refuse(hosts.configure(tmp_path, mount_point))
    assert status == 1
    assert f"{tmp_path}/file" in words


def test_missing_folders_are_created(tmp_path, images, start):
    image_id = images.add(b"x" * 5000)
    folder = tmp_path / "a" / "b"
    agent = start(cache_dir=folder / "cache", state_dir=folder / "state")
    assert agent.image_path(image_id).read_bytes() == b"x" * 5000
    hosts.wait_written(agent)
    assert list(folder.glob("cache/slab*"))
    assert [path.stem for path in folder.glob("state/maps/*")] == [image_id]


def test_one_folder_may_be_both_state_and_cache(tmp_path, images, start):
    image_id = images.add(b"x" * 5000)
    agent = start(cache_dir=tmp_path / "both", state_dir=tmp_path / "both")
    assert agent.image_path(image_id).read_bytes() == b"x" * 5000


def test_mount_point_with_a_foreign_mount_is_refused(tmp_path):
    config_file = hosts.configure(tmp_path, {})
    mount_point = tmp_path / "mirror"
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mount_point], check=True)
    try:
        (mount_point / "precious").touch()
        status, words = hosts.refuse(config_file)
        assert status == 1
        assert f"{mount_point}: a file system of type tmpfs is mounted there already" in words
        assert (mount_point / "precious").exists()
    finally:
        subprocess.run(["umount", mount_point], check=True)


def test_read_only_state_folder_is_named(tmp_path):
    config_file = hosts.configure(tmp_path, {})
    folder = tmp_path / "state"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], check=True)
    try:
        status, words = hosts.refuse(config_file)
    finally:
        subprocess.run(["umount", folder], check=True)
    assert status == 1
    assert f"{folder}: cannot be" in words
    assert "Read-only file system" in words
    assert not hosts.mounts(tmp_path)


@pytest.mark.parametrize("option", ["state_dir", "cache_dir"])
def test_mount_point_inside_another_folder_is_refused(tmp_path, option):
    status, words = hosts.refuse(hosts.configure(tmp_path, {"acstor_agent": {option: tmp_path}}))
    assert status == 1
    assert f"mount_point {tmp_path}/mirror: it is inside [acstor_agent] {option}" in words


def test_folders_are_private_to_the_agent_except_the_mirror(tmp_path, images, start):
    image_id = images.add(b"x" * 5000)
    agent = start()
    assert agent.image_path(image_id).read_bytes() == b"x" * 5000
    hosts.wait_written(agent)
    for folder in (agent.folder / "state", agent.folder / "cache"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        found = list(folder.rglob("*"))
        assert found
        assert [path for path in found if path.stat().st_mode & 0o077] == []
    agent.stop()
    for path in (agent.folder / "state", agent.folder / "state" / "maps", agent.folder / "cache"):
        path.chmod(0o755)
    agent.start()
    agent.wait_ready()
    for path in (agent.folder / "state", agent.folder / "state" / "maps", agent.folder / "cache"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert agent.log().count("was accessible to other users") == 2
    assert stat.S_IMODE(agent.mount_point.stat().st_mode) == 0o550  # for QEMU's group


def refused_beside(agent: agents.Agent, folder: pathlib.Path, changes: dict) -> str:
    """Start a second agent that must be refused without any effect on the first one."""
    status, words = hosts.refuse(hosts.configure(folder, changes))
    assert status == 1
    assert agent.status()["worker_pid"] == agent.worker_pid()
    assert agent.is_mounted()
    return words


def test_second_agent_sharing_a_resource_of_the_first_is_refused(tmp_path, images, start):
    data = local.random_bytes(5 * MIB)
    image_id = images.add(data)
    agent = start()
    with agent.image_path(image_id).open("rb") as guest:
        for option, why in (("state_dir", "agent uses it"), ("cache_dir", "process is using it")):
            path = agent.folder / option.removesuffix("_dir")
            words = refused_beside(agent, tmp_path / option, {"acstor_agent": {option: path}})
            assert f"{path}: another {why}" in words
        mount_point = {"acstor": {"mount_point": agent.mount_point}}
        words = refused_beside(agent, tmp_path / "mount", mount_point)
        assert f"{agent.mount_point}: a file system of type fuse.acstor is mounted" in words
        assert guest.read() == data


def test_agent_notifies_its_service_manager_once_it_serves(tmp_path, images):
    manager = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reported:
        reported.bind(str(manager))
        reported.settimeout(10)
        config_file = hosts.configure(tmp_path / "h1", {})
        argv = [agents.BIN / "acstor-agent", "--config-file", config_file]
        environment = {**os.environ, "NOTIFY_SOCKET": str(manager)}
        with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL) as agent:
            try:
                words = [reported.recv(100)]
                while words[-1] != b"READY=1":  # it stores its connection with the manager first
                    assert words[-1].startswith(b"FDSTORE=1")
                    words.append(reported.recv(100))
                assert sorted(os.listdir(tmp_path / "h1" / "mirror")) == ["disks", "images"]
            finally:
                agent.terminate()
                began = time.monotonic()
                assert agent.wait(15) == 0
    assert time.monotonic() - began < 8
    assert not hosts.mounts(tmp_path)
