# SPDX-License-Identifier: Apache-2.0
"""Ways to boot one image on many hosts: full copy, on demand, acstor.

The ways differ only in the backing file of the guest's overlay.  Network, image server, guest,
QEMU's options and measurements are the same; each way starts with a new network and cold hosts.
The image server has the image as distributions publish theirs, a compressed qcow2; for one of
acstor's ways it has a raw file, as a comparison.

acstor's hosts find each other by a decision service with a broker.  After the boots, one of
these hosts gets other traffic (:mod:`tests.lab.demo_remap`).
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from collections.abc import Generator
from typing import Any

from acstor_common import errors
from tests.lab import agents
from tests.lab import decision
from tests.lab import demo_images
from tests.lab import demo_remap
from tests.lab import guest
from tests.lab import guest_image
from tests.lab import image_server
from tests.lab import local
from tests.lab import network
from tests.lab import watch

DATA_ID = "5a0e6f0c-7d14-4f0b-8f3e-2b9a4c6d8e71"
"""The image that programs read in the second act."""
DEAD_AFTER = 60
"""In collections of a second: booting guests starve agents of CPU time."""
SOURCE = "image server"
DEADLINE_S = 240.0
"""For a boot; a copy has as long again."""
SAY_EVERY_S = 3.0
HTTP_TIMEOUT_S = 60

Say = Callable[[str], None]
Journey = Generator[str, None, None]
"""A host's progress to the login prompt: yields its current stage in words."""


@dataclasses.dataclass
class HostResult:
    """Measurements of one host."""

    host: str
    login_s: float
    first_line_s: float
    copied_s: float | None
    """When its copy of the image was complete; None for ways that do not copy."""
    received_bytes: int
    """Bytes received on its link, including headers."""
    guest_read_bytes: int
    read_origins: dict[str, int] = dataclasses.field(default_factory=dict)
    """Bytes that the guest read, by their origin (acstor only)."""


@dataclasses.dataclass
class BootResult:
    """Measurements of all hosts."""

    way: str
    label: str
    hosts: list[HostResult]
    server_bytes: int
    """Body bytes sent by the image server, by its log."""
    unique_bytes: int
    """The number of distinct bytes among these."""
    server_link_bytes: int
    """Bytes sent on the server's link, by the kernel's counter."""
    raw_bytes: int
    """The sent disk data after decompression."""
    boot_image: demo_images.BootImage | None = None
    """The boot image, built once (acstor only)."""
    exchange: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """Bytes of chunks, by receiver and sender (acstor only)."""
    remap: demo_remap.RemapResult | None = None

    @property
    def amplification(self) -> float:
        """How often the server sent each distinct byte, on average."""
        return self.server_bytes / self.unique_bytes if self.unique_bytes else 0.0

    @property
    def of_raw(self) -> float:
        """The ratio of sent bytes to the same data decompressed."""
        return self.server_bytes / self.raw_bytes if self.raw_bytes else 0.0


@dataclasses.dataclass
class Scene:
    """The environment of a way.

    :param hosts: all of the network but one, which stays outside
    """

    net: network.Network
    hosts: list[network.Host]
    server: image_server.ImageServer
    image: guest_image.GuestImage
    stack: contextlib.ExitStack
    """Stops everything, guests first."""
    ends_guests: contextlib.ExitStack
    running_agents: list[agents.Agent] = dataclasses.field(default_factory=list)
    guests: dict[str, guest.Guest] = dataclasses.field(default_factory=dict)
    guest_start_s: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The disk's size, as guests see it."""
        return self.image.raw.stat().st_size

    def boot(self, host: network.Host, backing: str | pathlib.Path, form: str) -> Journey:
        """Boot a guest on ``host`` whose disk is an overlay over ``backing``."""
        overlay = guest.make_overlay(host.folder / "disk.qcow2", backing, form, self.size_bytes)
        self.guest_start_s[host.name] = time.monotonic()
        running = self.ends_guests.enter_context(guest.Guest(host, overlay))
        self.guests[host.name] = running
        end = time.monotonic() + DEADLINE_S
        while not running.poll().is_booted:
            if time.monotonic() > end:
                raise running.failure(f"no login prompt after {DEADLINE_S:g} s")
            yield running.milestones.stage


