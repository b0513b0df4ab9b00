# SPDX-License-Identifier: Apache-2.0
"""P12: real Nova on a cold host, from a server's request to its login prompt.

One cloud, two cold compute hosts with one link of 100 Mbit/s to Glance: one downloads the image and
makes qcow2 disks with stock Nova, the other uses acstor.  Both boot the same disk: the lab's Debian
guest, followed by a partition of random bytes, as large as a real image's applications and data;
they cannot be skipped or compressed.  It is a compressed qcow2, the smallest file that stock Nova
can download, and acstor uses the same Glance image; with ACSTOR_BENCH_DISK_FORMAT=raw it uses a raw
one instead.  The chunk map is ready.  There is no other host with chunks, and no boot image, as in
the first minutes after an upload; with ACSTOR_BENCH_BOOT_IMAGE=1 there is the listener's one.

Images are in Glance's file store; with ACSTOR_BENCH_STORE=s3 in S3, where Glance supports no
ranges, so that the agent reads from the gateway over the same link.

P12a is the number of bytes sent by Glance and the gateway to acstor's host until the end of the
boot (image, chunk map and boot image), divided by the stored bytes of the chunks requested from the
mirror until then: in a compressed image, those of their clusters.
"""

import contextlib
import dataclasses
import http
import os
import pathlib
import time
from collections.abc import Iterator

import msgspec

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.image import artefacts
from acstor_common.image import image_record
from acstor_common.model import geometry
from acstor_common.wire import trace_message
from evaluation.bench import harness
from evaluation.bench import nova_pair
from tests.fakes import nova_hosts
from tests.lab import guest_image
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import cloud
from tests.lab.openstack import image_stores

DATA_MIB = int(os.environ.get("ACSTOR_BENCH_DATA_MIB", "2048"))
DISK_FORMAT = os.environ.get("ACSTOR_BENCH_DISK_FORMAT", "qcow2")
HAS_BOOT_IMAGE = os.environ.get("ACSTOR_BENCH_BOOT_IMAGE") == "1"
STORE = os.environ.get("ACSTOR_BENCH_STORE", "file")
LINK_MBIT = 100.0


@harness.measures("P12", "P12a")
def run(say: harness.Say) -> harness.Result:
    """Boot the same disk on both hosts in sequence."""
    nova_pair.check()
    if DISK_FORMAT not in ("raw", "qcow2") or STORE not in ("file", "s3"):
        raise harness.CannotRun(f"{DISK_FORMAT} in {STORE} is not supported")
    guest = guest_image.ensure(say)
    with runs.Run() as folders, contextlib.ExitStack() as stack:
        disk = make_disk(guest, folders.folder, say)
        lab = stack.enter_context(nova_pair.started(folders.folder / "openstack"))
        place = stack.enter_context(hosts_behind(lab, LINK_MBIT))
        both = place.both
        with disk.qcow2.open("rb") as data:
            image_id = both.images.add(data, "qcow2")
        disk.qcow2.unlink()
        took = {"stock": boot(place, both.hosts[1], image_id, downloads=1)}
        if DISK_FORMAT == "raw":
            with disk.raw.open("rb") as data:
                image_id = both.images.add(data)
        both.images.map(image_id)
        if HAS_BOOT_IMAGE:
            both.images.build_boot_image(image_id)
        before = given_of(place, image_id)
        took["acstor"] = boot(place, both.hosts[0], image_id, downloads=0)
        if not both.hosts[0].is_mirrored(image_id) or both.hosts[0].fallbacks():
            raise errors.Unusable("P12", "acstor was not used")
        for way, booted in took.items():
            say(f"{way}: ACTIVE after {booted.active_s:.1f} s, login after {booted.login_s:.1f} s")
        figures = bytes_of_boot(place, image_id, before)
    say(
        f"{DISK_FORMAT} in {STORE}: {figures.asked_bytes} bytes asked, stored in "
        f"{figures.stored_bytes}; out of the store: {figures.image_bytes} of the image, "
        f"{figures.boot_bytes} of the boot image, together "
        f"{(figures.image_bytes + figures.boot_bytes) / figures.stored_bytes:.3f} of these, "
        f"and {figures.map_bytes} of the chunk map"
    )
    given_bytes = figures.image_bytes + figures.boot_bytes + figures.map_bytes
    values: dict[str, harness.Value] = {
        "P12": took["stock"].login_s / took["acstor"].login_s,
        "P12a": given_bytes / figures.stored_bytes,
    }
    details = {
        "disk_format": DISK_FORMAT,
        "store": STORE,
        "has_boot_image": HAS_BOOT_IMAGE,
        "virtual_bytes": disk.virtual_bytes,
        "qcow2_bytes": disk.qcow2_bytes,
        "data_mib": DATA_MIB,
        "active": took["stock"].active_s / took["acstor"].active_s,
        "boots": {way: dataclasses.asdict(one) for way, one in took.items()},
        **dataclasses.asdict(figures),
    }
    return harness.Result(values, details)


