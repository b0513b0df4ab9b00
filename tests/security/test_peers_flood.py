# SPDX-License-Identifier: Apache-2.0
"""Floods of a real agent from many addresses: its resource use, and hosts that are blocked."""

import contextlib
import json
import os
import pathlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence

import pytest

from acstor_agent.engine.gossip import announcements
from acstor_agent.peers import peer_network
from acstor_agent.peers import unauthenticated_connections
from acstor_common.identity import handshake_rate_limit
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.fakes import hosts
from tests.fakes import raw_peer
from tests.lab import identities
from tests.lab import local
from tests.lab import tuned

pytestmark = [hosts.needs_fuse, pytest.mark.timed]

DATA = local.random_bytes(4 * geometry.MIB, seed=13)
ADDRESSES = [f"127.0.{one}.{two}" for one in (1, 2) for two in range(1, 101)]
"""Loopback addresses that no host has: those are at 127.0.0.1."""
CHUNK = geometry.DEFAULT_CHUNK_BYTES
CIDS = [ids.cid_of(DATA[start : start + CHUNK]) for start in range(0, len(DATA), CHUNK)]
MIRRORED = 25
TELLS_S = 3.0
MESSAGES = 2000
"""Made beforehand, so that a slow machine too sends more than the agent accepts."""
ANY_LOOKUPS = {name: (1e9, 1e9) for name in (tuned.LOOKUPS_OF_PEER, tuned.LOOKUPS_OF_ALL)}
NEWS_SHARE = 0.6
"""Part of the processor time of an agent without limits of look-ups; 0.35 measured."""
KNOCKS = 4000
ANY_HANDSHAKES = {name: (1e9, 1e9) for name in (tuned.HANDSHAKES, tuned.HANDSHAKES_OF_ADDRESS)}
FEW_KNOCKS = 1000
SPENT_SHARE = 1 / 3
"""Part of the processor time that so many handshakes take an agent without limits."""


@pytest.fixture
def image_id(images):
    return images.add(DATA)


