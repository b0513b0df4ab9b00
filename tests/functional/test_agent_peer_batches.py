# SPDX-License-Identifier: Apache-2.0
"""Events within a batch of chunks of real agents: a wrong chunk, a new ring, another version."""

import contextlib
import threading
import time

import pytest

from acstor_common.model import geometry
from acstor_common.wire.peer import peer_wire
from tests.fakes import hosts
from tests.fakes import lying_peer
from tests.lab import local
from tests.lab import tuned

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES
DATA = local.random_bytes(8 * MIB, seed=5)
NEXT = {"constants": {tuned.PEER_VERSION: peer_wire.MAJOR_VERSION + 1}}


@pytest.fixture
def image_id(images):
    return images.add(DATA)


class HostileServer:
    """A host that serves right bytes, except one chunk of its first long batch.

    :ivar batches: number of chunks in each request
    :ivar lies: offsets of the wrong chunks
    :ivar may_answer: while it is clear, the host delays its response
    """

    def __init__(self, is_liar=False):
        self.batches, self.lies = [], []
        self._is_liar = is_liar
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, link, requests):
        self.batches.append(len(requests))
        self.may_answer.wait(20)
        chunks = [
            [r.request_id, DATA[r.offset : r.offset + r.length], r.chunk_bytes] for r in requests
        ]
        if self._is_liar and not self.lies and len(requests) >= 2:
            self.lies.append(requests[1].offset)
            chunks[1][1] = bytes(CHUNK) + chunks[1][1][CHUNK:]
        run = [peer_wire.Chunk(*chunk) for chunk in chunks]
        with contextlib.suppress(OSError):
            link.sendall(b"".join(peer_wire.encode_chunks(run)))


def failed_reads(cloud, image_id):
    return sum(s["images"][image_id]["failed_reads"] for s in cloud.statuses().values())


def test_wrong_chunk_in_a_batch_backs_its_sender_off_and_keeps_the_others(
    tmp_path, images, image_id
):
    server = HostileServer(is_liar=True)
    with lying_peer.answering("liar", server.answer) as peer:
        options = {"in_ring_only": {"liar": peer.port}, "variants": "no-hedges"}
        with hosts.cloud(tmp_path, images, ("h1",), **options) as cloud:
            assert cloud["h1"].image_path(image_id).read_bytes() == DATA
            exchange = cloud["h1"].status()["exchange"]
            assert server.lies, server.batches
            assert exchange["invalid_chunks"] == 1 and exchange["in_backoff"]["liar"] > 10
            assert "liar is in backoff" in cloud["h1"].log()
            assert failed_reads(cloud, image_id) == 0
            got = cloud["h1"].status()["fetched"]["home"]["bytes"]
            assert got >= CHUNK  # the right chunks beside the wrong one were used
            assert exchange["source_bytes"] + got == len(DATA)


@pytest.mark.parametrize("stays", [True, False], ids=["homes move", "the server leaves"])
def test_ring_change_before_the_response_fails_no_read(tmp_path, images, image_id, stays):
    server = HostileServer()
    with lying_peer.answering("h9", server.answer) as peer:
        ghosts = {"h9": peer.port}
        patient = {tuned.PEER_SILENCE_S: 8.0}
        options = {"in_ring_only": ghosts, "variants": "no-hedges", "constants": patient}
        with hosts.cloud(tmp_path, images, ("h1", "h2"), **options) as cloud:
            got = {}

            def read(name):
                got[name] = cloud[name].image_path(image_id).read_bytes() == DATA

            server.may_answer.clear()
            readers = [threading.Thread(target=read, args=(name,)) for name in ("h1", "h2")]
            for reader in readers:
                reader.start()
            hosts.wait_until(lambda: server.batches, "a batch that waits for its answer")
            weights = {"h1": 300, "h2": 300, "h9": 5}
            ports = {**cloud.ports, **(ghosts if stays else {})}
            hosts.write_ring(cloud.ring_file, ports, epoch=2, vnodes=weights)
            hosts.wait_until(
                lambda: {s["ring"]["epoch"] for s in cloud.statuses().values()} == {2}, "the table"
            )
            server.may_answer.set()
            for reader in readers:
                reader.join(30)
            assert got == {"h1": True, "h2": True} and failed_reads(cloud, image_id) == 0
            statuses = cloud.statuses().values()
            assert sum(s["fetched"]["home"]["bytes"] for s in statuses) > 0
            assert not any(s["exchange"]["in_backoff"] for s in statuses)
            assert all(s["exchange"]["invalid_chunks"] == 0 for s in statuses)


def test_hosts_of_two_versions_refuse_each_other_by_name_and_read_the_source(
    tmp_path, images, image_id
):
    """One host of three is upgraded first and then downgraded; all exchange again."""

    def each(name):
        return NEXT if name == "h3" else {}

    with hosts.cloud(tmp_path, images, each=each, life_s=90) as cloud:
        for name in ("h1", "h3", "h2"):
            assert cloud[name].image_path(image_id).read_bytes() == DATA
        assert failed_reads(cloud, image_id) == 0
        statuses = cloud.statuses()
        for name, status in statuses.items():
            assert status["exchange"]["invalid_chunks"] == 0, (
                name
            )  # a version mismatch is no invalid chunk
        assert statuses["h3"]["exchange"]["source_bytes"] == len(DATA)
        assert statuses["h3"]["exchange"]["served_chunks"] == 0
        assert statuses["h1"]["exchange"]["served_chunks"] > 0  # to h2
        ours, theirs = peer_wire.MAJOR_VERSION, peer_wire.MAJOR_VERSION + 1
        assert f"it speaks version {theirs} of the peer protocol, this host {ours}" in (
            cloud["h1"].log() + cloud["h2"].log()
        )
        assert f"it speaks version {ours} of the peer protocol, this host {theirs}" in (
            cloud["h3"].log()
        )
        assert set(statuses["h1"]["exchange"]["in_backoff"]) <= {"h3"}

        cloud["h3"].stop()
        cloud["h3"].constants = {}
        cloud["h3"].start()
        cloud["h3"].wait_ready()
        more = images.add(local.random_bytes(4 * MIB, seed=6))

        def has_requests():
            cloud["h1"].ctl("attach", more)
            cloud["h1"].image_path(more).read_bytes()
            return cloud["h3"].status()["exchange"]["served_chunks"] > 0

        hosts.wait_until(has_requests, "what the host of the same version gives again", 30)


def test_host_that_is_paused_repeatedly_puts_no_peer_in_backoff(tmp_path, images, image_id):
    """The host stops for a second at a time, twice its peer timeout, while peers respond."""
    options = {"variants": "no-read-ahead", "constants": {tuned.PEER_SILENCE_S: 0.5}}
    with hosts.cloud(tmp_path, images, ("h1", "h2", "h3"), life_s=90, **options) as cloud:
        for name in ("h2", "h3"):
            assert cloud[name].image_path(image_id).read_bytes() == DATA
        got = []

        def read():
            with cloud["h1"].image_path(image_id).open("rb", buffering=0) as file:
                while data := file.read(CHUNK):
                    got.append(data)
                    time.sleep(0.02)

        cloud["h1"].ctl("attach", image_id)
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(4):
            with hosts.frozen(cloud["h1"].worker_pid()):
                time.sleep(1.0)
            time.sleep(0.3)
        reader.join(60)
        assert b"".join(got) == DATA and failed_reads(cloud, image_id) == 0
        assert not cloud["h1"].status()["exchange"]["in_backoff"]
        assert "is in backoff" not in cloud["h1"].log()
