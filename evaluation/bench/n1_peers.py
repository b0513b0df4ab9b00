# SPDX-License-Identifier: Apache-2.0
"""PEERS: a server starts from a remote image: acstor and the alternatives.

The image is a Debian with PostgreSQL, nginx and compilers, as compressed qcow2 on a web server
behind a link of 100 Mbit/s with each of the round trips. The ways, in turns, each on a fresh host:

* ``raw file``: the disk in this machine's page cache, the floor;
* ``download``: as in Nova, download the file and convert it to raw;
* ``nbdkit``: ``nbdkit curl`` with its filter ``cache``, read by QEMU;
* ``QEMU``: QEMU reads the URL itself;
* ``acstor``: one agent with the image's boot image, without another host and without background
  fill (``keep_images = none``).

Measured from the request for the image: the login prompt; the moment when PostgreSQL accepts
connections and nginx answers; the time to compile, link and run a program with cold files; bytes of
the server's link and processor seconds of all processes, including QEMU and the web server, until
the program has run.

PEERS is the largest ratio, over the round trips, of acstor's median to that of the fastest other
way, except ``raw file``: login, service, program.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

from matplotlib import figure

from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.boot import boot_builder
from acstor_glance.prepare import prehash
from evaluation.bench import boots
from evaluation.bench import harness
from evaluation.bench import p12b_first_boot
from tests.lab import agents
from tests.lab import delay_link
from tests.lab import guest
from tests.lab import guest_files
from tests.lab import guest_image
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import runs

TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "3"))
ROUND_TRIPS_MS = [float(word) for word in os.environ.get("ACSTOR_BENCH_RTT_MS", "0 20 100").split()]
LINK_MBIT = 100.0
DISK_BYTES = 4096 * geometry.MIB
MEMORY_MIB = 768
SERVICE_S = 600.0
PACKAGES = (
    *("postgresql", "nginx-light", "curl", "git", "build-essential"),
    *("golang-go", "default-jdk-headless", "python3-scipy"),
)
SERVICE = "ACSTOR-LAB-SERVICE"
FIGURES = ("login_s", "service_s", "program_s")

FILES = {
    "usr/local/sbin/lab-service": f"""\
#!/bin/sh
until pg_isready -q && curl -sf -o /dev/null http://127.0.0.1/; do sleep 0.2; done
echo "{SERVICE}" > /dev/kmsg
""",
    "etc/systemd/system/lab-service.service": """\
[Unit]
Description=Say when the services answer
[Service]
ExecStart=/usr/local/sbin/lab-service
""",
}
LINKS = {
    "etc/systemd/system/multi-user.target.wants/lab-service.service": (
        "/etc/systemd/system/lab-service.service"
    )
}
PROGRAM = (
    "cd /tmp && printf '#include <iostream>\\nint main(){std::cout<<6*7;}' > a.cc "
    "&& g++ a.cc -o a && ./a"
)


class Prepared(NamedTuple):
    """The image: the web server serves ``folder``; ``raw`` is the same disk here."""

    folder: pathlib.Path
    image_id: ids.ImageId
    raw: pathlib.Path

    @property
    def file_name(self) -> str:
        """Name of the compressed qcow2 file."""
        return f"{self.image_id}.qcow2"


class Backing(NamedTuple):
    """The backing file of the guest's disk, for QEMU."""

    where: str | pathlib.Path
    disk_format: str


@dataclasses.dataclass
class Boot:
    """The measurements of one boot."""

    login_s: float
    service_s: float
    program_s: float
    link_bytes: int
    cpu_s: float


def recipe(of_lab: guest_image.Recipe) -> guest_image.Recipe:
    """Return the recipe of an image with services and compilers."""
    return dataclasses.replace(
        of_lab,
        packages=(*of_lab.packages, *PACKAGES),
        size_bytes=DISK_BYTES,
        files={**guest_files.FILES, **FILES},
        links={**guest_files.LINKS, **LINKS},
    )


