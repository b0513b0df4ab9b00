# SPDX-License-Identifier: Apache-2.0
"""Leases of images through real coordination services: MariaDB, and files."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from acstor_common import errors
from acstor_common.model import ids
from acstor_glance.client import work_leases
from tests.lab.openstack import mariadb as mariadb_lab

ONE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("0c9e3f7a-1111-4222-8333-444455556666")
DEADLINE_S = 60.0
HOLDER = """
import pathlib, sys, time
from acstor_common.model import ids
from acstor_glance.client import work_leases
mine = work_leases.WorkLeases(sys.argv[1], pathlib.Path(), "chunk_map")
with mine.lease_image(ids.parse_image_id(sys.argv[2])) as is_ours:
    print(is_ours, flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["file", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/claims"
    server: mariadb_lab.MariaDB = request.getfixturevalue("mariadb")
    server.new_database("claims")
    return f"mysql://root@127.0.0.1:{server.port}/claims"


def is_free(url: str, image_id: ids.ImageId) -> bool:
    with work_leases.WorkLeases(url, pathlib.Path(), "chunk_map").lease_image(image_id) as is_ours:
        return is_ours


def test_lease_is_exclusive_until_its_listener_releases_it_or_is_killed(url: str) -> None:
    with work_leases.WorkLeases(url, pathlib.Path(), "chunk_map").lease_image(ONE) as is_ours:
        assert (is_ours, is_free(url, ONE), is_free(url, OTHER)) == (True, False, True)
    assert is_free(url, ONE)
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, url, ONE]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"True\n"
            assert not is_free(url, ONE)
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    end_s = time.monotonic() + DEADLINE_S
    while not is_free(url, ONE):  # a server notices the end of a connection a moment later
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_failed_coordination_service_is_reported_and_used_after_recovery(
    mariadb: mariadb_lab.MariaDB,
) -> None:
    mariadb.new_database("claims")
    url = f"mysql://root@127.0.0.1:{mariadb.port}/claims"
    mine = work_leases.WorkLeases(url, pathlib.Path(), "chunk_map")
    with mine.lease_image(ONE) as is_ours:
        assert is_ours
        mariadb.stop()  # the end of the lease causes no error
    with (
        pytest.raises(errors.ImageServiceUnreachable, match=r"lease of an image \(mysql\)"),
        mine.lease_image(ONE),
    ):
        pytest.fail("it was claimed")
    mariadb.start()
    mariadb.wait_ready()
    with mine.lease_image(ONE) as is_ours:
        assert is_ours
