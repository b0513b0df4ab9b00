# SPDX-License-Identifier: Apache-2.0
"""Errors of a lab guest that does not boot."""

import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from acstor_common import errors
from tests.lab import guest
from tests.lab import network

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
    pytest.mark.skipif(
        shutil.which("qemu-system-x86_64") is None, reason="qemu-system-x86 is not installed"
    ),
]


@pytest.fixture
def host() -> Iterator[network.Host]:
    with network.Network(hosts=1) as net:
        yield net.hosts[0]


def overlay(host: network.Host, backing: pathlib.Path) -> pathlib.Path:
    size = backing.stat().st_size
    return guest.make_overlay(host.folder / "disk.qcow2", backing, "raw", size)


def test_error_of_a_guest_without_a_system_has_the_end_of_its_console(
    host: network.Host, tmp_path: pathlib.Path
) -> None:
    empty = tmp_path / "empty.raw"
    empty.write_bytes(bytes(1 << 20))
    with guest.Guest(host, overlay(host, empty)) as hopeless:
        with pytest.raises(errors.Unusable, match="no login prompt after 1 s"):
            hopeless.wait_booted(deadline_s=1)


def test_error_of_a_missing_backing_file_has_the_message_of_qemu(
    host: network.Host, tmp_path: pathlib.Path
) -> None:
    disk = guest.make_overlay(host.folder / "disk.qcow2", tmp_path / "none", "raw", 1 << 20)
    with guest.Guest(host, disk) as hopeless:
        with pytest.raises(errors.Unusable, match=r"(?s)QEMU has ended.*No such file"):
            hopeless.wait_booted(deadline_s=10)