def prepare(folder: pathlib.Path, say: harness.Say) -> Prepared:
    """Make the image, its chunk map and its boot image."""
    made = guest_image.ensure(say, recipe)
    images = local.ImageFolder(folder / "images")
    image_id = ids.parse_image_id("3f6f3a52-6d0c-4c6a-9d3e-0a55e8b4e1c7")
    stored = images.folder / f"{image_id}.qcow2"
    shutil.copyfile(made.compressed, stored)
    prehash.prehash(
        stored, images.map_path(image_id), image_id, disk_format=layout.DiskFormat.QCOW2
    )
    map_of = chunk_map.ChunkMap.parse(images.map_path(image_id).read_bytes(), "the map")
    summary = boot_builder.build(stored, map_of, images.boot_image_path(image_id))
    say(f"boot image: {summary}")
    p12b_first_boot.check_built(dataclasses.asdict(summary))
    return Prepared(images.folder, image_id, made.raw)


Request = Callable[[], Backing]
"""Requests the image; the time counts from here."""


@contextlib.contextmanager
def raw_file(made: Prepared, host: network.Host, url: str) -> Iterator[Request]:
    """Load the disk into the page cache."""
    boots.read_whole(made.raw)
    yield lambda: Backing(made.raw, "raw")


@contextlib.contextmanager
def download(made: Prepared, host: network.Host, url: str) -> Iterator[Request]:
    """Download and convert the image."""
    stored, raw = host.folder / "stored.qcow2", host.folder / "base.raw"

    def request() -> Backing:
        host.run(["curl", "-sSf", "-o", stored, f"{url}/{made.file_name}"])
        host.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", stored, raw])
        return Backing(raw, "raw")

    yield request


@contextlib.contextmanager
def nbdkit(made: Prepared, host: network.Host, url: str) -> Iterator[Request]:
    """Serve the file by nbdkit with a cache."""
    with (
        tempfile.TemporaryDirectory(prefix="acstor-nbd-") as folder,  # socket paths must be short
        contextlib.ExitStack() as stack,
    ):
        socket = pathlib.Path(folder, "s")
        plugin = ["curl", f"url={url}/{made.file_name}", "cache-on-read=true"]

        def request() -> Backing:
            words = ["nbdkit", "--foreground", "--unix", str(socket), "--filter=cache"]
            process = stack.enter_context(host.popen([*words, *plugin]))
            stack.callback(process.kill)
            runs.wait_for(socket.exists, 10.0, "nbdkit", str)
            return Backing(f"nbd+unix:///?socket={socket}", "qcow2")

        yield request


@contextlib.contextmanager
def qemu(made: Prepared, host: network.Host, url: str) -> Iterator[Request]:
    """Let QEMU read the URL."""
    yield lambda: Backing(f"{url}/{made.file_name}", "qcow2")


@contextlib.contextmanager
def acstor(made: Prepared, host: network.Host, url: str) -> Iterator[Request]:
    """Let a running agent mirror the image."""
    with agents.Agent(host, url) as agent:
        agent.wait_ready()

        def request() -> Backing:
            agents.request(agent.control_socket, "attach-image", image_id=made.image_id)
            return Backing(agent.image_path(made.image_id), "raw")

        yield request


WAYS: dict[
    str, Callable[[Prepared, network.Host, str], contextlib.AbstractContextManager[Request]]
] = {
    "raw file": raw_file,
    "download": download,
    "nbdkit": nbdkit,
    "QEMU": qemu,
    "acstor": acstor,
}


