# SPDX-License-Identifier: Apache-2.0
"""P14b: snapshots of a server that wrote 100 MB, over a link of 100 Mbit/s.

One cloud, two compute hosts, a gateway beside Glance.  On each runs the lab's Debian guest, from an
image of 2 GiB that has random bytes behind its system, over which QEMU writes 100 MB in pieces.
All traffic of both hosts with Glance and the gateway uses one link.  The second host has stock
Nova, which uploads whole images; the first one sends deltas.  They take turns, under the same
machine load, and each snapshot has the link for itself.

P14b is the bytes sent by the host for a snapshot, by the kernel's counter of the link, divided by
the allocated bytes of the server's disk, in clusters.  P14c is the time until the image is active,
over that of stock Nova.
"""

import contextlib
import json
import os
import re
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

from matplotlib import figure

from acstor_common import errors
from acstor_common.model import geometry
from evaluation.bench import harness
from evaluation.bench import nova_pair
from evaluation.bench import p12_nova
from tests.fakes import nova_hosts
from tests.fakes import nova_moves
from tests.lab import guest_image
from tests.lab import network
from tests.lab import runs
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import cloud

TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "3"))
LINK_MBIT = 100.0
DISK_GIB = 2
DATA_MIB = 512
"""Of the image, behind the guest's 1.5 GiB; never mounted."""
WRITTEN_BYTES = 96 * geometry.MIB
PIECE_BYTES = 2 * geometry.MIB


class Taken(NamedTuple):
    """A snapshot.

    :param own_bytes: allocated in the disk, over its image
    :param sent_bytes: sent by the host for it
    """

    seconds: float
    own_bytes: int
    sent_bytes: int


@harness.measures("P14b", "P14c")
def run(say: harness.Say) -> harness.Result:
    """Make snapshots of a server on each host, in turns."""
    nova_pair.check()
    guest = guest_image.ensure(say)
    with runs.Run() as folders, contextlib.ExitStack() as stack:
        lab = stack.enter_context(nova_pair.started(folders.folder / "openstack"))
        gateway = stack.enter_context(beside(lab))
        net = stack.enter_context(network.Network(hosts=1, link_mbit=LINK_MBIT))
        both = stack.enter_context(joined(lab, gateway, net))
        disk = p12_nova.make_disk(guest, folders.folder, say, DATA_MIB)
        servers = stack.enter_context(nova_pair.servers(both, disk.raw, disk.qcow2))
        for server in servers.values():
            write(server)
        say(f"both servers have written {WRITTEN_BYTES} bytes")
        taken: dict[str, list[Taken]] = {way: [] for way in servers}
        for turn in range(TURNS):
            for way, server in servers.items():
                taken[way].append(take(server, gateway, net, way == "acstor"))
                say(f"{turn + 1} of {TURNS}, {way}: {taken[way][-1]}")
    return result_of(taken)


@contextlib.contextmanager
def beside(lab: cloud.Cloud) -> Iterator[acstor_gateway.Gateway]:
    """Run a gateway beside Glance for the block."""
    gateway = acstor_gateway.Gateway(lab, lab.folder)
    try:
        gateway.start()
        gateway.wait_ready()
        yield gateway
    finally:
        gateway.stop()


@contextlib.contextmanager
def joined(
    lab: cloud.Cloud, gateway: acstor_gateway.Gateway, net: network.Network
) -> Iterator[nova_hosts.NovaHosts]:
    """Run both hosts with one link to Glance and the gateway."""
    with (
        p12_nova.slow_way_to(net, lab.glance.port) as glance_url,
        p12_nova.slow_way_to(net, gateway.port) as gateway_url,
        nova_pair.running(
            lab, DISK_GIB, glance_url, own={"acstor": {"gateway_url": gateway_url}}
        ) as both,
    ):
        yield both


def write(server: nova_hosts.Server) -> None:
    """Let QEMU write pieces all over the part of the disk that no guest uses."""
    begin, pieces = (DISK_GIB * 1024 - DATA_MIB) * geometry.MIB, WRITTEN_BYTES // PIECE_BYTES
    step = DATA_MIB * geometry.MIB // pieces // geometry.DEFAULT_CHUNK_BYTES
    for number in range(pieces):
        at = begin + number * step * geometry.DEFAULT_CHUNK_BYTES
        nova_moves.qemu_io(server, f"write -P {number % 255 + 1} {at} {PIECE_BYTES}")


def take(
    server: nova_hosts.Server, gateway: acstor_gateway.Gateway, net: network.Network, composed: bool
) -> Taken:
    """Make a snapshot.

    :param composed: whether it must be made from a delta
    :raises errors.Unusable: it was made otherwise
    """
    own_bytes, before = own_bytes_of(server), sent_by(net)
    began_s = time.monotonic()
    image_id = server.snapshot()
    seconds = time.monotonic() - began_s
    sent_bytes = sent_by(net) - before
    if composed is not bool(re.search(rf"PUT /v1/images/{image_id}/delta", gateway.log())):
        raise errors.Unusable("P14b", f"the snapshot {image_id} was made in the other way")
    return Taken(seconds, own_bytes, sent_bytes)


def sent_by(net: network.Network) -> int:
    """Return the bytes sent by the hosts so far."""
    return net.link_bytes()[net.hosts[0].name].sent


def own_bytes_of(server: nova_hosts.Server) -> int:
    """Return the bytes of the server's disk that are neither its image's nor zeros."""
    said = server.host.run("qemu-img", "map", "-U", "--output=json", server.disk())
    own = (one for one in json.loads(said) if one["depth"] == 0)
    return sum(int(one["length"]) for one in own if one["data"] and not one["zero"])


def result_of(taken: dict[str, list[Taken]]) -> harness.Result:
    """Return the figures of both ways."""
    middle = {way: statistics.median(one.seconds for one in found) for way, found in taken.items()}
    values: dict[str, harness.Value] = {
        "P14b": statistics.median(one.sent_bytes / one.own_bytes for one in taken["acstor"]),
        "P14c": middle["acstor"] / middle["stock"],
    }
    found = {way: [one._asdict() for one in ones] for way, ones in taken.items()}
    details = {"taken": found, "median_s": middle}
    return harness.Result(values, details, lambda picture: draw(picture, taken))


def draw(picture: figure.Figure, taken: dict[str, list[Taken]]) -> None:
    """Draw the times of both ways, and the bytes sent by the host."""
    left, right = picture.subplots(1, 2)
    left.boxplot([[one.seconds for one in found] for found in taken.values()])
    left.set(ylabel="seconds until the snapshot is active", ylim=(0, None))
    right.boxplot([[one.sent_bytes / 1e6 for one in found] for found in taken.values()])
    right.set(ylabel="MB that left the host", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(range(1, len(taken) + 1), list(taken))