def full_copy(scene: Scene, host: network.Host) -> Journey:
    """Download the whole qcow2, then boot from it.

    Cheaper than Nova, which also hashes the file and by default converts it to raw.
    """
    copy = host.folder / demo_images.QCOW2_NAME
    complaint = copy.with_suffix(".curl")
    with complaint.open("wb") as out:
        curl = host.popen(
            ["curl", "-sSf", "-o", copy, f"{scene.server.url}/{copy.name}"], stderr=out
        )
    while curl.poll() is None:
        done = copy.stat().st_size if copy.exists() else 0
        yield f"copying {100 * done // scene.image.compressed.stat().st_size} %"
    if curl.returncode:
        raise errors.Unusable(f"curl on {host.name}", complaint.read_text())
    yield from scene.boot(host, copy, "qcow2")


def on_demand(scene: Scene, host: network.Host) -> Journey:
    """Boot at once; QEMU reads the qcow2 over HTTP, without sharing or caching."""
    url = f"{scene.server.url}/{demo_images.QCOW2_NAME}"
    # QEMU's default timeout is 5 s; here links are saturated on purpose.
    file = {"driver": "http", "url": url, "timeout": HTTP_TIMEOUT_S}
    backing = {"driver": "qcow2", "file": file}
    yield from scene.boot(host, f"json:{json.dumps(backing)}", "qcow2")


def with_acstor(scene: Scene, host: network.Host) -> Journey:
    """Boot at once from the mirror of this host's agent, with an empty cache."""
    agent = next(agent for agent in scene.running_agents if agent.host is host)
    yield from scene.boot(host, agent.image_path(demo_images.IMAGE_ID), "raw")


def start_acstor(scene: Scene, link_mbit: float) -> watch.Watch:
    """Start the decision service and agents; wait until all have one ring."""
    service = scene.stack.enter_context(decision.Service(scene.net, dead_after_samples=DEAD_AFTER))
    scene.running_agents = service.join(scene.hosts, link_mbit, scene.server.url)
    return scene.stack.enter_context(watch.Watch(service))


WAYS: dict[str, tuple[str, Callable[[Scene, network.Host], Journey]]] = {
    "copy": ("full copy, then boot", full_copy),
    "demand": ("qcow2 over HTTP on demand", on_demand),
    "raw": ("acstor, raw image", with_acstor),
    "acstor": ("acstor", with_acstor),
}
WITH_AGENTS = ("raw", "acstor")
BASELINES = ("copy", "demand")
"""Ways without acstor, as a comparison."""
ACSTOR = "acstor"
"""The complete way, with a boot image; the second act uses its agents."""


def travel(
    journeys: dict[str, Journey],
    label: str,
    say: Say,
    deadline_s: float = 2 * DEADLINE_S,
    say_every_s: float = SAY_EVERY_S,
) -> None:
    """Run all journeys in parallel to their ends; report their stages.

    :raises errors.Unusable: one failed, or they took too long together
    """
    begin = last_said = time.monotonic()
    places = dict.fromkeys(journeys, "starting")
    while set(places.values()) != {"booted"}:
        for name, journey in journeys.items():
            places[name] = next(journey, "booted")
        now = time.monotonic()
        words = "  ".join(f"{name}: {place}" for name, place in places.items())
        if now - begin > deadline_s:
            raise errors.Unusable(label, f"not all have booted after {now - begin:.0f} s: {words}")
        if now - last_said >= say_every_s:
            say(f"{label} | {now - begin:4.0f} s | {words}")
            last_said = now
        time.sleep(0.05)


def prepare(
    way: str, folder: pathlib.Path, image: guest_image.GuestImage, say: Say
) -> demo_images.BootImage | None:
    """Fill the image server's folder, with chunk map and boot image for acstor.

    If no boot image can be built, guests boot without one.
    """
    name, file = demo_images.QCOW2_NAME, image.compressed
    if way == "raw":
        name, file = demo_images.RAW_NAME, image.raw
    (folder / name).symlink_to(file)
    if way not in WITH_AGENTS:
        return None
    begin = time.monotonic()
    demo_images.make_chunk_map(folder / name)
    say(f"{way}: chunk map of {name} made in {time.monotonic() - begin:.1f} s, once for the image")
    if way != ACSTOR:
        return None
    say(f"{way}: a throw-away guest boots the image, once, for its boot image")
    try:
        built = demo_images.build_boot_image(folder / name)
    except errors.Unusable as failure:
        say(f"{way}: no boot image, guests boot without it: {failure}")
        return None
    say(
        f"{way}: boot image built in {built.seconds:.1f} s, {built.chunks} chunks "
        f"in {built.stored_bytes / 1e6:.1f} MB"
    )
    return built


