# SPDX-License-Identifier: Apache-2.0
"""Server moves between hosts with acstor and stock hosts.

QEMU itself makes a guest's writes, so a guest without an operating system has some.  A file
beside the disk holds the expected content.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from acstor_common import errors
from tests.fakes import nova_hosts
from tests.lab.openstack import ini

WRITE_BYTES = 64 * 1024
DISK = "/machine/peripheral/virtio-disk0/virtio-backend"
"""QEMU's name of the root disk that libvirt makes for Nova."""


@contextlib.contextmanager
def stock(host: nova_hosts.Host, cluster: nova_hosts.NovaHosts, kind: str) -> Iterator[None]:
    """Run a host without agent and without acstor in its Nova, for the block.

    :param kind: its ``images_type``
    """
    options: ini.Sections = {
        "DEFAULT": {"debug": True, "default_ephemeral_format": "ext4"},
        "libvirt": {"images_type": kind},
    }
    with nova_hosts.agent_away(host), cluster.changed(host, options):
        yield


def qemu_io(server: nova_hosts.Server, command: str) -> None:
    """Run a qemu-io command on the root disk of a running server."""
    virsh = server.host.compute.machine.virsh
    virsh("qemu-monitor-command", "--hmp", server.id, f'qemu-io -d {DISK} "{command}"')


def qmp(server: nova_hosts.Server, command: str, **arguments: object) -> Any:
    """Run a QMP command in the QEMU of a running server; return its result."""
    asked = json.dumps({"execute": command, "arguments": arguments})
    said = json.loads(server.host.compute.machine.virsh("qemu-monitor-command", server.id, asked))
    assert "return" in said, said
    return said["return"]


class ExpectedDisk:
    """The expected content of a server's disk."""

    def __init__(self, cluster: nova_hosts.NovaHosts, server: nova_hosts.Server) -> None:
        self._cluster, self._server = cluster, server
        self._path = cluster.lab.folder / f"{server.id}.raw"
        self._path.write_bytes(cluster.images.stored(server.image_id).read_bytes())

    def write(self, at: int, pattern: int) -> None:
        """Write a pattern to the disk of the running server."""
        qemu_io(self._server, f"write -P {pattern} {at} {WRITE_BYTES}")
        with self._path.open("r+b") as kept:
            kept.seek(at)
            kept.write(bytes([pattern]) * WRITE_BYTES)

    def write_random(self, at: int, length: int) -> None:
        """Write incompressible data to the disk of the running server."""
        data = os.urandom(length)
        source = self._path.with_suffix(".new")
        source.write_bytes(data)
        qemu_io(self._server, f"write -s {source} {at} {length}")
        with self._path.open("r+b") as kept:
            kept.seek(at)
            kept.write(data)

    def is_read_by_guest(self) -> bool:
        """Return whether QEMU reads the content, as for its guest; exports the disk by NBD."""
        server, path = self._server, f"/tmp/acstor-{self._server.id}.sock"
        (disk,) = (one for one in qmp(server, "query-block") if one.get("qdev") == DISK)
        node = disk["inserted"]["node-name"]
        address = {"type": "unix", "data": {"path": path}}
        qmp(server, "nbd-server-start", addr=address)
        try:
            qmp(server, "block-export-add", id="kept", type="nbd", **{"node-name": node}, name="d")
            export = f"nbd+unix:///d?socket={path}"
            said = server.host.run("qemu-img", "compare", "-f", "raw", export, self._path)
            return "Images are identical" in said
        finally:
            qmp(server, "nbd-server-stop")

    def is_flushed_to(self, host: nova_hosts.Host) -> bool:
        """Flush the disk of the running server; return whether its file has the content.

        After a restore, QEMU holds the tables of copied clusters in memory until a flush.
        """
        qemu_io(self._server, "flush")
        with contextlib.suppress(errors.Unusable):  # qemu-img finds another content
            return self.is_on(host)
        return False

    def is_on(self, host: nova_hosts.Host) -> bool:
        """Return whether the server is on a host with the expected disk."""
        disk = self._server.disk()
        said = host.run("qemu-img", "compare", "-U", disk, self._path)
        return self._server.host is host and "Images are identical" in said


def migrate(server: nova_hosts.Server, flavor: str | None = None) -> None:
    """Cold-migrate a server, or resize it to a flavor."""
    if flavor is None:
        server.client.migrate_server(server.id)
    else:
        server.client.resize_server(server.id, flavor)
    server.confirm()


def unshelve(server: nova_hosts.Server, host: nova_hosts.Host) -> None:
    """Shelve a server, and unshelve it on a host."""
    server.client.shelve_server(server.id)
    server.wait("SHELVED_OFFLOADED")
    body = {"unshelve": {"host": host.name}}
    server.client.post(f"/servers/{server.id}/action", json=body).raise_for_status()
    server.wait("ACTIVE")


def evacuate(
    cluster: nova_hosts.NovaHosts, server: nova_hosts.Server, host: nova_hosts.Host
) -> None:
    """Evacuate a server from its dead host to another."""
    cluster.client.evacuate_server(server.id, host=host.name)
    server.arrives(host)
    server.wait("ACTIVE", "SHUTOFF")


@contextlib.contextmanager
def crashed(cluster: nova_hosts.NovaHosts, host: nova_hosts.Host) -> Iterator[None]:
    """Crash a host and force its service down, for the block."""
    service = next(iter(cluster.client.services(binary="nova-compute", host=host.name)))
    host.compute.crash()
    cluster.client.update_service_forced_down(service, forced=True)
    try:
        yield
    finally:
        host.compute.machine.boot()
        nova_hosts.restart_agent(host)
        cluster.lab.start_compute_services()
        cluster.client.update_service_forced_down(service, forced=False)
