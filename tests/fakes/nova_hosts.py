# SPDX-License-Identifier: Apache-2.0
"""The lab's two compute hosts with agents, and what a test of Nova asks of them.

Agents read the images where Glance's file store has them, so whatever Glance
hands out itself was asked of it by Nova: a download.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_glance import prehash
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import cloud
from tests.lab.openstack import compute
from tests.lab.openstack import ini

MIB = 1 << 20
DEADLINE_S = 120.0
NEWEST = "2.96"
STARTS, STARTED = "Starting compute node", "Final resource view"
"""What nova-compute logs when it is started, and before it takes orders."""
FLAVORS: dict[str, dict[str, int]] = {
    "tiny": {"ram": 64, "disk": 1},
    "bigger": {"ram": 96, "disk": 2, "ephemeral": 1, "swap": 16},
}
IMAGE_FACTS = {"os_shutdown_timeout": "1", "hw_rng_model": "virtio"}
"""A guest without an operating system does not hear that it should shut down."""


def nova_options(agent: agents.Agent) -> dict[str, dict[str, object]]:
    """Return what nova.conf says on a host with this agent."""
    return {
        "DEFAULT": {
            "config_source": "acstor",
            "default_ephemeral_format": "ext4",
            "debug": True,  # it says only then when it has started
        },
        "acstor": {
            "driver": "acstor",
            "control_socket": agent.control_socket,
            "mount_point": agent.mount_point,
            "agent_wait_s": 30,
        },
        "libvirt": {"images_type": "acstor"},
    }


class Images:
    """Images in Glance, and their chunk maps where the agents' source is.

    :param folder: the source's; on the file system of Glance's store
    """

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lab = lab
        self._client = lab.connect().image

    def add(self, data: bytes, disk_format: str = "raw", **facts: str) -> str:
        """Upload an image that no agent knows yet; return its id."""
        image_id: str = self._client.create_image(
            name=f"image-{uuid.uuid4()}",
            disk_format=disk_format,
            container_format="bare",
            data=data,
            **{**IMAGE_FACTS, **facts},
        ).id
        return image_id

    def stored(self, image_id: str) -> pathlib.Path:
        """Return the image's own file."""
        return self._lab.glance.images / image_id

    def map(self, image_id: str) -> str:
        """Make an image known to the agents."""
        shown = self.folder / f"{image_id}.raw"
        os.link(self.stored(image_id), shown)
        prehash.prehash(shown, self.folder / f"{image_id}.acmap", image_id)
        return image_id

    def downloads(self, image_id: str) -> int:
        """Return how often Glance was asked for the bytes of an image."""
        return len(re.findall(rf"GET /v2/images/{image_id}/file", self._lab.glance.log()))


@dataclasses.dataclass
class Host:
    """A compute host with its agent."""

    compute: compute.Compute
    agent: agents.Agent

    @property
    def name(self) -> str:
        """What Nova calls it."""
        return self.compute.host

    def base(self, image_id: str) -> pathlib.Path:
        """Return an image's place in Nova's image cache."""
        name = hashlib.sha1(image_id.encode()).hexdigest()
        return self.compute.instances / "_base" / name

    def is_mirrored(self, image_id: str) -> bool:
        """Say whether Nova has a mirror there."""
        base = self.base(image_id)
        return base.is_symlink() and os.readlink(base) == str(self.agent.image_path(image_id))

    def run(self, *argv: str | pathlib.Path) -> str:
        """Run a command on the host and return what it writes."""
        return self.compute.machine.inside.run(list(argv))

    def fallbacks(self) -> dict[str, int]:
        """Return how often Nova did without acstor, by the reason."""
        counted: dict[str, int] = self.agent.status()["nova"]["fallbacks"]
        return {reason: times for reason, times in counted.items() if times}


class NovaHosts:
    """Two compute hosts, and servers on them.

    :param stack: is unwound when the hosts run without acstor again
    """

    def __init__(
        self, lab: cloud.Cloud, hosts: list[Host], images: Images, stack: contextlib.ExitStack
    ) -> None:
        self.lab, self.hosts, self.images, self.stack = lab, hosts, images, stack
        self.client = lab.connect().compute
        self.client.default_microversion = NEWEST
        for name, sizes in FLAVORS.items():
            if not self.client.find_flavor(name, ignore_missing=True):
                self.client.create_flavor(name=name, vcpus=1, **sizes)

    def flavor(self, name: str) -> str:
        """Return a flavor's id."""
        found: str = self.client.find_flavor(name).id
        return found

    @contextlib.contextmanager
    def server(
        self, image_id: str, host: Host | None = None, flavor: str = "tiny"
    ) -> Iterator["Server"]:
        """Build a server, and delete it at the end."""
        made = self.client.create_server(
            name=f"server-{uuid.uuid4()}",
            image_id=image_id,
            flavor_id=self.flavor(flavor),
            networks="none",
            host=(host or self.hosts[0]).name,
        )
        running = Server(self, made.id, image_id)
        try:
            running.wait("ACTIVE")
            yield running
        finally:
            running.delete()

    @contextlib.contextmanager
    def changed(self, host: Host, options: ini.Sections, is_started: bool = True) -> Iterator[None]:
        """Let nova-compute run with other options until the block ends.

        :param is_started: wait for it at the beginning as well as at the end
        """
        try:
            with host.compute.changed(options):
                if is_started:
                    wait_started(host.compute)
                yield
        finally:
            self.stack.enter_context(host.compute.changed(nova_options(host.agent)))
            wait_started(host.compute)

    def host(self, name: str) -> Host:
        """Return a host by the name that Nova has for it."""
        return next(host for host in self.hosts if host.name == name)


