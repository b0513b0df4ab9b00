# SPDX-License-Identifier: Apache-2.0
"""A libvirtd that accepts connections and never answers is an error naming the option."""

import pathlib
import socket
import time

import pytest

from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_common import errors


def test_hanging_libvirt_times_out(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "libvirt-sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        found = domain_list.Domains(
            f"qemu+unix:///system?socket={path}",
            lambda _: None,
            limits=libvirt_link.LibvirtLimits(open_s=1.0),
        )
        began_s = time.monotonic()
        for _ in range(3):
            with pytest.raises(
                errors.Unusable, match=r"libvirt_uri = .*does not answer within 1 s"
            ):
                found.list_servers()
        assert time.monotonic() - began_s < 10
