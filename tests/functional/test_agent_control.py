# SPDX-License-Identifier: Apache-2.0
"""The control socket and acstor-agent-ctl: commands, permissions and bad clients."""

import contextlib
import grp
import json
import os
import pathlib
import socket
import stat
import subprocess
import time

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.wire import control_wire
from tests.fakes import hosts
from tests.fakes import http_server
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
UNKNOWN = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


@contextlib.contextmanager
def connected(agent: agents.Agent):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(str(agent.control_socket))
        yield link


def send(agent: agents.Agent, line: bytes) -> dict | None:
    """Send bytes and return the reply, or None if the agent closes the connection."""
    with connected(agent) as link, link.makefile("rb") as replies:
        link.sendall(line)
        reply = replies.readline()
        return json.loads(reply) if reply else None


def ctl(agent: agents.Agent, *args: str) -> subprocess.CompletedProcess:
    argv = [agents.BIN / "acstor-agent-ctl", "--socket", agent.control_socket, *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20)


def worker_lives_on(agent: agents.Agent, pid: int) -> bool:
    return agent.status()["worker_pid"] == pid == agent.worker_pid()


def test_status_prints_a_table_or_json(images, start):
    image_id = images.add(local.random_bytes(3 * CHUNK))
    agent = start()
    agent.image_path(image_id).read_bytes()
    table = agent.ctl("status")
    assert image_id in table and "| source |" in table and str(agent.mount_point) in table
    assert {"Identity", "Faults", "Refused"} <= set(table.split())
    shown = json.loads(agent.ctl("--json", "status"))
    assert shown["fetched"]["source"] == {"requests": 3, "bytes": 3 * CHUNK}
    assert shown["images"][image_id]["cached_bytes"] == 3 * CHUNK
    assert shown["exchange"] == agent.status()["exchange"]


def test_attach_command_attaches_an_image_before_its_first_open(images, start):
    image_id = images.add(local.random_bytes(3 * CHUNK))
    agent = start()
    assert json.loads(agent.ctl("--json", "attach", image_id)) == {
        "image_id": image_id,
        "size_bytes": 3 * CHUNK,
        "disk_format": "raw",
        "stored_bytes": 3 * CHUNK,
    }
    assert agent.status()["images"][image_id]["size_bytes"] == 3 * CHUNK


def test_failed_command_prints_the_reason_and_exits_with_1(start):
    agent = start()
    for command in ("attach", "pre-seed", "detach"):
        done = ctl(agent, command, UNKNOWN)
        assert done.returncode == 1
        assert UNKNOWN in done.stderr
    assert ctl(agent, "attach", "not-an-image").returncode == 2
    assert ctl(agent).returncode == 2
    nobody = subprocess.run(
        [agents.BIN / "acstor-agent-ctl", "--socket", "/nowhere/x.sock", "status"],
        capture_output=True,
        text=True,
    )
    assert nobody.returncode == 1
    assert "/nowhere/x.sock: No such file" in nobody.stderr


def test_image_in_use_cannot_be_detached(images, start):
    data = local.random_bytes(3 * CHUNK)
    image_id = images.add(data)
    agent = start()
    with agent.image_path(image_id).open("rb") as opened:
        done = ctl(agent, "detach", image_id)
        assert done.returncode == 1
        assert f"[{os.getpid()}]" in done.stderr
        assert opened.read() == data
    agent.ctl("detach", image_id)
    assert agent.status()["images"] == {}
    assert os.listdir(agent.mount_point / "images") == []
    assert agent.image_path(image_id).read_bytes() == data
    assert agent.status()["exchange"]["source_bytes"] == len(data)


def test_image_in_use_in_another_mount_namespace_cannot_be_detached(images, start):
    image_id = images.add(local.random_bytes(CHUNK))
    agent = start()
    argv = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'exec 3< "$0"; echo; read x',
        agent.image_path(image_id),
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guest:
        guest.stdout.readline()
        try:
            assert str(guest.pid) in ctl(agent, "detach", image_id).stderr
        finally:
            guest.stdin.close()
    assert ctl(agent, "detach", image_id).returncode == 0


def test_pre_seed_fetches_each_chunk_once(images, start):
    data = local.random_bytes(20 * MIB + 5, zero_share=0.2)
    image_id = images.add(data)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        agent = start(**hosts.http_options(server.url))
        replies = []
        with connected(agent) as link, link.makefile("rb") as lines:
            link.sendall(control_wire.encode(control_wire.PreSeed(image_id)))
            for line in lines:
                replies.append(json.loads(line))
                if replies[-1]["reply"] != "progress":
                    break
        assert [reply["reply"] for reply in replies[:-1]] == ["progress"] * (len(replies) - 1)
        assert len(replies) > 1
        assert {reply["total_bytes"] for reply in replies[:-1]} == {len(data)}
        result = replies[-1]["result"]
        assert (result["done_bytes"], result["failed_bytes"]) == (len(data), 0)
        moved = server.body_bytes
        assert agent.status()["exchange"]["source_bytes"] == result["fetched_bytes"]
        again = json.loads(agent.ctl("--json", "pre-seed", image_id))
        assert (again["fetched_bytes"], again["done_bytes"]) == (0, len(data))
        assert agent.image_path(image_id).read_bytes() == data
        assert server.body_bytes == moved


