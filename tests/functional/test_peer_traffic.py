# SPDX-License-Identifier: Apache-2.0
"""Rate limits and DSCP marks of the traffic between agents, measured on the wire."""

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
    """Let h2 cache an image, then read it at h1; return the bytes from h2, and the time in s."""
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
def test_rate_limit_applies_to_uploads_and_downloads(tmp_path, images, host, option):
    image_id = images.add(DATA)

    def capped(name):
        return {option: MBIT} if name == host else {}

    with hosts.cloud(tmp_path, images, ("h1", "h2"), each=capped) as cloud:
        moved, took_s = read_from_peer(cloud, image_id)
        assert moved > 3 * MIB  # h1 is the home of some; h2 pushed those when it read them
        assert took_s > 0.8 * moved / BYTES_S
        assert cloud["h1"].status()["images"][image_id]["failed_reads"] == 0


def test_compressible_chunks_are_compressed_on_a_rate_limited_link(tmp_path, images):
    content = DATA[: len(DATA) // 2].hex().encode()  # half of its bits are redundant
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
    """Yield a function that returns the DSCP of all data packets from or to a loopback port."""
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


def test_packets_carry_the_configured_dscp(tmp_path, images):
    image_id = images.add(DATA)
    with hosts.cloud(tmp_path, images, ("h1", "h2"), peer_background_dscp=BACKGROUND) as cloud:
        with packets(cloud.ports["h2"]) as marks:
            moved, _ = read_from_peer(cloud, image_id)
            assert moved
            seen = marks()
            hosts.wait_until(lambda: not seen.update(marks()) and BACKGROUND in seen, "news")
    assert seen == {0, BACKGROUND}
