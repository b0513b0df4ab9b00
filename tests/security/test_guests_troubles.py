# SPDX-License-Identifier: Apache-2.0
"""Faults of services that guests do not need, at the start or at a restart of the worker.

Guests are served all the same, and the operator sees each fault, its start, and its end.

"""

import os
import socket
import subprocess
import time
import urllib.request

import pytest

from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local

pytestmark = hosts.needs_fuse

DATA = local.random_bytes(300_000)


def taken() -> socket.socket:
    """Return a socket that occupies a port."""
    return socket.create_server((local.LOOPBACK, local.unused_port()))


def address_of(listener: socket.socket) -> str:
    return f"{local.LOOPBACK}:{listener.getsockname()[1]}"


def next_worker(agent: agents.Agent) -> None:
    """Kill the worker and wait until another one serves."""
    former = agent.worker_pid()
    hosts.kill(former)
    hosts.wait_until(lambda: agent.worker_pid() not in (None, former), "the next worker")


def read(agent: agents.Agent, image_id: str) -> bytes:
    """Read an image past the page cache."""
    fd = os.open(agent.image_path(image_id), os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, len(DATA), 0)
    finally:
        os.close(fd)


def troubles(agent: agents.Agent) -> dict:
    return agent.status()["faults"]


@pytest.mark.parametrize("option", ["metrics_listen", "peer_listen"])
def test_busy_port_is_retried_while_guests_are_served(images, start, option):
    image_id = images.add(DATA)
    with taken() as other:
        agent = start(**{option: address_of(other)})
        assert read(agent, image_id) == DATA
        assert "Address already in use" in troubles(agent)[option]["why"]
        assert abs(troubles(agent)[option]["since_s"] - time.time()) < 60
        assert f"{option}: " in agent.log()
        assert os.listdir(agent.mount_point / "images") == [f"{image_id}.raw"]
    hosts.wait_until(lambda: option not in troubles(agent), "the port")
    assert f"{option}: works again" in agent.log()
    with socket.create_connection((local.LOOPBACK, other_port(agent, option))):
        pass


def other_port(agent: agents.Agent, option: str) -> int:
    lines = agent.config_file.read_text().splitlines()
    line = next(line for line in lines if line.startswith(option))
    return int(line.rpartition(":")[2])


def test_worker_is_restarted_while_the_metrics_port_is_busy(images, start):
    image_id = images.add(DATA)
    port = local.unused_port()
    agent = start(metrics_listen=f"{local.LOOPBACK}:{port}")
    with urllib.request.urlopen(f"http://{local.LOOPBACK}:{port}/metrics", timeout=5) as page:
        assert b"acstor_waiting_requests" in page.read()
    former = agent.worker_pid()
    hosts.kill(former)
    deadline = time.monotonic() + 5
    other = None
    while other is None and time.monotonic() < deadline:
        try:
            other = socket.create_server((local.LOOPBACK, port))
        except OSError:
            time.sleep(0.001)
    try:
        hosts.wait_until(lambda: agent.worker_pid() not in (None, former), "the next worker")
        assert read(agent, image_id) == DATA
        assert other is not None
        assert "metrics_listen" in troubles(agent)
        steady = agent.worker_pid()
        time.sleep(1.5)
        assert agent.worker_pid() == steady
        assert read(agent, image_id) == DATA
    finally:
        if other is not None:
            other.close()


def test_control_socket_is_created_once_its_folder_is_available(images, tmp_path):
    image_id = images.add(DATA)
    folder = tmp_path / "h1"
    folder.mkdir()
    (folder / "run").touch()  # a file in place of its folder
    config = hosts.configure(
        folder,
        {
            "acstor": {"control_socket": folder / "run" / "control.sock"},
            "source_file": {"folder": images.folder},
        },
    )
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [agents.BIN / "acstor-agent", "--config-file", config], stdout=out, stderr=out
        )
    try:
        path = folder / "mirror" / "images" / f"{image_id}.raw"
        hosts.wait_until(lambda: bool(hosts.mounts(folder)), "the mount")
        hosts.wait_until(path.exists, "the image")
        assert path.read_bytes() == DATA
        assert "control_socket: " in log.read_text()
        (folder / "run").unlink()
        hosts.wait_until((folder / "run" / "control.sock").exists, "the socket")
    finally:
        process.terminate()
        assert process.wait(15) == 0
    assert not hosts.mounts(folder)


def test_invalid_message_bus_url_is_reported(images, start):
    image_id = images.add(DATA)
    agent = start(sections={"DEFAULT": {"transport_url": "pigeon://nowhere"}})
    assert read(agent, image_id) == DATA
    assert "pigeon" in troubles(agent)["message bus"]["why"]


def test_silent_message_bus_delays_no_guest(images, start):
    image_id = images.add(DATA)
    with taken() as silent:
        agent = start(
            sections={"DEFAULT": {"transport_url": f"rabbit://a:b@{address_of(silent)}//"}}
        )
        assert read(agent, image_id) == DATA
        next_worker(agent)
        assert read(agent, image_id) == DATA