@dataclasses.dataclass(frozen=True)
class Disk:
    """The same disk as two files."""

    raw: pathlib.Path
    qcow2: pathlib.Path
    virtual_bytes: int
    qcow2_bytes: int


@dataclasses.dataclass(frozen=True)
class Boot:
    """Times of a server's boot, in seconds after the request for it."""

    image_id: str
    active_s: float
    login_s: float


@dataclasses.dataclass(frozen=True)
class BootBytes:
    """Bytes requested by a boot, and bytes sent by the store for it.

    :param asked_bytes: of non-zero chunks, as the guest reads them
    :param stored_bytes: of the same chunks in the image's file
    """

    asked_bytes: int
    stored_bytes: int
    image_bytes: int
    map_bytes: int
    boot_bytes: int


@dataclasses.dataclass(frozen=True)
class Place:
    """The cloud: two hosts, and the gateway if Glance needs one."""

    lab: cloud.Cloud
    both: nova_hosts.NovaHosts
    gateway: acstor_gateway.Gateway | None

    def given(self, image_id: str, *statuses: int) -> int:
        """Return the bytes sent of an image or artefact in responses with these statuses."""
        logs = [self.lab.glance.log(), *([self.gateway.log()] if self.gateway else [])]
        found = [nova_hosts.given(log, image_id, status) for log in logs for status in statuses]
        return sum(map(sum, found))


@contextlib.contextmanager
def hosts_behind(lab: cloud.Cloud, link_mbit: float) -> Iterator[Place]:
    """Run the compute hosts, with one common link to Glance and the gateway."""
    with contextlib.ExitStack() as stack:
        gateway = None
        if STORE == "s3":
            gateway = stack.enter_context(image_stores.images_in_s3(lab))
        net = stack.enter_context(network.Network(hosts=1, link_mbit=link_mbit))
        url = stack.enter_context(slow_way_to(net, lab.glance.port))
        gateway_url = stack.enter_context(slow_way_to(net, gateway.port)) if gateway else None
        disk_gib = 4 + DATA_MIB // 1024
        both = stack.enter_context(nova_pair.running(lab, disk_gib, url, gateway_url))
        yield Place(lab, both, gateway)


@contextlib.contextmanager
def slow_way_to(net: network.Network, port: int) -> Iterator[str]:
    """Make a loopback port that relays to another one over a link; yield its URL."""
    with (
        relay.Relay(net.source, port) as far_end,
        relay.Outlet(net.hosts[0], far_end.address) as door,
    ):
        yield f"http://{relay.LOOPBACK}:{door.port}"


def make_disk(
    guest: guest_image.GuestImage,
    folder: pathlib.Path,
    say: harness.Say,
    data_mib: int = DATA_MIB,
) -> Disk:
    """Write the guest's disk, followed by a partition of random bytes; compress it."""
    raw, qcow2 = folder / "disk.raw", folder / "disk.qcow2"
    runs.tool(["cp", "--sparse=always", guest.raw, raw])
    with raw.open("ab") as disk:
        for _ in range(data_mib):
            disk.write(os.urandom(geometry.MIB))
    runs.tool(["sfdisk", "-q", "--append", raw], f"size={data_mib}MiB, type=83\n")
    runs.tool(["qemu-img", "convert", "-m", "2", "-c", "-W", "-O", "qcow2", raw, qcow2])
    allocated_mib = raw.stat().st_blocks * 512 // geometry.MIB
    made = Disk(raw, qcow2, raw.stat().st_size, qcow2.stat().st_size)
    say(
        f"image: {made.virtual_bytes // geometry.MIB} MiB, {allocated_mib} MiB of them not zero, "
        f"{made.qcow2_bytes // geometry.MIB} MiB as compressed qcow2"
    )
    return made


