# SPDX-License-Identifier: Apache-2.0
"""Whether a service manager keeps the descriptors that it is sent."""

import os
import socket

import pytest

from acstor_agent.mount import fuse_connection
from acstor_agent.mount import mount_record
from acstor_agent.process import service_manager


@pytest.fixture
def connection():
    record = mount_record.MountRecord.begin_record(b"offer")
    made = fuse_connection.MountConnection(os.open("/dev/null", os.O_RDWR), record)
    yield made
    made.close()


@pytest.fixture
def manager(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reported:
        reported.bind(str(tmp_path / "notify"))
        yield reported


@pytest.mark.parametrize(
    ("room", "is_kept"), [("0", False), ("1", False), ("2", True), ("8", True), ("odd", False)]
)
def test_connection_is_stored_only_if_fdstore_allows_two_descriptors(
    connection, manager, monkeypatch, room, is_kept
):
    monkeypatch.setenv("FDSTORE", room)
    assert service_manager.DescriptorStore().store_connection(connection) == is_kept


@pytest.mark.parametrize(("shown", "is_kept"), [("", False), ("0", False), ("8", True)])
def test_fdstore_limit_of_older_systemd_is_read_with_systemctl(
    connection, manager, monkeypatch, tmp_path, shown, is_kept
):
    tool = tmp_path / "systemctl"
    tool.write_text(f"#!/bin/sh\necho {shown}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("FDSTORE", raising=False)
    monkeypatch.setattr(service_manager, "_unit", lambda: "acstor-agent.service")
    assert service_manager.DescriptorStore().store_connection(connection) == is_kept
