# SPDX-License-Identifier: Apache-2.0
"""The lab's two compute hosts with agents, and operations for tests of Nova.

Agents read ranges of images from Glance as the service user; Nova downloads whole images.  So
Glance's log shows the reader of each.
"""

import configparser
import contextlib
import dataclasses
import hashlib
import http
import json
import os
import pathlib
import re
import signal
import subprocess
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import IO
from typing import Any

from acstor_common.model import ids
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import build_modes
from acstor_glance.client import glance_client
from acstor_glance.cmd import manage
from acstor_glance.prepare import image_preparer
from tests.fakes import descriptor_keeper
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import compute
from tests.lab.openstack import ini
from tests.lab.openstack import record_polling

MIB = 1 << 20
IMAGE_BYTES = 12 * MIB
DEADLINE_S = 120.0
NEWEST = "2.96"
STARTED = "Final resource view"
"""nova-compute's log message when it accepts requests."""
FLAVORS: dict[str, dict[str, int]] = {
    "tiny": {"ram": 64, "disk": 1},
    "bigger": {"ram": 96, "disk": 2, "ephemeral": 1, "swap": 16},
    "guest": {"ram": 384, "disk": 2},
}
IMAGE_FACTS = {"os_shutdown_timeout": "1", "hw_rng_model": "virtio"}
"""A guest without an operating system ignores a shutdown request."""


def nova_options(agent: agents.Agent) -> dict[str, dict[str, object]]:
    """Return the test options of nova.conf on a host with this agent."""
    # nova-compute logs STARTED only in debug mode.
    own = {"DEFAULT": {"default_ephemeral_format": "ext4", "debug": True}}
    return ini.merged(compute.acstor_options(agent), own)


def service_user(lab: cloud.Cloud) -> dict[str, object]:
    """Return the agents' credentials: options of the source ``glance``."""
    credentials = api.credentials(lab.keystone.auth_url, "acstor")
    return {**credentials, "region_name": api.REGION}


def given(log: str, image_id: str, status: int) -> list[int]:
    """Return the sizes of the responses for an image's data, by a service's log."""
    answer = rf"GET /v[12]/images/{image_id}/file => generated (\d+) bytes .*\(HTTP/1.1 {status}\)"
    return [int(length) for length in re.findall(answer, log)]


class Images:
    """Images in Glance, with chunk maps or without.

    :param folder: working folder of the map maker
    """

    def __init__(self, lab: cloud.Cloud, folder: pathlib.Path) -> None:
        self._lab = lab
        self.client = lab.connect().image
        folder.mkdir(parents=True, exist_ok=True)
        conf_file = folder / "acstor-glance.conf"
        own = acstor_glance.options(lab, folder, file_store_dirs=lab.glance.images)
        ini.write(conf_file, {"acstor_glance": own})
        conf = manage.load_conf(str(conf_file))
        self._glance, self._conf = glance_client.connect(conf), conf
        self._preparer = image_preparer.ImagePreparer(self._glance, conf)

    def add(self, data: bytes | IO[bytes], disk_format: str = "raw", **facts: str) -> str:
        """Upload an image without a chunk map; return its id."""
        image_id: str = self.client.create_image(
            name=f"image-{uuid.uuid4()}",
            allow_duplicates=True,
            disk_format=disk_format,
            container_format="bare",
            data=data,
            **{**IMAGE_FACTS, **facts},
        ).id
        return image_id

    def new(self, **facts: str) -> str:
        """Upload a new random image with its chunk map; return its id."""
        return self.map(self.add(bytes(512) + os.urandom(IMAGE_BYTES - 512), **facts))

    def stored(self, image_id: str) -> pathlib.Path:
        """Return the image's file in Glance's store."""
        return self._lab.glance.images / image_id

    def map(self, image_id: str) -> str:
        """Make an image's chunk map; return the image's id."""
        assert (
            self._preparer.prepare_image(ids.parse_image_id(image_id))
            == image_preparer.PreparationOutcome.PREPARED
        )
        return image_id

    def build_boot_image(self, image_id: str) -> None:
        """Make the boot image of an image with a chunk map, as the listener does."""
        ways = build_modes.BuildModes(builds=True, records=False)
        builder = boot_image_maker.BootImageMaker(self._glance, self._conf, ways)
        assert builder.make_boot_image(ids.parse_image_id(image_id))

    def _given(self, image_id: str, status: int) -> list[int]:
        return given(self._lab.glance.log(), image_id, status)

    def wait_active(self, image_id: str) -> None:
        """Wait until an image is active."""
        rows = record_polling.rows_of_image(image_id)
        is_active = lambda: bool(self.client.get_image(image_id).status == "active")  # noqa: E731
        database, what = self._lab.mariadb, f"image {image_id}"
        record_polling.wait_for(database, rows, is_active, DEADLINE_S, what, str)

    def downloads(self, image_id: str) -> int:
        """Return the number of full downloads of an image."""
        return len(self._given(image_id, http.HTTPStatus.OK))

    def range_bytes(self, image_id: str) -> int:
        """Return the number of image bytes sent in ranges."""
        return sum(self._given(image_id, http.HTTPStatus.PARTIAL_CONTENT))