def boot(made: Prepared, way: str, round_trip_ms: float) -> Boot:
    """Boot a server on a fresh host."""
    delay = delay_link.LinkDelay(round_trip_ms / 2) if round_trip_ms else None
    with (
        network.Network(1, LINK_MBIT, LINK_MBIT, source_delay=delay) as net,
        image_server.ImageServer(net.source, made.folder) as server,
        WAYS[way](made, net.hosts[0], server.url) as request,
    ):
        host, before, used_s = net.hosts[0], net.link_bytes()["source"], own_cpu_s()
        began_s = time.monotonic()
        backing = request()
        asked_s = time.monotonic() - began_s
        disk = host.folder / "disk.qcow2"
        guest.make_overlay(disk, backing.where, backing.disk_format, DISK_BYTES)
        with guest.Guest(host, disk, cache="writeback", memory_mib=MEMORY_MIB) as booted:
            login_s = booted.wait_booted(SERVICE_S).login_s
            if login_s is None:
                raise harness.CannotRun("no login prompt")
            runs.wait_for(lambda: SERVICE in booted.console_text(), SERVICE_S, "the services", str)
            service_s = time.monotonic() - began_s
            asks_s = time.monotonic()
            if booted.shell(PROGRAM, SERVICE_S).strip() != "42":
                raise harness.CannotRun("the program does not run")
            program_s = time.monotonic() - asks_s
            sent = (net.link_bytes()["source"] - before).sent
            return Boot(asked_s + login_s, service_s, program_s, sent, own_cpu_s() - used_s)


def own_cpu_s() -> float:
    """Return the processor seconds of this process and all its children."""
    return harness.cpu_seconds(os.getpid())


@harness.measures("PEERS")
def run(say: harness.Say) -> harness.Result:
    """Boot in each way at each round trip, in turns."""
    for program in ("nbdkit", "qemu-img", "curl"):
        if shutil.which(program) is None:
            raise harness.CannotRun(f"{program} is not installed")
    found: dict[float, dict[str, list[Boot]]] = {
        rtt_ms: {way: [] for way in WAYS} for rtt_ms in ROUND_TRIPS_MS
    }
    with runs.Run() as lab_run:
        made = prepare(lab_run.folder, say)
        stored_bytes = (made.folder / made.file_name).stat().st_size
        say(f"the image: {stored_bytes / 1e6:.0f} MB compressed")
        for turn in range(TURNS):
            for rtt_ms, of_ways in found.items():
                for way in sorted(of_ways, reverse=bool(turn % 2)):
                    of_ways[way].append(boot(made, way, rtt_ms))
                    say(f"turn {turn + 1} of {TURNS}, {rtt_ms:g} ms, {way}: {of_ways[way][-1]}")
    medians = {
        rtt_ms: {way: median_of(these) for way, these in of_ways.items()}
        for rtt_ms, of_ways in found.items()
    }
    details = {
        "stored_bytes": stored_bytes,
        "medians": medians,
        "boots": {
            rtt_ms: {way: [dataclasses.asdict(one) for one in these] for way, these in ways.items()}
            for rtt_ms, ways in found.items()
        },
    }
    return harness.Result(
        {"PEERS": over_peers(medians)}, details, lambda picture: draw(picture, medians)
    )


Medians = dict[float, dict[str, dict[str, float]]]


def median_of(these: list[Boot]) -> dict[str, float]:
    """Return the median of each figure."""
    rows = [dataclasses.asdict(one) for one in these]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def over_peers(medians: Medians) -> tuple[float, ...]:
    """Return the largest ratio of each figure to that of the fastest alternative."""
    peers = [way for way in WAYS if way not in ("raw file", "acstor")]
    return tuple(
        max(
            of_ways["acstor"][name] / min(of_ways[peer][name] for peer in peers)
            for of_ways in medians.values()
        )
        for name in FIGURES
    )


def draw(picture: figure.Figure, medians: Medians) -> None:
    """Draw the seconds of each way over the round trip."""
    for axes, name in zip(picture.subplots(1, len(FIGURES)), FIGURES, strict=True):
        for way in WAYS:
            seconds = [of_ways[way][name] for of_ways in medians.values()]
            axes.plot(list(medians), seconds, "o-", label=way)
        axes.set(title=name.removesuffix("_s"), xlabel="round trip, ms", ylabel="s", ylim=(0, None))
    axes.legend()
