# SPDX-License-Identifier: Apache-2.0
"""Several agents on one ring: one source read for all, and what a faulty host costs the others."""

import contextlib
import os
import pathlib
import socket
import threading
import time
from typing import Any

import pytest

from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import lying_peer
from tests.fakes import slow_link
from tests.lab import agents
from tests.lab import identities
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(12 * MIB)


def patient(silence_s: float) -> dict[str, Any]:
    """Return options of agents that wait ``silence_s`` for silent peers."""
    return {"constants": {tuned.PEER_SILENCE_S: silence_s}}


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def read(path: pathlib.Path, chunk_no: int) -> bytes:
    return hosts.read_direct(path, chunk_no * CHUNK, CHUNK)


def chunk(chunk_no: int) -> bytes:
    return DATA[chunk_no * CHUNK : (chunk_no + 1) * CHUNK]


def owned_by(cloud: hosts.Cloud, *names: str) -> list[int]:
    """Return the chunks whose owners on the ring begin with ``names``, the home first."""
    table = hash_ring.decode(cloud.ring_file.read_bytes(), "ring")
    chunks = range(len(DATA) // CHUNK)
    return [n for n in chunks if table.owners_of(ids.cid_of(chunk(n)), len(names)) == names]


def read_everywhere(cloud: hosts.Cloud, image_id: ids.ImageId) -> list[bytes]:
    """Read the whole image on every host at once."""
    got: dict[str, bytes] = {}

    def take(name: str, agent: agents.Agent) -> None:
        got[name] = agent.image_path(image_id).read_bytes()

    readers = [threading.Thread(target=take, args=item) for item in cloud.agents.items()]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)
    return [got[name] for name in cloud.agents]


@pytest.mark.parametrize("names", [("h1", "h2"), ("h1", "h2", "h3")])
def test_source_is_read_once_for_all_hosts(tmp_path, images, image_id, names):
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    asked: list[tuple[int, int]] = []

    def witness(handler, request) -> None:
        if handler.path.endswith(".raw") and request.stop - request.start > 1:
            asked.append((request.start, request.stop))
        http_server.fine(handler, request)

    with http_server.serve(files) as server:
        server.always = witness
        options = hosts.http_options(server.url, 5) | patient(5)
        with hosts.cloud(tmp_path, images, names, variants=hosts.BY_HOMES, **options) as cloud:
            assert read_everywhere(cloud, image_id) == [DATA] * len(names)
            statuses = cloud.statuses()
    assert sum(stop - start for start, stop in asked) == len(DATA)
    for status in statuses.values():
        assert status["exchange"]["failovers"] == 0
        assert status["fetched"]["home"]["bytes"] > 0
        assert status["ring"] == {"epoch": 1, "hosts": len(names), "is_signed": False}


def test_next_owner_replaces_a_dead_home(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, variants="no-read-ahead") as cloud:
        cloud["h3"].stop()
        *chunks, again = owned_by(cloud, "h3")[:17]
        later = iter(owned_by(cloud, "h3")[17:])
        of_h2 = set(chunks) & set(owned_by(cloud, "h3", "h2"))
        for name in ("h1", "h2"):
            path = cloud[name].image_path(image_id)
            for chunk_no in chunks:
                assert read(path, chunk_no) == chunk(chunk_no)
        statuses = [cloud[name].status() for name in ("h1", "h2")]
        assert sum(status["exchange"]["source_bytes"] for status in statuses) == MIB
        moved = [{origin: n["bytes"] for origin, n in s["fetched"].items()} for s in statuses]
        assert 0 < moved[0]["home"] == len(of_h2) * CHUNK < MIB
        assert sum(fetched["home"] + fetched["peer"] for fetched in moved) == MIB
        cloud["h3"].start()
        cloud["h3"].wait_ready()
        assert read(cloud["h1"].image_path(image_id), again) == chunk(again)

        def is_asked_again() -> int:
            """Read one more chunk: after its backoff a host gets a hedged request."""
            number = next(later)
            assert read(cloud["h1"].image_path(image_id), number) == chunk(number)
            time.sleep(0.5)
            return int(cloud["h3"].status()["exchange"]["served_chunks"])

        hosts.wait_until(is_asked_again, "the home to be asked again", 20)