def boot(place: Place, host: nova_hosts.Host, image_id: str, downloads: int) -> Boot:
    """Create a server, wait for its login prompt, delete it.

    :param downloads: the expected number of Nova's downloads of the image
    :raises errors.Unusable: the number differs
    """
    before, began_s = place.both.images.downloads(image_id), time.monotonic()
    with place.both.server(image_id, host, nova_pair.FLAVOR, nova_pair.DEADLINE_S) as server:
        active_s = time.monotonic() - began_s
        nova_pair.wait_login(server)
        booted = Boot(image_id, active_s, time.monotonic() - began_s)
    if place.both.images.downloads(image_id) != before + downloads:
        why = f"on {host.name} the image was not downloaded {downloads} times"
        raise errors.Unusable("P12", why)
    return booted


def image_of(place: Place, image_id: str) -> image_record.Image:
    record = place.both.images.client.get(f"/images/{image_id}").json()
    return image_record.Image.from_record(record)


def given_of(place: Place, image_id: str) -> list[int]:
    """Return the bytes sent so far of an image, its chunk map and its boot image."""
    image = image_of(place, image_id)
    found = [place.given(image_id, http.HTTPStatus.PARTIAL_CONTENT)]
    for kind in (artefacts.Kind.CHUNK_MAP, artefacts.Kind.BOOT_IMAGE):
        pointer = artefacts.pointer_of(image, kind)
        whole_or_part = (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT)
        found.append(0 if pointer is None else place.given(pointer, *whole_or_part))
    return found


def bytes_of_boot(place: Place, image_id: str, before: list[int]) -> BootBytes:
    """Return the bytes requested and sent for the boot on acstor's host.

    :param before: bytes sent before it (:func:`given_of`)
    """
    asked = chunks_asked(place.both.hosts[0], image_id)
    given = [now - then for now, then in zip(given_of(place, image_id), before, strict=True)]
    image = image_of(place, image_id)
    map_id = artefacts.pointer_of(image, artefacts.Kind.CHUNK_MAP)
    raw = place.both.images.client.get(f"/images/{map_id}/file").content
    image_map = artefacts.parse_chunk_map(image, raw)
    chunk_nos = [number for number in sorted(asked) if not image_map.is_zero(number)]
    return BootBytes(
        sum(map(image_map.geometry.chunk_length, chunk_nos)),
        stored_bytes(image_map, chunk_nos),
        *given,
    )


def stored_bytes(image_map: chunk_map.ChunkMap, chunk_nos: list[int]) -> int:
    """Return the distinct bytes in the image's file that chunks need."""
    cut = image_map.geometry
    spans = set()
    for number in chunk_nos:
        start = cut.chunk_offset(number)
        extents = image_map.layout.find(start, start + cut.chunk_length(number))
        spans |= {cut_to(extent, start, cut.chunk_length(number)) for extent in extents}
    total = reached = 0
    for offset, stop in sorted(spans):
        total += max(0, stop - max(offset, reached))
        reached = max(reached, stop)
    return total


def cut_to(extent: layout.Extent, start: int, length: int) -> tuple[int, int]:
    """Return the part of an extent that a chunk needs; all of a compressed one."""
    if extent.codec is not layout.Codec.STORED:
        return extent.offset, extent.offset + extent.stored_bytes
    first, last = max(start, extent.at), min(start + length, extent.at + extent.length)
    return extent.offset + first - extent.at, extent.offset + last - extent.at


def chunks_asked(host: nova_hosts.Host, image_id: str) -> set[int]:
    """Wait until the agent has recorded the boot; return the chunks it requested."""
    folder = host.agent.folder / "state" / "traces"
    runs.wait_for(
        lambda: any(folder.glob("*.actrace")),
        nova_pair.DEADLINE_S,
        "the boot's trace",
        host.agent.log,
    )
    found = [
        msgspec.json.decode(path.read_bytes(), type=trace_message.BootTrace)
        for path in folder.glob("*.actrace")
    ]
    return {number for trace in found if trace.image_id == image_id for number in trace.trace}