def processor_s(pid: int | None) -> float:
    """Return the processor time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client_hello() -> bytes:
    """Return the start of a handshake, which the agent has to answer with a signature."""
    out = ssl.MemoryBIO()
    context = raw_peer.context_of(identities.issue("stranger"))
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


def knock(port: int, ip: str, said: bytes) -> bytes:
    """Start a handshake from an address; return the first bytes of the response, or b""."""
    with contextlib.suppress(OSError):
        with socket.create_connection((local.LOOPBACK, port), 10, (ip, 0)) as link:
            link.sendall(said)
            return link.recv(65536)
    return b""


def flood(port: int, count: int) -> int:
    """Start handshakes as fast as possible; return how many the agent has answered."""
    said = client_hello()
    return sum(bool(knock(port, ADDRESSES[n % len(ADDRESSES)], said)) for n in range(count))


@contextlib.contextmanager
def flooded(port: int, answered: list[int]) -> Iterator[None]:
    """Run the flood beside the block, until both have ended."""
    thread = threading.Thread(target=lambda: answered.append(flood(port, KNOCKS)))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def time_per_handshake(folder: pathlib.Path, images: local.ImageFolder) -> float:
    """Return the processor time that an agent without limits needs for a handshake."""
    folder.mkdir()
    with hosts.cloud(
        folder, images, ("h1",), security="secure", life_s=90, constants=ANY_HANDSHAKES
    ) as cloud:
        pid, port = cloud["h1"].worker_pid(), cloud.ports["h1"]
        before = processor_s(pid)
        answered = flood(port, FEW_KNOCKS)
        assert answered > FEW_KNOCKS / 2
        return (processor_s(pid) - before) / answered


def test_flood_of_handshakes_costs_little_processor_time_and_blocks_no_host(
    tmp_path, images, image_id
):
    each_s = time_per_handshake(tmp_path / "unlimited", images)
    with hosts.cloud(
        tmp_path, images, ("h1", "h2"), security="secure", variants="no-read-ahead", life_s=90
    ) as cloud:
        pid, port = cloud["h1"].worker_pid(), cloud.ports["h1"]
        answered: list[int] = []
        before, began = processor_s(pid), time.monotonic()
        with flooded(port, answered):
            with raw_peer.greeted(port, "h2", identities.issue("h2")) as peer:
                assert isinstance(peer.get("h1", image_id, 0, CHUNK, CIDS[0]), peer_wire.Chunk)
            assert cloud["h2"].image_path(image_id).read_bytes() == DATA
        spent_s, took_s = processor_s(pid) - before, time.monotonic() - began
        fetched = cloud["h2"].status()["fetched"]
        refused = cloud["h1"].status()["refused"]
        log = cloud["h1"].log()
        assert fetched["home"]["bytes"] + fetched["peer"]["bytes"] > 0
        assert (
            answered[0]
            <= handshake_rate_limit.OF_UNAUTHENTICATED.burst
            + handshake_rate_limit.OF_UNAUTHENTICATED.per_s * took_s
        )
        assert refused["handshakes"] >= KNOCKS - answered[0] - 64  # others were displaced
        assert spent_s < SPENT_SHARE * KNOCKS * each_s
        said = [line for line in log.splitlines() if "Too many handshakes" in line]
        assert said and any(ip in said[0] for ip in ADDRESSES)
        assert len(said) <= 1 + took_s / unauthenticated_connections.LOG_INTERVAL_S
        print(f"{KNOCKS} handshakes asked for, {answered[0]} done: {spent_s:.2f} s of a processor")
        print(f"{each_s * 1000:.2f} ms for a handshake")


def test_crowd_from_many_addresses_does_not_displace_a_host_before_its_hello(
    tmp_path, images, image_id
):
    with hosts.cloud(tmp_path, images, ("h1", "h2"), security="secure", life_s=60) as cloud:
        port = cloud.ports["h1"]
        with contextlib.ExitStack() as stack:
            host = stack.enter_context(raw_peer.RawPeer(port, "h2", identities.issue("h2")))
            for ip in ADDRESSES:
                stack.enter_context(
                    socket.create_connection((local.LOOPBACK, port), 10, source_address=(ip, 0))
                )
            crowded = len(ADDRESSES) - peer_network.PeerLimits().unauthenticated
            hosts.wait_until(
                lambda: cloud["h1"].status()["refused"]["connections"] >= crowded, "the crowd", 4.0
            )
            assert isinstance(host.greet(), peer_wire.Hello)
            assert isinstance(host.get("h1", image_id, 0, CHUNK, CIDS[0]), peer_wire.Chunk)


def write_ring_with(cloud: hosts.Cloud, name: str) -> None:
    """Put one more host on the ring, which owns next to no chunks."""
    table = hosts.ring_table({**cloud.ports, name: 1}, epoch=2)
    table["hosts"][-1]["vnodes"] = 1
    new = cloud.ring_file.with_suffix(".new")
    new.write_text(json.dumps(table))
    new.replace(cloud.ring_file)
    hosts.wait_until(lambda: cloud["h1"].status()["ring"]["epoch"] == 2, "the table")


def ignored(cloud: hosts.Cloud) -> int:
    """Return how many advertised chunks an agent ignored."""
    return cloud["h1"].status()["exchange"]["ignored_advertisements"]


def advertise(cloud: hosts.Cloud, many: Sequence[str]) -> tuple[float, float, int]:
    """Advertise as much as the agent reads, while ``many`` images are attached.

    :return: the agent's processor time, the flood's duration, and the number of chunks sent
    """
    write_ring_with(cloud, "h9")
    for image_id in many:
        cloud["h1"].image_path(image_id).stat()
    pid, port, files = cloud["h1"].worker_pid(), cloud.ports["h1"], identities.issue("h9")
    rng = random.Random(1)
    news = [[rng.getrandbits(64) | 1 for _ in range(512)] for _ in range(MESSAGES)]
    messages = [peer_wire.Advertise(announced.alone(*prefixes)) for prefixes in news]
    with raw_peer.RawPeer(port, "h9", files, peer_wire.ConnectionClass.BULK) as peer:
        assert isinstance(peer.greet(), peer_wire.Hello)
        before, began, reported = processor_s(pid), time.monotonic(), 0
        peer.link.settimeout(0.5)
        while time.monotonic() - began < TELLS_S:
            with contextlib.suppress(TimeoutError):
                peer.send(messages[reported // 512 % MESSAGES])
                reported += 512
        spent_s, took_s = processor_s(pid) - before, time.monotonic() - began
        hosts.wait_until(lambda: ignored(cloud) > reported / 3, "what comes too quickly is ignored")
    return spent_s, took_s, reported


def test_flood_of_advertisements_costs_little_with_many_images(tmp_path, images):
    many = [images.add(local.random_bytes(CHUNK, seed=n)) for n in range(MIRRORED)]
    folders = [tmp_path / "limited", tmp_path / "unlimited"]
    for folder in folders:
        folder.mkdir()
    with hosts.cloud(folders[0], images, ("h1",), security="secure", life_s=60) as cloud:
        spent_s, took_s, reported = advertise(cloud, many)
        accepted = (
            announcements.ANNOUNCED_CHUNKS.burst + announcements.ANNOUNCED_CHUNKS.per_s * took_s
        )
        assert reported > 2 * accepted
    with hosts.cloud(
        folders[1], images, ("h1",), security="secure", life_s=60, constants=ANY_LOOKUPS
    ) as cloud:
        unlimited_s, _, reported_too = advertise(cloud, many)
        assert reported_too > 2 * accepted
    assert spent_s < NEWS_SHARE * unlimited_s
    print(f"{reported} chunks announced in {took_s:.1f} s: {spent_s:.2f} s of a processor")
    print(f"without limits of look-ups {unlimited_s:.2f} s")