class Server:
    """A server, as its user sees it through the API, and its disk, as its host has it."""

    def __init__(self, hosts: NovaHosts, server_id: str, image_id: str) -> None:
        self._hosts, self.id, self._image_id = hosts, server_id, image_id
        self.client = hosts.client

    def wait(self, *statuses: str) -> Any:
        """Wait until nothing is under way and the status is one of these; return the server."""
        ends_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends_s:
            seen = self.client.get_server(self.id)
            if seen.status in statuses and not seen.task_state:
                return seen
            if seen.status == "ERROR" and "ERROR" not in statuses:
                raise AssertionError(f"{self.id}: {seen.fault}")
            time.sleep(0.2)
        raise AssertionError(f"{self.id} is {seen.status} ({seen.task_state}), not {statuses}")

    @property
    def host(self) -> Host:
        """The host that it is on."""
        return self._hosts.host(self.client.get_server(self.id).compute_host)

    def disk(self, name: str = "disk") -> pathlib.Path:
        """Return the path of one of its disks, as its host sees it."""
        return self._hosts.lab.folder / "nova" / "instances" / self.id / name

    def has_bytes_of(self, image_id: str, name: str = "disk") -> bool:
        """Compare a disk that no guest wrote with an image's own file."""
        stored = self._hosts.images.stored(image_id)
        said = self.host.run("qemu-img", "compare", "-U", self.disk(name), stored)
        return "Images are identical" in said

    def lies_on_mirror(self, image_id: str | None = None, name: str = "disk") -> bool:
        """Say whether its disk is right, its base is a mirror and nothing was downloaded."""
        image_id = image_id or self._image_id
        return (
            self.host.is_mirrored(image_id)
            and self.has_bytes_of(image_id, name)
            and self._hosts.images.downloads(image_id) == 0
        )

    def hard_reboot(self) -> None:
        """Have it started anew by Nova."""
        self.client.reboot_server(self.id, "HARD")
        self.wait("ACTIVE")

    def confirm(self) -> None:
        """Confirm a cold migration or a resize that is being done."""
        self.wait("VERIFY_RESIZE")
        self.client.confirm_server_resize(self.id)
        self.wait("ACTIVE")

    def live_migrate(self, host: Host) -> None:
        """Move it while it runs."""
        self.client.live_migrate_server(self.id, host=host.name, block_migration="auto")
        self._until(lambda: self.host.name == host.name)
        self.wait("ACTIVE")

    def _until(self, is_true: Callable[[], bool]) -> None:
        runs.wait_for(is_true, DEADLINE_S, f"server {self.id}", str)

    def snapshot(self) -> str:
        """Make an image of it; return the image's id when it is active."""
        made = self.client.create_server_image(self.id, f"snapshot-{uuid.uuid4()}")
        images = self._hosts.lab.connect().image
        self._until(lambda: bool(images.get_image(made.id).status == "active"))
        self.wait("ACTIVE", "SHUTOFF")
        snapshot_id: str = made.id
        return snapshot_id

    def delete(self) -> None:
        """Delete it and wait until it is gone."""
        self.client.delete_server(self.id, ignore_missing=True)
        gone = lambda: self.client.find_server(self.id, ignore_missing=True) is None  # noqa: E731
        self._until(gone)


def _write_ring(lab: cloud.Cloud, port: int) -> pathlib.Path:
    entries = [
        {"host": host.host, "address": f"{host.machine.address}:{port}", "vnodes": 100}
        for host in lab.computes
    ]
    path = lab.folder / "ring.json"
    path.write_text(json.dumps({"version": 1, "epoch": 1, "hosts": entries}))
    return path


def wait_started(host: compute.Compute) -> None:
    """Wait until nova-compute is done with the instances that it found when it was started."""

    def is_started() -> bool:
        return STARTED in host.log().rpartition(STARTS)[2]

    runs.wait_for(is_started, DEADLINE_S, host.name, host.log)


@contextlib.contextmanager
def running(lab: cloud.Cloud) -> Iterator[NovaHosts]:
    """Let the lab's compute hosts run with acstor until the block ends."""
    images = Images(lab, lab.folder / "acstor-source")
    with contextlib.ExitStack() as stack:
        port = local.unused_port()
        ring_file = _write_ring(lab, port)
        hosts = []
        for host in lab.computes:
            agent = stack.enter_context(
                host.agent(
                    sections={"source_file": {"folder": images.folder}},
                    ring_file=ring_file,
                    sources="file",
                    peer_listen=f"{host.machine.address}:{port}",
                )
            )
            stack.enter_context(host.changed(nova_options(agent)))
            hosts.append(Host(host, agent))
        for host in lab.computes:
            wait_started(host)
        yield NovaHosts(lab, hosts, images, stack)
