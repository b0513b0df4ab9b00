# SPDX-License-Identifier: Apache-2.0
"""Misbehaving hosts and peers: floods, forged senders, flapping, duplicate ids, a dead endpoint."""

import contextlib
import ctypes
import os
import pathlib
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from acstor_common.wire.peer import replica_messages
from tests.fakes import announced
from tests.fakes import hosts
from tests.fakes import lying_peer
from tests.lab import agents
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(8 * MIB, seed=3)
CIDS = [ids.cid_of(DATA[start : start + CHUNK]) for start in range(0, len(DATA), CHUNK)]
PIDFD_GETFD = 438


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def listening_fd(pid: int, port: int) -> int:
    """Return the descriptor of a process that listens on a TCP port of IPv4."""
    lines = pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    inode = next(f[9] for f in fields if f[1].endswith(f":{port:04X}") and f[3] == "0A")
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link) == f"socket:[{inode}]":
            return int(link.name)
    pytest.fail(f"process {pid} has no socket of port {port}")


def shut_down_listener(pid: int, port: int) -> None:
    """Shut down another process's listening socket from outside."""
    pidfd = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(
            PIDFD_GETFD, pidfd, listening_fd(pid, port), 0
        )
        if copy < 0:
            pytest.skip(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=copy) as listener:
            listener.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(pidfd)


def test_dead_peer_listener_is_opened_again(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, ("h1", "h2"), variants="no-read-ahead") as cloud:
        pid = cloud["h2"].worker_pid()
        for times in (1, 2):
            shut_down_listener(pid, cloud.ports["h2"])
            hosts.wait_until(
                lambda times=times: (
                    cloud["h2"].status()["exchange"]["peer_listener_restarts"] == times
                ),
                "the endpoint",
                30,
            )
        assert cloud["h1"].image_path(image_id).read_bytes() == DATA
        assert cloud["h2"].status()["exchange"]["served_chunks"] > 0
        assert cloud["h2"].worker_pid() == pid
        assert "the peer listener" in cloud["h2"].log()


@contextlib.contextmanager
def impostor(cloud: hosts.Cloud, to: str, name: str) -> Iterator[socket.socket]:
    """Connect to an agent as another host of the ring, for bulk messages."""
    address = (local.LOOPBACK, cloud.ports[to])
    with socket.create_connection(address, timeout=20) as link:
        lying_peer.send(link, peer_wire.Hello(ids.HostId(name), peer_wire.ConnectionClass.BULK, 1))
        yield link


def flood(link: socket.socket, kind: type[peer_wire.Notification], count: int) -> None:
    """Send full messages as fast as the agent takes them, half true and half invented."""
    for number in range(count):
        invented = range(1 + number * 400, 401 + number * 400)
        prefixes = [*invented, *(ids.oid_of(cid) for cid in CIDS[:100])]
        lying_peer.send(link, kind(announced.alone(*prefixes)))


def keeps(count: int, lease_s: int = 86400) -> peer_wire.ReplicaRequest:
    """Return a request to keep images that do not exist."""
    return peer_wire.ReplicaRequest(
        tuple(
            replica_messages.Lease(ids.ImageId(str(uuid.UUID(int=number))), lease_s)
            for number in range(count)
        )
    )


def test_leases_of_unknown_images_do_not_delay_valid_ones(tmp_path, images, image_id):
    options = {"keep_images": "cloud", "constants": {tuned.BOOT_IDLE_S: 1.0}}
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3"), life_s=200, **options) as cloud:
        with impostor(cloud, "h1", "h3") as link:
            for _ in range(20):
                lying_peer.send(link, keeps(256))
            hosts.wait_until(
                lambda: cloud["h1"].status()["replicas"]["leased_images"] == 256, "leases", 60
            )
            body = b"".join(peer_wire.encode(keeps(1)))[peer_wire.HEADER_BYTES :]
            head = struct.pack(">HBBI", peer_wire.MAGIC, peer_wire.MAJOR_VERSION, 12, len(body))
            link.sendall(head + body[:16] + b"\xff" * 4)
            with contextlib.suppress(ConnectionError):
                while link.recv(4096):  # until it is dropped
                    pass
        refused = f"a lease of {2**32 - 1} s"
        hosts.wait_until(lambda: refused in cloud["h1"].log(), "a line in the log", 30)
        with impostor(cloud, "h1", "h99") as link, contextlib.suppress(ConnectionError):
            lying_peer.send(link, keeps(1))
            assert link.recv(1000) == b""  # not even Hello
        cloud["h2"].ctl("attach", image_id)  # an honest host is served beside it

        def state() -> str | None:
            shown = cloud["h2"].status()["images"].get(image_id, {}).get("fill")
            return shown and shown["state"]

        hosts.wait_until(lambda: state() == "fully_cached", "an image that is whole", 120)
        shares = cloud["h1"].status()["replicas"]
        assert (shares["leased_images"], shares["images"]) == (257, 1)
        assert set(cloud["h1"].status()["images"]) == {image_id}


def resident_bytes(pid: int | None) -> int:
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024