@dataclasses.dataclass
class Host:
    """A compute host with its agent."""

    compute: compute.Compute
    agent: agents.Agent

    @property
    def name(self) -> str:
        """Its host name in Nova."""
        return self.compute.host

    def base(self, image_id: str) -> pathlib.Path:
        """Return an image's path in Nova's image cache."""
        name = hashlib.sha1(image_id.encode()).hexdigest()
        return self.compute.instances / "_base" / name

    def is_mirrored(self, image_id: str) -> bool:
        """Return whether that path links to the mirror."""
        base = self.base(image_id)
        return base.is_symlink() and os.readlink(base) == str(self.agent.image_path(image_id))

    def zeros_read(self, image_id: str) -> int:
        """Return the bytes of zero chunks read through the image's mirror."""
        read: int = self.agent.status()["images"][image_id]["read"]["zero"]["bytes"]
        return read

    def run(self, *argv: str | pathlib.Path) -> str:
        """Run a command on the host; return its output."""
        return self.compute.machine.inside.run(list(argv))

    def fallbacks(self) -> dict[str, int]:
        """Return the number of Nova's fallbacks, by reason."""
        counted: dict[str, int] = self.agent.status()["nova"]["fallbacks"]
        return {reason: times for reason, times in counted.items() if times}


def acstor_lines(log: str) -> str:
    """Return the last lines of a log of Nova that acstor wrote."""
    return "\n".join([line for line in log.splitlines() if "acstor_nova" in line][-20:])


class NovaHosts:
    """Two compute hosts and their servers."""

    def __init__(self, lab: cloud.Cloud, found: list[Host], images: Images) -> None:
        self.lab, self.hosts, self.images = lab, found, images
        self.client = lab.connect().compute
        self.client.default_microversion = NEWEST
        for name, sizes in FLAVORS.items():
            if not self.client.find_flavor(name, ignore_missing=True):
                self.client.create_flavor(name=name, vcpus=1, **sizes)

    def flavor(self, name: str) -> str:
        """Return a flavor's id."""
        found: str = self.client.find_flavor(name).id
        return found

    def begin(self, image_id: str, host: Host | None = None, flavor: str = "tiny") -> "Server":
        """Start the creation of a server."""
        made = self.client.create_server(
            name=f"server-{uuid.uuid4()}",
            image_id=image_id,
            flavor_id=self.flavor(flavor),
            networks="none",
            host=(host or self.hosts[0]).name,
        )
        return Server(self, made.id, image_id)

    @contextlib.contextmanager
    def server(
        self,
        image_id: str,
        host: Host | None = None,
        flavor: str = "tiny",
        deadline_s: float = DEADLINE_S,
    ) -> Iterator["Server"]:
        """Create a server, and delete it after the block."""
        running = self.begin(image_id, host, flavor)
        try:
            running.wait("ACTIVE", deadline_s=deadline_s)
            yield running
        finally:
            running.delete()

    @contextlib.contextmanager
    def changed(self, host: Host, options: ini.Sections, is_started: bool = True) -> Iterator[None]:
        """Run nova-compute with other options for the block.

        :param is_started: wait for the start at the beginning of the block, too
        """
        try:
            with host.compute.changed(options):
                if is_started:
                    wait_started(host.compute)
                yield
        finally:
            wait_started(host.compute)

    def host(self, name: str) -> Host:
        """Return a host by its name in Nova."""
        return next(host for host in self.hosts if host.name == name)


