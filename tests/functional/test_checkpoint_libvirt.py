# SPDX-License-Identifier: Apache-2.0
"""A real libvirtd that hangs or refuses while the checkpoint daemon is connected to it."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_common import errors
from tests.fakes import faulty_proxy
from tests.fakes import hosts
from tests.lab import local

LIBVIRTD = "/usr/sbin/libvirtd"
WAIT_S = 30.0
ENDS_S = 10.0
_START = """\
mount -t tmpfs acstor /run
mkdir -p /run/libvirt
mount -t tmpfs acstor /etc/libvirt
mount -t tmpfs acstor /var/lib/libvirt
exec "$@"
"""
_CONFIG = """\
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
listen_addr = "127.0.0.1"
tcp_port = "{port}"
unix_sock_dir = "{folder}"
"""


@pytest.fixture
def port(tmp_path: pathlib.Path) -> Iterator[int]:
    """Run a libvirtd that is isolated from this machine; its driver ``test`` has one domain."""
    if os.geteuid():
        pytest.skip("needs root")
    if shutil.which(LIBVIRTD) is None:
        pytest.skip("libvirt is not installed: run tools/install.sh")
    found = local.unused_port()
    config = tmp_path / "libvirtd.conf"
    config.write_text(_CONFIG.format(port=found, folder=tmp_path))
    start = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _START, "sh"]
    argv = [*start, LIBVIRTD, "--listen", "-f", config, "-p", tmp_path / "pid"]
    with (tmp_path / "log").open("wb") as out, subprocess.Popen(argv, stderr=out) as process:
        try:
            yield found
        finally:
            process.terminate()


@contextlib.contextmanager
def ends_soon() -> Iterator[None]:
    """Expect an error in time that names the option."""
    began_s = time.monotonic()
    with pytest.raises(errors.Unusable, match=r"\[acstor_checkpoint\] libvirt_uri = test\+tcp"):
        yield
    assert time.monotonic() - began_s < ENDS_S


def test_hung_or_refusing_libvirt_causes_an_error_and_a_reconnect(port: int) -> None:
    limits = libvirt_link.LibvirtLimits(open_s=2.0, keepalive_s=1, keepalive_count=2)
    with faulty_proxy.before(port) as proxy:
        uri = f"test+tcp://{proxy.address}/default"
        asked = domain_list.Domains(uri, lambda _: None, limits=limits)

        def answers() -> bool:
            with contextlib.suppress(errors.Unusable):
                return asked.list_servers().servers == []
            return False

        hosts.wait_until(answers, "libvirt", WAIT_S)
        for fault in (proxy.hang, proxy.refuse):
            fault()
            for _ in range(2):  # over the present connection, and over a new one
                with ends_soon():
                    asked.list_servers()
            proxy.pass_on()
            hosts.wait_until(answers, "libvirt", WAIT_S)
