# SPDX-License-Identifier: Apache-2.0
"""Servers that move between hosts with acstor and hosts that have never heard of it.

A guest's writes are made by QEMU itself, so that a guest without an operating system has some, and
what its disk must be is kept in a file beside it.
"""

import contextlib
import os
from collections.abc import Iterator

from tests.fakes import nova_hosts
from tests.lab.openstack import ini

WRITE_BYTES = 64 * 1024
DISK = "/machine/peripheral/virtio-disk0/virtio-backend"
"""What QEMU calls the root disk that libvirt has made for Nova."""


@contextlib.contextmanager
def stock(host: nova_hosts.Host, cluster: nova_hosts.NovaHosts, kind: str) -> Iterator[None]:
    """Let a host have neither agent nor acstor in its Nova until the block ends.

    :param kind: its ``images_type``
    """
    options: ini.Sections = {
        "DEFAULT": {"debug": True, "default_ephemeral_format": "ext4"},
        "libvirt": {"images_type": kind},
    }
    with nova_hosts.agent_away(host), cluster.changed(host, options):
        yield


def qemu_io(server: nova_hosts.Server, command: str) -> None:
    """Have the QEMU of a running server do something with its root disk."""
    virsh = server.host.compute.machine.virsh
    virsh("qemu-monitor-command", "--hmp", server.id, f'qemu-io -d {DISK} "{command}"')


class Kept:
    """What a server's disk has to be."""

    def __init__(self, cluster: nova_hosts.NovaHosts, server: nova_hosts.Server) -> None:
        self._cluster, self._server = cluster, server
        self._path = cluster.lab.folder / f"{server.id}.raw"
        self._path.write_bytes(cluster.images.stored(server.image_id).read_bytes())

    def write(self, at: int, pattern: int) -> None:
        """Write to the disk of the running server."""
        qemu_io(self._server, f"write -P {pattern} {at} {WRITE_BYTES}")
        with self._path.open("r+b") as kept:
            kept.seek(at)
            kept.write(bytes([pattern]) * WRITE_BYTES)

    def write_random(self, at: int, length: int) -> None:
        """Write to the disk of the running server what cannot be compressed."""
        data = os.urandom(length)
        source = self._path.with_suffix(".new")
        source.write_bytes(data)
        qemu_io(self._server, f"write -s {source} {at} {length}")
        with self._path.open("r+b") as kept:
            kept.seek(at)
            kept.write(data)

    def is_on(self, host: nova_hosts.Host) -> bool:
        """Say whether the server is on a host and its disk is there, byte for byte."""
        disk = self._server.disk()
        said = host.run("qemu-img", "compare", "-U", disk, self._path)
        return self._server.host is host and "Images are identical" in said


def migrate(server: nova_hosts.Server, flavor: str | None = None) -> None:
    """Move a server to the other host while it is off, to a larger flavor if one is named."""
    if flavor is None:
        server.client.migrate_server(server.id)
    else:
        server.client.resize_server(server.id, flavor)
    server.confirm()


def unshelve(server: nova_hosts.Server, host: nova_hosts.Host) -> None:
    """Shelve a server, and let it come back on a host."""
    server.client.shelve_server(server.id)
    server.wait("SHELVED_OFFLOADED")
    body = {"unshelve": {"host": host.name}}
    server.client.post(f"/servers/{server.id}/action", json=body).raise_for_status()
    server.wait("ACTIVE")


def evacuate(
    cluster: nova_hosts.NovaHosts, server: nova_hosts.Server, host: nova_hosts.Host
) -> None:
    """Have a server built anew on a host; its own one was taken for dead."""
    cluster.client.evacuate_server(server.id, host=host.name)
    server.arrives(host)
    server.wait("ACTIVE", "SHUTOFF")


@contextlib.contextmanager
def crashed(cluster: nova_hosts.NovaHosts, host: nova_hosts.Host) -> Iterator[None]:
    """Let a host lose power, and be taken for dead by Nova, until the block ends."""
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