@pytest.mark.parametrize("kind", [peer_wire.Advertise, peer_wire.Gone, peer_wire.EvictionHint])
def test_flood_from_a_neighbour_costs_no_wrong_byte_and_bounded_memory(
    tmp_path, images, image_id, kind
):
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3"), life_s=200) as cloud:
        cloud["h1"].ctl("attach", image_id)
        pid = cloud["h1"].worker_pid()
        before = resident_bytes(pid)

        def ignored() -> int:
            return cloud["h1"].status()["exchange"]["ignored_advertisements"]

        with impostor(cloud, "h1", "h3") as link:
            flooding = threading.Thread(target=flood, args=(link, kind, 600))
            flooding.start()
            assert cloud["h1"].image_path(image_id).read_bytes() == DATA
            hosts.wait_until(lambda: ignored() > 10_000, "ignored advertisements", 90)
            flooding.join(40)
        for name in ("h2", "h3"):
            assert cloud[name].image_path(image_id).read_bytes() == DATA
        status = cloud["h1"].status()
        assert status["images"][image_id]["failed_reads"] == 0
        assert cloud["h1"].worker_pid() == pid
        assert resident_bytes(pid) - before < 64 * MIB
        sources = sum(s["exchange"]["source_bytes"] for s in cloud.statuses().values())
        assert sources < 1.5 * len(DATA)


def test_messages_of_hosts_outside_the_ring_are_ignored(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, ("h1", "h2")) as cloud:
        assert cloud["h1"].image_path(image_id).read_bytes() == DATA
        for kind in (peer_wire.Advertise, peer_wire.Gone, peer_wire.EvictionHint):
            with impostor(cloud, "h1", "h99") as link, contextlib.suppress(ConnectionError):
                flood(link, kind, 20)
                assert link.recv(1000) == b""  # not even Hello
        assert "Hello of h99 is rejected" in cloud["h1"].log()
        status = cloud["h1"].status()["exchange"]
        assert (status["demoted_chunks"], status["false_advertisements"]) == (0, 0)
        assert cloud["h2"].image_path(image_id).read_bytes() == DATA


def test_flapping_neighbour_causes_no_failed_reads(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3"), life_s=60) as cloud:
        stop = threading.Event()

        def flap(agent: agents.Agent) -> None:
            while not stop.is_set():
                hosts.kill(agent.worker_pid())  # the supervisor starts another one
                stop.wait(0.7)

        flapping = threading.Thread(target=flap, args=(cloud["h3"],))
        flapping.start()
        try:
            for name in ("h1", "h2"):
                assert cloud[name].image_path(image_id).read_bytes() == DATA
                time.sleep(1.0)
        finally:
            stop.set()
            flapping.join(20)
        for name in ("h1", "h2"):
            assert cloud[name].status()["images"][image_id]["failed_reads"] == 0


@pytest.mark.parametrize(
    ("variants", "most_reads"), [("no-read-ahead", 3), (f"no-read-ahead,{hosts.BY_HOMES}", 2)]
)
def test_two_hosts_with_one_id_cost_source_reads_but_no_wrong_bytes(
    tmp_path, images, image_id, variants, most_reads
):
    """A copied configuration: the twin acts as the home of h2's chunks."""
    with (
        hosts.cloud(tmp_path, images, ("h1", "h2"), variants=variants) as cloud,
        hosts.running(
            tmp_path / "twin", images, name="h2", ring_file=cloud.ring_file, variants=variants
        ) as twin,
    ):
        everyone = [cloud["h1"], cloud["h2"], twin]
        got: dict[int, bool] = {}

        def read(number: int) -> None:
            got[number] = everyone[number].image_path(image_id).read_bytes() == DATA

        readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(40)
        assert got == {0: True, 1: True, 2: True}
        sources = sum(agent.status()["exchange"]["source_bytes"] for agent in everyone)
        assert sources <= most_reads * len(DATA)
        assert all(agent.status()["exchange"]["invalid_chunks"] == 0 for agent in everyone)


def test_host_whose_clock_jumps_resumes_reads(tmp_path, images, image_id):
    """The host is stopped for longer than every timeout: its clock jumps, and all timeouts fire."""
    options = {"constants": {tuned.PEER_SILENCE_S: 0.3}, "read_deadline_s": 10.0}
    with hosts.cloud(tmp_path, images, ("h1", "h2"), **options) as cloud:
        reader_got: list[bool] = []
        path = cloud["h1"].image_path(image_id)
        path.stat()
        reader = threading.Thread(target=lambda: reader_got.append(path.read_bytes() == DATA))
        for name in ("h1", "h2", "h1"):
            pid = cloud[name].worker_pid()
            if name == "h1" and not reader.ident:
                reader.start()
            with hosts.frozen(pid):
                time.sleep(1.5)
        reader.join(30)
        assert reader_got == [True]
        assert cloud["h2"].image_path(image_id).read_bytes() == DATA
        for status in cloud.statuses().values():
            assert status["images"][image_id]["failed_reads"] == 0