@pytest.mark.parametrize("is_connected", [True, False])
def test_frozen_home_costs_the_peer_timeout_and_no_error(tmp_path, images, image_id, is_connected):
    with hosts.cloud(tmp_path, images, ("h1", "h2"), variants="no-read-ahead") as cloud:
        first, *others = owned_by(cloud, "h2")[:5]
        path = cloud["h1"].image_path(image_id)
        path.stat()
        if is_connected:
            assert read(path, first) == chunk(first)
        with hosts.frozen(cloud["h2"].worker_pid()):
            for chunk_no in others:
                began = time.monotonic()
                assert read(path, chunk_no) == chunk(chunk_no)
                assert time.monotonic() - began < 2
        assert cloud["h1"].status()["images"][image_id]["failed_reads"] == 0


def test_chunks_of_peers_are_readable_while_the_source_is_down(tmp_path, images, image_id):
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        options = {"read_deadline_s": 1.0, **hosts.http_options(server.url, 0.3)}
        stack = contextlib.ExitStack()
        with stack:
            cloud = stack.enter_context(hosts.cloud(tmp_path, images, ("h1", "h2"), **options))
            chunk_no, unread = owned_by(cloud, "h1")[:2]
            cloud["h2"].ctl("attach", image_id)
            assert read(cloud["h1"].image_path(image_id), chunk_no) == chunk(chunk_no)
            server.always = http_server.hang_up
            assert read(cloud["h2"].image_path(image_id), chunk_no) == chunk(chunk_no)
            with pytest.raises(OSError, match="Input/output error"):
                read(cloud["h2"].image_path(image_id), unread)


@pytest.mark.parametrize("lie", lying_peer.LIES)
def test_lying_peer_causes_failovers_and_no_wrong_bytes(tmp_path, images, image_id, lie):
    with lying_peer.hostile_peer("liar", seed=1, lies=[lie]) as peer:
        options = {"in_ring_only": {"liar": peer.port}, **patient(0.3)}
        with hosts.cloud(tmp_path, images, ("h1",), **options) as cloud:
            assert cloud["h1"].image_path(image_id).read_bytes() == DATA
            status = cloud["h1"].status()
            assert peer.gets > 0
            assert status["exchange"]["failovers"] > 0
            assert status["fetched"]["home"]["bytes"] == 0
            assert status["images"][image_id]["failed_reads"] == 0


