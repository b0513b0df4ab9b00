# SPDX-License-Identifier: Apache-2.0
"""P12: real Nova on a cold host: from the request for a server until its guest's login prompt.

One cloud, two cold compute hosts with one link of 100 Mbit/s to Glance: on one Nova downloads the
image and makes qcow2 disks, on the other it uses acstor.  Both boot the same disk: the lab's Debian
guest, and behind it a partition of random bytes, as many as a real image has of applications and
data; nothing can leave them out or compress them.  Stock Nova gets it as a compressed qcow2, which
is the least that it can download; acstor needs a raw image, and its chunk map is ready.  There is
no boot image and no other host that could help.

P12a is what Glance gave acstor's host until the boot was over (image and chunk map), divided by the
chunks that were asked of the mirror until then.
"""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator

import msgspec

from acstor_common import artefacts
from acstor_common import errors
from acstor_common import geometry
from acstor_common import trace_message
from tests.bench import harness
from tests.bench import nova_pair
from tests.fakes import nova_hosts
from tests.lab import guest_image
from tests.lab import network
from tests.lab import relay
from tests.lab import runs
from tests.lab.openstack import cloud

DATA_MIB = int(os.environ.get("ACSTOR_BENCH_DATA_MIB", "2048"))
LINK_MBIT = 100.0


@harness.benchmark(
    "P12",
    title="Server create to login on a cold host, 100 Mbit/s to Glance: stock Nova over acstor",
    target=">= 5",
    unit="times",
)
@harness.benchmark(
    "P12a",
    title="Bytes read from Glance for this boot over unique chunk bytes asked of the mirror",
    target="<= 1.05",
    unit="times",
)
def run(say: harness.Say) -> harness.Result:
    """Boot the same disk on both hosts, one after the other."""
    nova_pair.check()
    guest = guest_image.ensure(say)
    with runs.Run() as folders, contextlib.ExitStack() as stack:
        raw = make_disk(guest, folders.folder, say)
        lab = cloud.Cloud(folders.folder / "openstack")
        stack.callback(lab.stop)
        lab.start_compute_services()
        door = stack.enter_context(slow_way_to(lab))
        url = f"http://{relay.LOOPBACK}:{door.port}"
        both = stack.enter_context(nova_pair.running(lab, 4 + DATA_MIB // 1024, url))
        took = {"stock": boot_stock(both, raw, say), "acstor": boot_acstor(both, raw, say)}
        asked_bytes = unique_bytes_asked(both.hosts[0], took["acstor"].image_id, raw)
        glance_bytes = bytes_from_glance(both.images, took["acstor"].image_id)
    values: dict[str, harness.Value] = {
        "P12": took["stock"].login_s / took["acstor"].login_s,
        "P12a": glance_bytes / asked_bytes,
    }
    details = {
        "data_mib": DATA_MIB,
        "active": took["stock"].active_s / took["acstor"].active_s,
        "boots": {way: dataclasses.asdict(boot) for way, boot in took.items()},
        "asked_bytes": asked_bytes,
        "glance_bytes": glance_bytes,
    }
    return harness.Result(values, details)


@dataclasses.dataclass(frozen=True)
class Boot:
    """A server's way to its login prompt, in seconds after the request for it."""

    image_id: str
    active_s: float
    login_s: float


def make_disk(
    guest: guest_image.GuestImage, folder: pathlib.Path, say: harness.Say
) -> pathlib.Path:
    """Write the guest's disk with a partition of random bytes behind it."""
    raw = folder / "disk.raw"
    runs.tool(["cp", "--sparse=always", guest.raw, raw])
    with raw.open("ab") as disk:
        for _ in range(DATA_MIB):
            disk.write(os.urandom(geometry.MIB))
    runs.tool(["sfdisk", "-q", "--append", raw], f"size={DATA_MIB}MiB, type=83\n")
    allocated_mib = raw.stat().st_blocks * 512 // geometry.MIB
    say(f"image: {raw.stat().st_size // geometry.MIB} MiB, {allocated_mib} MiB of them not zero")
    return raw


@contextlib.contextmanager
def slow_way_to(lab: cloud.Cloud) -> Iterator[relay.Outlet]:
    """Make a link to Glance, and a port of the loopback that leads over it."""
    with (
        network.Network(hosts=1, link_mbit=LINK_MBIT) as net,
        relay.Relay(net.source, lab.glance.port) as far_end,
        relay.Outlet(net.hosts[0], far_end.address) as door,
    ):
        yield door


def boot_stock(both: nova_hosts.NovaHosts, raw: pathlib.Path, say: harness.Say) -> Boot:
    """Boot from a compressed qcow2 that Nova downloads."""
    qcow2 = raw.with_suffix(".qcow2")
    runs.tool(["qemu-img", "convert", "-m", "2", "-c", "-W", "-O", "qcow2", raw, qcow2])
    say(f"stock: Nova downloads {qcow2.stat().st_size // geometry.MIB} MiB of compressed qcow2")
    with qcow2.open("rb") as data:
        image_id = both.images.add(data, "qcow2")
    qcow2.unlink()
    booted = boot(both, both.hosts[1], image_id)
    say(f"stock: ACTIVE after {booted.active_s:.1f} s, login after {booted.login_s:.1f} s")
    if both.images.downloads(image_id) != 1:
        raise errors.Unusable("P12", "Nova did not download the image")
    return booted


def boot_acstor(both: nova_hosts.NovaHosts, raw: pathlib.Path, say: harness.Say) -> Boot:
    """Boot from a mirror."""
    with raw.open("rb") as data:
        image_id = both.images.map(both.images.add(data))
    booted = boot(both, both.hosts[0], image_id)
    say(f"acstor: ACTIVE after {booted.active_s:.1f} s, login after {booted.login_s:.1f} s")
    if both.images.downloads(image_id) or not both.hosts[0].is_mirrored(image_id):
        raise errors.Unusable("P12", "the image was downloaded")
    return booted


def boot(both: nova_hosts.NovaHosts, host: nova_hosts.Host, image_id: str) -> Boot:
    """Build a server and wait for its login prompt; delete it."""
    began_s = time.monotonic()
    with both.server(image_id, host, nova_pair.FLAVOR, nova_pair.DEADLINE_S) as server:
        active_s = time.monotonic() - began_s
        nova_pair.wait_login(server)
        return Boot(image_id, active_s, time.monotonic() - began_s)


def unique_bytes_asked(host: nova_hosts.Host, image_id: str, raw: pathlib.Path) -> int:
    """Return the length of all chunks with bytes in them that the guest's boot asked for."""
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
    cut = geometry.Geometry(raw.stat().st_size, found[0].chunk_bytes)
    asked = {number for trace in found if trace.image_id == image_id for number in trace.trace}
    with raw.open("rb") as disk:

        def length(chunk_no: int) -> int:
            disk.seek(cut.chunk_offset(chunk_no))
            data = disk.read(cut.chunk_length(chunk_no))
            return len(data) if any(data) else 0

        return sum(map(length, asked))


def bytes_from_glance(images: nova_hosts.Images, image_id: str) -> int:
    """Return what Glance gave of an image and its chunk map."""
    record = images.client.get(f"/images/{image_id}").json()
    map_id = artefacts.pointer_of(record, artefacts.Kind.CHUNK_MAP)
    return images.range_bytes(image_id) + images.range_bytes(str(map_id))