class Server:
    """A server in Nova's API, and its disk on its host."""

    def __init__(self, cluster: NovaHosts, server_id: str, image_id: str) -> None:
        self._hosts, self.id, self.image_id = cluster, server_id, image_id
        self.client = cluster.client

    def wait(self, *statuses: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for one of the statuses without a task state; return the server."""
        seen: Any = None

        def is_settled() -> bool:
            nonlocal seen
            seen = self.client.get_server(self.id)
            if seen.status == "ERROR" and "ERROR" not in statuses:
                raise AssertionError(f"{self.id}: {seen.fault}")
            return seen.status in statuses and not seen.task_state

        why = lambda: f"it is {seen.status} ({seen.task_state})"  # noqa: E731
        self._until(is_settled, deadline_s, why, record_polling.has_task)
        return seen

    def reaches(self, task_state: str) -> None:
        """Wait until the server has a task state."""
        self._until(lambda: self.client.get_server(self.id).task_state == task_state)

    @property
    def host(self) -> Host:
        """The server's current host."""
        return self._hosts.host(self.client.get_server(self.id).compute_host)

    def console(self) -> str:
        """Return the guest's serial console log."""
        logs = (host.compute.instances / self.id / "console.log" for host in self._hosts.hosts)
        return next((log.read_text(errors="replace") for log in logs if log.exists()), "")

    def disk(self, name: str = "disk") -> pathlib.Path:
        """Return the path of one of its disks on its host."""
        return self._hosts.lab.folder / "nova" / "instances" / self.id / name

    def has_bytes_of(self, image_id: str, name: str = "disk") -> bool:
        """Return whether a disk without guest writes equals an image."""
        stored = self._hosts.images.stored(image_id)
        said = self.host.run("qemu-img", "compare", "-U", self.disk(name), stored)
        return "Images are identical" in said

    def lies_on_mirror(self, image_id: str | None = None, name: str = "disk") -> bool:
        """Return whether its disk is intact, its base a mirror, and nothing downloaded."""
        image_id = image_id or self.image_id
        return (
            self.host.is_mirrored(image_id)
            and self.has_bytes_of(image_id, name)
            and self._hosts.images.downloads(image_id) == 0
        )

    def hard_reboot(self) -> None:
        """Reboot it hard."""
        self.client.reboot_server(self.id, "HARD")
        self.wait("ACTIVE")

    def confirm(self) -> None:
        """Confirm a pending cold migration or resize."""
        self.wait("VERIFY_RESIZE")
        self.client.confirm_server_resize(self.id)
        self.wait("ACTIVE")

    def live_migrate(self, host: Host) -> None:
        """Live-migrate it."""
        self.client.live_migrate_server(self.id, host=host.name, block_migration="auto")
        self.arrives(host)
        self.wait("ACTIVE")

    def arrives(self, host: Host) -> None:
        """Wait until Nova reports it on a host."""
        self._until(lambda: self.host is host)

    def _until(
        self,
        is_true: Callable[[], bool],
        deadline_s: float = DEADLINE_S,
        why: Callable[[], str] = str,
        is_early: Callable[[record_polling.Rows], bool] = lambda rows: False,
    ) -> None:
        rows = record_polling.rows_of_server(self.id)
        database, what = self._hosts.lab.mariadb, f"server {self.id}"
        record_polling.wait_for(database, rows, is_true, deadline_s, what, why, is_early)

    def snapshot(self) -> str:
        """Make a snapshot; return its image id when it is active."""
        made = self.client.create_server_image(self.id, f"snapshot-{uuid.uuid4()}")
        self._hosts.images.wait_active(made.id)
        self.wait("ACTIVE", "SHUTOFF")
        snapshot_id: str = made.id
        return snapshot_id

    def delete(self) -> None:
        """Delete it and wait for the end of the deletion."""
        self.client.delete_server(self.id, ignore_missing=True)
        gone = lambda: self.client.find_server(self.id, ignore_missing=True) is None  # noqa: E731
        self._until(gone)


@contextlib.contextmanager
def agent_away(host: Host) -> Iterator[None]:
    """Kill a host's agent for the block, and start it afterwards."""
    hosts.kill_agent(host.agent)
    try:
        yield
    finally:
        restart_agent(host)


def restart_agent(host: Host) -> None:
    """Restart a host's agent; its mount does not survive."""
    host.agent.stop()
    host.agent.start()
    host.agent.wait_ready()


@contextlib.contextmanager
def agent_options(
    host: Host,
    constants: tuned.Constants | None = None,
    sections: ini.Sections | None = None,
    **options: object,
) -> Iterator[None]:
    """Run a host's agent with other options; its mirrors must be unused.

    :param constants: that differ from the product's
    :param sections: other sections of its configuration
    :param options: of [acstor_agent]
    """
    file = host.agent.config_file
    before, parser = file.read_text(), configparser.ConfigParser(interpolation=None)
    parser.read_string(before)
    parser.read_dict({**(sections or {}), "acstor_agent": options})
    with file.open("w") as changed:
        parser.write(changed)
    usual, host.agent.constants = host.agent.constants, constants or {}
    try:
        restart_agent(host)
        yield
    finally:
        host.agent.constants = usual
        file.write_text(before)
        restart_agent(host)


@contextlib.contextmanager
def kept(host: Host, folder: pathlib.Path) -> Iterator[Callable[[signal.Signals], None]]:
    """Run a host's agent under a service manager that keeps the mount, for the block.

    Yields a function that ends the supervisor with a signal and starts the next one.
    """
    log = host.agent.folder / "agent.log"
    running: list[subprocess.Popen[bytes]] = []
    host.agent.stop()
    try:
        with descriptor_keeper.DescriptorKeeper(folder / "notify") as keeper:

            def start() -> None:
                running.append(keeper.start([*host.compute.machine.enter(), *host.agent.argv], log))
                keeper.listen("READY=1", DEADLINE_S)

            def restart(number: signal.Signals) -> None:
                running[-1].send_signal(number)
                running[-1].wait(DEADLINE_S)
                start()

            start()
            yield restart
    finally:
        for process in running[-1:]:
            process.terminate()
            process.wait(DEADLINE_S)
        host.agent.start()
        host.agent.wait_ready()


def _write_ring(lab: cloud.Cloud, port: int) -> pathlib.Path:
    entries = [
        {"host": host.host, "address": f"{host.machine.address}:{port}", "vnodes": 100}
        for host in lab.computes
    ]
    path = lab.folder / "ring.json"
    path.write_text(json.dumps({"version": 1, "epoch": 1, "hosts": entries}))
    return path


def wait_started(host: compute.Compute) -> None:
    """Wait until nova-compute has initialized its existing instances."""

    def is_started() -> bool:
        *before, _after = host.log().split(STARTED)  # many MiB: no list of all lines
        return any(f" {host.pid} " in text.rpartition("\n")[2] for text in before)

    runs.wait_for(is_started, DEADLINE_S, host.name, host.log)


def configure(wanted: Mapping[compute.Compute, ini.Sections]) -> None:
    """Set nova-compute's options on each host; stop it where they change."""
    others = [host for host, options in wanted.items() if host.changes != options]
    for host in others:
        host.request_stop()
    for host in others:
        host.stop()
        host.changes = wanted[host]


def wait_subscribed(lab: cloud.Cloud) -> None:
    """Wait until all of Nova consumes its queues at a restarted broker.

    The broker drops earlier messages, and Nova never resends them.
    """
    queues = {"conductor", "scheduler", *(f"compute.{host.host}" for host in lab.computes)}
    is_heard = lambda: queues <= lab.rabbitmq.queues_with_consumers()  # noqa: E731
    runs.wait_for(is_heard, DEADLINE_S, "Nova", lab.rabbitmq.log)


@contextlib.contextmanager
def running(
    lab: cloud.Cloud,
    sources: str = "glance",
    more: ini.Sections | None = None,
    constants: tuned.Constants | None = None,
) -> Iterator[NovaHosts]:
    """Run the lab's compute hosts with acstor for the block.

    Nova keeps its options afterwards, since most later tests need the same; others call
    :func:`configure`.

    :param sources: of their agents
    :param more: further options of nova.conf
    :param constants: constants of the agents
    """
    images = Images(lab, lab.folder / "acstor-glance")
    with contextlib.ExitStack() as stack:
        port = local.unused_port()
        ring_file = _write_ring(lab, port)
        found = []
        for host in lab.computes:
            agent = stack.enter_context(
                host.agent(
                    sections={"source_glance": service_user(lab)},
                    ring_file=ring_file,
                    sources=sources,
                    peer_listen=f"{host.machine.address}:{port}",
                    constants=constants,
                )
            )
            found.append(Host(host, agent))
        configure(
            {host.compute: ini.merged(nova_options(host.agent), more or {}) for host in found}
        )
        for host in lab.computes:
            host.start()
        for host in lab.computes:
            wait_started(host)
        yield NovaHosts(lab, found, images)