def test_host_at_the_address_of_another_host_is_refused(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3")) as cloud:
        swapped = {**cloud.ports, "h2": cloud.ports["h3"], "h3": cloud.ports["h2"]}
        hosts.write_ring(cloud.ring_file, swapped, epoch=2)
        hosts.wait_until(lambda: cloud["h1"].status()["ring"]["epoch"] == 2, "the ring")
        assert cloud["h1"].image_path(image_id).read_bytes() == DATA
        assert "this is h3, not h2: the address in the ring is wrong" in cloud["h1"].log()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: h1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x41\x43\x01\x01\xff\xff\xff\xff" + bytes(1000),
        b"\x41\x43\x01\x02\x00\x00\x00\x46" + bytes(70),
        os.urandom(100_000),
    ],
)
def test_garbage_on_the_peer_port_does_not_harm_the_agent(shared, data):
    cloud, image_id = shared
    pid = cloud["h1"].worker_pid()
    for _ in range(5):
        with socket.create_connection((local.LOOPBACK, cloud.ports["h1"]), timeout=5) as link:
            with contextlib.suppress(OSError):  # the agent may have closed it already
                link.sendall(data)
                link.shutdown(socket.SHUT_WR)
                while link.recv(4096):
                    pass
    assert cloud["h1"].status()["worker_pid"] == pid
    assert cloud["h2"].image_path(image_id).read_bytes() == DATA


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two agents that tests leave unchanged, and an image."""
    folder = tmp_path_factory.mktemp("cloud")
    images = local.ImageFolder(folder / "images")
    image_id = images.add(DATA)
    with hosts.cloud(folder, images, ("h1", "h2"), life_s=60) as cloud:
        yield cloud, image_id


def epoch(cloud: hosts.Cloud, name: str) -> int:
    return cloud[name].status()["ring"]["epoch"]


def test_agent_applies_changes_of_the_ring_file(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, ("h1", "h2")) as cloud:
        agent, path = cloud["h1"], cloud.ring_file
        hosts.write_ring(path, cloud.ports, epoch=5)
        for name in cloud.ports:
            hosts.wait_until(lambda name=name: epoch(cloud, name) == 5, "the newer table")
        hosts.write_ring(path, {"h9": 9}, epoch=4)
        hosts.wait_until(lambda: "older than 5 in use; not accepted" in agent.log(), "a warning")
        path.write_text('{"version": 1, "epoch": 6, "hosts": [')
        hosts.wait_until(lambda: "keeping the last table" in agent.log(), "a warning")
        assert agent.status()["ring"] == {"epoch": 5, "hosts": 2, "is_signed": False}
        hosts.write_ring(path, {"h1": cloud.ports["h1"]}, epoch=7)
        for name in cloud.ports:  # a former home without it would read the source for the new one
            hosts.wait_until(lambda name=name: epoch(cloud, name) == 7, "the newest table")
        assert agent.image_path(image_id).read_bytes() == DATA
        assert agent.status()["exchange"]["source_bytes"] == len(DATA)
        assert agent.log().count("older than 5") == 1


def test_host_that_left_the_ring_is_skipped_by_a_request_in_flight(tmp_path, images, image_id):
    """The first home responds late; the second one has left the ring by then."""
    with lying_peer.hostile_peer("slow", seed=1, lies=[lying_peer.silence]) as slow:
        ghosts = {"slow": slow.port, "gone": local.unused_port()}
        options = {"in_ring_only": ghosts, **patient(2.2), "variants": "no-read-ahead"}
        with hosts.cloud(tmp_path, images, ("h1",), **options) as cloud:
            agent = cloud["h1"]
            agent.ctl("attach", image_id)
            chunk_no = owned_by(cloud, "slow", "gone")[0]
            got: list[bytes] = []
            path = agent.image_path(image_id)
            reader = threading.Thread(target=lambda: got.append(read(path, chunk_no)))
            pid = agent.worker_pid()
            reader.start()
            hosts.wait_until(lambda: slow.gets > 0, "the request")
            hosts.write_ring(cloud.ring_file, cloud.ports, epoch=2)
            reader.join(15)
            assert got == [chunk(chunk_no)]
            assert agent.status()["worker_pid"] == pid


def test_source_is_read_first_when_peers_are_clearly_slower(tmp_path, images, image_id):
    with (
        hosts.cloud(tmp_path, images, ("h1", "h2"), variants="no-read-ahead") as cloud,
        slow_link.slow_link(cloud.ports["h1"], delay_s=0.15) as slow_port,
    ):
        agent = cloud["h2"]
        hosts.write_ring(cloud.ring_file, cloud.ports | {"h1": slow_port}, epoch=2)
        hosts.wait_until(lambda: epoch(cloud, "h2") == 2, "the slow way")
        path = agent.image_path(image_id)
        slow, quick = owned_by(cloud, "h1"), owned_by(cloud, "h2")
        for pair in zip(slow[:8], quick[:8], strict=True):  # now the agent knows both latencies
            assert [read(path, n) for n in pair] == [chunk(n) for n in pair]
        assert agent.status()["fetched"]["home"]["requests"] == 8
        for n in slow[8:24]:
            assert read(path, n) == chunk(n)
        exchange = agent.status()["exchange"]
        assert exchange["is_source_preferred"] and exchange["source_preferred_reads"] >= 12
        assert exchange["source_bytes"] == (8 + exchange["source_preferred_reads"]) * CHUNK


def test_agents_with_certificates_of_one_authority_exchange(tmp_path, images, image_id):
    with hosts.cloud(tmp_path, images, security="secure", **patient(5)) as cloud:
        assert read_everywhere(cloud, image_id) == [DATA] * 3
        statuses = cloud.statuses().values()
        assert sum(status["exchange"]["source_bytes"] for status in statuses) == len(DATA)


@pytest.mark.parametrize("fault", ["other authority", "clear text"])
def test_agent_without_a_valid_certificate_is_refused(tmp_path, images, image_id, fault):
    def each(name: str) -> dict[str, object]:
        folder = tmp_path / f"tls-{name}"
        folder.mkdir()
        found = identities.issue(name)
        if name == "h2" and fault == "other authority":
            other = certificates.Authority.create("other", time.time(), identities.VALID_S)
            found = identities.issue(name, other)
        elif name == "h2":
            return {"security": "insecure"}
        for path, data in zip(identity_files.files_in(folder), found, strict=True):
            path.write_bytes(data)
        return {"security": "secure", "identity_dir": folder}

    with hosts.cloud(tmp_path, images, ("h1", "h2"), each=each) as cloud:
        for agent in cloud.agents.values():
            assert agent.image_path(image_id).read_bytes() == DATA
            exchange = agent.status()["exchange"]
            assert (exchange["served_chunks"], exchange["source_bytes"]) == (0, len(DATA))
        assert "ropped" in cloud["h1"].log()
