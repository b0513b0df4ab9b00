# SPDX-License-Identifier: Apache-2.0
"""The lab's OpenStack: real Keystone and Glance, their users, their failures, their clean-up."""

import pathlib
import re
import subprocess
import sys
import uuid

import pytest
from keystoneauth1 import exceptions

from acstor_common import errors
from tests.lab import runs
from tests.lab.openstack import cloud
from tests.lab.openstack import glance
from tests.lab.openstack import mariadb as mariadb_lab
from tests.lab.openstack import rabbitmq as rabbitmq_lab


def upload(lab: cloud.Cloud, data: bytes, user: str = "tenant") -> str:
    images = lab.connect(user).image
    image = images.create_image(
        name=f"test-{uuid.uuid4()}",
        disk_format="raw",
        container_format="bare",
        visibility="private",
        data=data,
    )
    image_id: str = image.id
    return image_id


def test_service_user_reads_ranges_of_a_private_image_and_others_do_not(
    keystone_glance: cloud.Cloud,
) -> None:
    image_id = upload(keystone_glance, bytes(range(256)) * 64)
    path, part = f"/v2/images/{image_id}/file", {"Range": "bytes=256-265"}
    endpoint = {"service_type": "image"}
    answer = keystone_glance.session("acstor").get(path, endpoint_filter=endpoint, headers=part)
    assert (answer.status_code, answer.content) == (206, bytes(range(10)))
    with pytest.raises(exceptions.NotFound):
        keystone_glance.session("stranger").get(path, endpoint_filter=endpoint, headers=part)
    keystone_glance.connect().image.delete_image(image_id)


def test_staged_image_is_imported(keystone_glance: cloud.Cloud) -> None:
    images = keystone_glance.connect("tenant").image
    image = images.create_image(
        name="imported", disk_format="raw", container_format="bare", visibility="private"
    )
    images.stage_image(image, data=b"staged" * 1000)
    images.import_image(image)

    def is_over() -> bool:
        return glance.is_imported(images.get(f"/images/{image.id}").json())

    runs.wait_for(is_over, 60.0, "the import", keystone_glance.glance.log)
    assert (keystone_glance.glance.images / image.id).read_bytes() == b"staged" * 1000
    images.delete_image(image.id)


def test_failed_start_of_a_service_shows_the_end_of_its_log(
    keystone_glance: cloud.Cloud,
) -> None:
    wrong = {"paste_deploy": {"flavor": "no-such-flavor"}}
    with (
        pytest.raises(errors.Unusable, match=r"glance: it has ended(.|\n)*no-such-flavor"),
        keystone_glance.glance.changed(wrong),
    ):
        pytest.fail("it started")
    assert keystone_glance.glance.is_ready()


def test_killed_service_is_restarted_for_the_next_test(keystone_glance: cloud.Cloud) -> None:
    keystone_glance.glance.kill()
    assert keystone_glance.glance.pid is None
    keystone_glance.start_image_services()
    assert keystone_glance.glance.is_ready()


def test_databases_are_new_and_separate(mariadb: mariadb_lab.MariaDB) -> None:
    for name in ("one", "two"):
        mariadb.new_database(name)
        mariadb.execute(
            "CREATE TABLE t (x INT)", f"INSERT INTO t VALUES ({len(name)})", database=name
        )
    mariadb.new_database("two")
    assert mariadb.execute("SELECT x FROM t", database="one") == [(3,)]
    assert mariadb.execute("SHOW TABLES", database="two") == []


def test_broker_restarts_on_the_same_port(rabbitmq: rabbitmq_lab.RabbitMQ) -> None:
    before, url = rabbitmq.pid, rabbitmq.url
    rabbitmq.restart()
    assert rabbitmq.pid != before
    assert (rabbitmq.url, rabbitmq.is_ready()) == (url, True)


def test_lab_command_starts_shows_and_stops_its_own_cloud(
    keystone_glance: cloud.Cloud, tmp_path: pathlib.Path
) -> None:
    def command(*words: str) -> str:
        argv = [sys.executable, "-m", "tests.lab.openstack", *words, "--state", tmp_path / "cloud"]
        return runs.tool(argv)

    try:
        assert re.search(
            r"^export OS_AUTH_URL=http://127\.0\.0\.1:\d+/v3 ", command("up", "--images-only"), re.M
        )
        assert re.search(r"^glance +\d+ ", command("status"), re.M)
    finally:
        command("down")
    assert "stopped" in command("status")
    assert not re.search(r"^\S+ +\d+ ", command("status"), re.M)


KILLED_RUN = """
import os, pathlib, signal, sys
from tests.lab import runs
from tests.lab.openstack import daemon

class Sleeper(daemon.Daemon):
    def argv(self):
        return ["sh", "-c", "sleep 600 & echo $!; wait"]

run = runs.Run().__enter__()
sleeper = Sleeper("sleeper", run.folder)
sleeper.start()
runs.wait_for(lambda: "\\n" in sleeper.log(), 30, "sleeper", sleeper.log)
print(run.tag, sleeper.pid, sleeper.log(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_services_of_a_killed_run_are_ended_with_their_children() -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED_RUN], capture_output=True, text=True, check=False
    )
    tag, *pids = run.stdout.split()
    assert len(pids) == 2
    assert all(runs.start_ticks(int(pid)) is not None for pid in pids)
    runs.sweep()  # another run that starts now may have done it already
    assert [pid for pid in pids if runs.start_ticks(int(pid)) is not None] == []
    assert not (runs.RUNS_FOLDER / tag).exists()
