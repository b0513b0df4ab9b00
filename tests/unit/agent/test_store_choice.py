# SPDX-License-Identifier: Apache-2.0
"""Which store keeps the mount: a holder or the service manager."""

import threading

import pytest

from acstor_agent.cmd import agent
from acstor_agent.process import fd_holder
from acstor_agent.process import service_manager


@pytest.fixture
def state_dir(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def under_systemd(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))


def leave_a_socket(state_dir):
    with fd_holder.FdHolder(state_dir):
        pass


def answer_once(held):
    client, _ = held._socket.accept()
    with client:
        held._answer(client)


def test_service_manager_keeps_the_mount_without_a_holder(state_dir, under_systemd):
    assert isinstance(agent.find_fd_store(state_dir), service_manager.DescriptorStore)


@pytest.mark.expect_log("no holder answers; the service manager keeps the mount")
def test_service_manager_keeps_the_mount_despite_a_stale_holder_socket(state_dir, under_systemd):
    leave_a_socket(state_dir)
    assert isinstance(agent.find_fd_store(state_dir), service_manager.DescriptorStore)


def test_running_holder_keeps_the_mount(state_dir, under_systemd):
    with fd_holder.FdHolder(state_dir) as held:
        answering = threading.Thread(target=answer_once, args=(held,), daemon=True)
        answering.start()
        assert isinstance(agent.find_fd_store(state_dir), fd_holder.HolderStore)
        answering.join(30)


def test_stopped_holder_is_chosen_without_a_service_manager(state_dir, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    leave_a_socket(state_dir)
    assert isinstance(agent.find_fd_store(state_dir), fd_holder.HolderStore)