def add_data(folder: pathlib.Path) -> None:
    """Add the image of the second act to the image server's folder."""
    data = folder / f"{DATA_ID}.raw"
    data.write_bytes(local.random_bytes(demo_remap.IMAGE_BYTES))
    demo_images.make_chunk_map(data)


def play(
    way: str,
    hosts: int,
    link_mbit: float,
    image: guest_image.GuestImage,
    say: Say,
) -> BootResult:
    """Boot the guest on all hosts in one way and return the measurements."""
    label, journey = WAYS[way]
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network.Network(hosts + 1, link_mbit, link_mbit))
        folder = net.run.folder / "www"
        folder.mkdir()
        boot_image = prepare(way, folder, image, say)
        if way == ACSTOR:
            add_data(folder)
        server = stack.enter_context(image_server.ImageServer(net.source, folder))
        ends_guests = contextlib.ExitStack()
        scene = Scene(net, net.hosts[:hosts], server, image, stack, ends_guests)
        seen = None
        if way in WITH_AGENTS:
            say(f"{way}: a broker, the decision service and the agents start")
            seen = start_acstor(scene, link_mbit)
        stack.enter_context(ends_guests)
        begin = time.monotonic()
        travel({host.name: journey(scene, host) for host in scene.hosts}, label, say)
        result = _result(scene, way, folder, begin)
        result.boot_image = boot_image
        ends_guests.close()
        if seen is not None:
            time.sleep(2 * decision.COLLECTION_S)  # the last transfers are in the samples by then
            result.exchange = exchange(scene, seen)
            if way == ACSTOR and hosts > 1:
                running, outside = scene.running_agents, net.hosts[hosts]
                result.remap = demo_remap.play(running, outside, link_mbit, DATA_ID, seen, say)
        return result


def _result(scene: Scene, way: str, folder: pathlib.Path, begin: float) -> BootResult:
    """Return the measurements after the last boot."""
    links = scene.net.link_bytes()
    requests = list(scene.server.requests())
    origins = {agent.host.name: read_origins(agent.status()) for agent in scene.running_agents}
    results = []
    for host in scene.hosts:
        seen = scene.guests[host.name].milestones
        waited_s = scene.guest_start_s[host.name] - begin
        results.append(
            HostResult(
                host=host.name,
                login_s=round(waited_s + (seen.login_s or 0.0), 2),
                first_line_s=round(waited_s + (seen.first_line_s or 0.0), 2),
                copied_s=round(waited_s, 2) if way == "copy" else None,
                received_bytes=links[host.name].received,
                guest_read_bytes=seen.read_bytes or 0,
                read_origins=origins.get(host.name, {}),
            )
        )
    return BootResult(
        way=way,
        label=WAYS[way][0],
        hosts=results,
        server_bytes=sum(request.body_bytes_sent for request in requests),
        unique_bytes=image_server.unique_bytes(requests),
        server_link_bytes=links["source"].sent,
        raw_bytes=demo_images.bytes_as_raw(requests, folder),
    )


def exchange(scene: Scene, seen: watch.Watch) -> dict[str, dict[str, int]]:
    """Return the bytes of chunks that each host received, by sender."""
    got = {}
    for agent in scene.running_agents:
        name = agent.host.name
        from_peers = {giver: count for (giver, to), count in seen.given().items() if to == name}
        got[name] = {SOURCE: agent.status()["exchange"]["source_bytes"], **from_peers}
    return got


def read_origins(status: dict[str, Any]) -> dict[str, int]:
    """Return the bytes that guests read, by origin, from an agent's status."""
    return {origin: counts["bytes"] for origin, counts in status["read"].items()}