def test_pre_seed_stops_when_its_client_disconnects(images, start):
    image_id = images.add(local.random_bytes(MIB))
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        agent = start(constants={tuned.BACKGROUND_LIMIT: 1}, **hosts.http_options(server.url))
        agent.ctl("attach", image_id)
        server.always = http_server.slow(0.2)
        pid = agent.worker_pid()
        with connected(agent) as link:
            link.sendall(control_wire.encode(control_wire.PreSeed(image_id)))
            link.recv(1)
        time.sleep(1.2)  # the next report, due twice a second, finds a closed socket
        server.always = http_server.fine
        assert worker_lives_on(agent, pid)
        asked = len(server.asked)
        time.sleep(0.5)
        assert len(server.asked) == asked


def test_failed_pre_seed_names_the_bad_chunk_and_keeps_the_others(images, start):
    data = local.random_bytes(8 * CHUNK)
    image_id = images.add(data)
    with images.path(image_id).open("r+b") as file:
        file.seek(5 * CHUNK)
        file.write(b"not what the map says")
    agent = start()
    done = ctl(agent, "pre-seed", image_id)
    assert done.returncode == 1
    assert "the CID is" in done.stderr
    assert agent.status()["images"][image_id]["cached_bytes"] == 7 * CHUNK


def test_ring_sent_over_the_socket_survives_a_restart(images, start):
    agent = start()
    assert json.loads(agent.ctl("--json", "ring"))["epoch"] == 0
    table = hosts.ring_table({"h1": 1, "h2": 2}, epoch=7)
    assert agents.request(agent.control_socket, "set-ring", ring=table) == {"epoch": 7}
    for bad in (hosts.ring_table({"h1": 1}, epoch=6), {"version": 9}, {}, "ring", None):
        with pytest.raises(errors.Unusable):
            agents.request(agent.control_socket, "set-ring", ring=bad)
    shown = agent.ctl("ring")
    assert "epoch 7" in shown and "127.0.0.1:2" in shown
    hosts.kill(agent.worker_pid())
    agent.wait_ready()
    assert agent.status()["ring"] == {"epoch": 7, "hosts": 2, "is_signed": False}


def mode_of(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_agents_user_may_use_the_socket(start):
    assert mode_of(start().control_socket) == 0o600


def test_members_of_the_control_group_may_use_the_socket(start):
    group = next(g for g in grp.getgrall() if g.gr_gid)
    path = start(control_group=group.gr_name).control_socket
    assert mode_of(path) == 0o660
    assert path.stat().st_gid == group.gr_gid


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"hello\n",
        b"\x00\xff\xfe\n",
        b"{}\n",
        b"[]\n",
        b'{"op":"format-the-disk"}\n',
        b'{"op":"attach-image"}\n',
        b'{"op":"attach-image","image_id":7}\n',
        b'{"op":"status","more":1}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_malformed_request_is_refused_and_its_connection_closed(shared, line):
    pid = shared.worker_pid()
    with connected(shared) as link, link.makefile("rb") as replies:
        link.sendall(line)
        reply = json.loads(replies.readline())
        assert (reply["reply"], reply["kind"]) == ("failed", "RemoteProtocolError")
        assert replies.readline() == b""
    assert worker_lives_on(shared, pid)


def test_invalid_argument_is_refused_and_the_connection_stays_open(shared):
    with connected(shared) as link, link.makefile("rb") as replies:
        for op in ("attach-image", "detach-image", "pre-seed"):
            for image_id in ("", "../../etc/passwd", "x" * 5000, UNKNOWN):
                link.sendall(json.dumps({"op": op, "image_id": image_id}).encode() + b"\n")
                assert json.loads(replies.readline())["reply"] == "failed"
        link.sendall(b'{"op":"status"}\n')
        assert json.loads(replies.readline())["reply"] == "done"


def test_line_over_the_size_limit_closes_the_connection(shared):
    pid = shared.worker_pid()
    with connected(shared) as link:
        with contextlib.suppress(ConnectionError):
            for _ in range(3 * control_wire.MAX_LINE_BYTES // MIB):
                link.sendall(b"x" * MIB)
        assert "a line of over 8388608 bytes" in json.loads(link.makefile().readline())["error"]
    assert worker_lives_on(shared, pid)


def test_unfinished_requests_do_not_delay_other_clients(shared):
    pid = shared.worker_pid()
    with connected(shared) as half, connected(shared):
        half.sendall(b'{"op":"sta')
        assert worker_lives_on(shared, pid)
        half.sendall(b'tus"}\n')
        assert json.loads(half.makefile().readline())["result"]["worker_pid"] == pid
    with connected(shared) as gone:
        gone.sendall(b'{"op":"status"}\n' * 200)
    assert worker_lives_on(shared, pid)


def test_pipelined_requests_are_answered_in_order(shared):
    with connected(shared) as link, link.makefile("rb") as replies:
        link.sendall(b'{"op":"ring"}\n{"op":"status"}\n{"op":"ring"}\n')
        results = [json.loads(replies.readline())["result"] for _ in range(3)]
    assert ["epoch" in result for result in results] == [True, False, True]


def test_attach_fails_with_the_reason_while_its_map_cannot_be_written(images, start):
    image_id = images.add(local.random_bytes(CHUNK))
    agent = start()
    pid = agent.worker_pid()
    maps = agent.folder / "state" / "maps"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", maps], check=True)
    try:
        done = ctl(agent, "attach", image_id)
        assert done.returncode == 1
        assert "Read-only file system" in done.stderr
        with pytest.raises(OSError, match="Read-only file system"):
            agent.image_path(image_id).stat()
        assert worker_lives_on(agent, pid)
    finally:
        subprocess.run(["umount", maps], check=True)
    assert ctl(agent, "attach", image_id).returncode == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One agent that tests leave unchanged."""
    folder = tmp_path_factory.mktemp("control")
    with hosts.running(folder / "h1", local.ImageFolder(folder / "images"), life_s=60) as agent:
        yield agent
