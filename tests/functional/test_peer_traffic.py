# SPDX-License-Identifier: Apache-2.0
"""What an operator bounds and marks of the traffic between agents, as it is on the wire."""

import contextlib
import socket
import struct
import time

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import local

pytestmark = hosts.needs_fuse

MIB = geometry.MIB
MBIT = 16
BYTES_S = MBIT * 1e6 / 8
DATA = local.random_bytes(8 * MIB)
ETHERNET_IP = 0x0800
BACKGROUND = 8


def read_from_peer(cloud, image_id, content=DATA):
    """Let h2 have an image, then read it at h1; return what came from h2, and in how many s."""
    assert cloud["h2"].image_path(image_id).read_bytes() == content
    hosts.wait_written(cloud["h2"])
    before = cloud["h1"].status()["fetched"]
    began_s = time.monotonic()
    assert cloud["h1"].image_path(image_id).read_bytes() == content
    took_s = time.monotonic() - began_s
    after = cloud["h1"].status()["fetched"]
    moved = sum(after[origin]["bytes"] - before[origin]["bytes"] for origin in ("home", "peer"))
    return moved, took_s


@pytest.mark.parametrize(
    ("host", "option"),
    [("h2", "peer_upload_limit_mbit"), ("h1", "peer_download_limit_mbit")],
)
def test_cap_holds_for_who_reads_and_for_who_gives(tmp_path, images, host, option):
    image_id = images.add(DATA)

    def capped(name):
        return {option: MBIT} if name == host else {}

    with hosts.cloud(tmp_path, images, ("h1", "h2"), each=capped) as cloud:
        moved, took_s = read_from_peer(cloud, image_id)
        assert moved > 3 * MIB  # of some, h1 is the home, and h2 gave it when it read
        assert took_s > 0.8 * moved / BYTES_S
        assert cloud["h1"].status()["images"][image_id]["failed_reads"] == 0


def test_what_gets_shorter_is_compressed_where_a_cap_makes_the_link_slow(tmp_path, images):
    content = DATA[: len(DATA) // 2].hex().encode()  # half of its bits say nothing
    image_id = images.add(content)

    def capped(name):
        return {"peer_upload_limit_mbit": MBIT} if name == "h2" else {}

    with hosts.cloud(tmp_path, images, ("h1", "h2"), each=capped) as cloud:
        moved, took_s = read_from_peer(cloud, image_id, content)
        assert moved > 3 * MIB
        assert 0.4 * moved / BYTES_S < took_s < 0.8 * moved / BYTES_S
        assert cloud["h1"].status()["images"][image_id]["failed_reads"] == 0


@contextlib.contextmanager
def packets(port):
    """Yield what returns the DSCP of all packets with data from or to a port of the loopback."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETHERNET_IP)) as sniffer:
        sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * MIB)
        sniffer.bind(("lo", ETHERNET_IP))
        sniffer.setblocking(False)

        def marks():
            found = set()
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = sniffer.recv(128)
                    header = 4 * (packet[0] & 15)
                    ports = struct.unpack_from("!HH", packet, header)
                    if packet[9] == socket.IPPROTO_TCP and port in ports:
                        found.add(packet[1] >> 2)
            return found

        yield marks


def test_packets_carry_the_marks(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.cloud(tmp_path, images, ("h1", "h2"), peer_background_dscp=BACKGROUND) as cloud:
        with packets(cloud.ports["h2"]) as marks:
            moved, _ = read_from_peer(cloud, image_id)
            assert moved
            seen = marks()
            hosts.wait_until(lambda: not seen.update(marks()) and BACKGROUND in seen, "news")
    assert seen == {0, BACKGROUND}
