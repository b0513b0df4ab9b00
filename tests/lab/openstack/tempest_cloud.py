# SPDX-License-Identifier: Apache-2.0
"""The cloud that Tempest tests: stock Nova, or the same with all of acstor.

The rule: the two differ by acstor alone, so that a test that passes in one and fails in the other
says something about acstor.
"""

import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator
from collections.abc import Sequence

from tests.lab import agents
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import compute
from tests.lab.openstack import daemon
from tests.lab.openstack import ini

FLAVORS = {"tempest": 64, "tempest-alt": 96}  #: name and memory in MiB; a disk of 1 GiB
FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "SameHostFilter",
    "DifferentHostFilter",
)
_METRICS_PORT = 9464
# A guest without an operating system hears neither that it should shut down nor that it should
# reboot, so nobody waits long for it.
_COMPUTE: ini.Sections = {
    "DEFAULT": {"shutdown_timeout": 1, "default_ephemeral_format": "ext4"},
    "libvirt": {"wait_soft_reboot_seconds": 1},
}


class Files(daemon.Daemon):
    """A web server for the images that Glance is told to fetch by itself."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("files", folder)
        self.port = daemon.port_of(folder, "files")
        self.files = folder / "files"

    @property
    def url(self) -> str:
        """Where the folder is."""
        return f"http://{daemon.LOOPBACK}:{self.port}"

    def configure(self) -> None:
        """Make the folder."""
        self.files.mkdir(exist_ok=True)

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the server of Python's library."""
        bound = ["--bind", daemon.LOOPBACK, "--directory", self.files]
        return [sys.executable, "-m", "http.server", *bound, str(self.port)]

    def is_ready(self) -> bool:
        """Say whether it listens."""
        return daemon.is_listening(self.port)


def metrics_url(host: compute.Compute) -> str:
    """Return where the agent of a host shows its counters."""
    return f"http://{host.machine.address}:{_METRICS_PORT}/metrics"


@contextlib.contextmanager
def _stock(lab: cloud.Cloud, files: Files) -> Iterator[None]:
    """Let the cloud run with Nova's own qcow2 backend until the block ends."""
    qcow2 = ini.merged(_COMPUTE, {"libvirt": {"images_type": "qcow2"}})
    with contextlib.ExitStack() as stack:
        stack.enter_context(lab.glance.changed(_glance(files)))
        for host in lab.computes:
            stack.enter_context(host.changed(qcow2))
        yield


@contextlib.contextmanager
def _acstor(lab: cloud.Cloud, files: Files) -> Iterator[None]:
    """Let it run with the import plugin, the listener, an agent on each host, and the backend."""
    plugin = acstor_glance.plugin_sections(lab, lab.folder / "acstor-plugin")
    hidden = {"DEFAULT": acstor_glance.PROTECTIONS}
    listener = acstor_glance.Listener("acstor-listener", lab, lab.folder / "acstor-listener")
    peer_port = daemon.port_of(lab.folder, "acstor-peers")
    ring_file = _write_ring(lab, peer_port)
    signs_in = api.credentials(lab.keystone.auth_url, "acstor")
    with contextlib.ExitStack() as stack:
        stack.enter_context(lab.glance.changed(ini.merged(_glance(files), plugin, hidden)))
        listener.start()
        stack.callback(listener.stop)
        listener.wait_ready()
        for host in lab.computes:
            agent = stack.enter_context(
                host.agent(
                    sections={"source_glance": signs_in},
                    ring_file=ring_file,
                    sources="glance",
                    peer_listen=f"{host.machine.address}:{peer_port}",
                )
            )
            stack.enter_context(host.changed(ini.merged(_COMPUTE, compute.acstor_options(agent))))
        yield


def _glance(files: Files) -> ini.Sections:
    let_in = {"allowed_hosts": f"[{daemon.LOOPBACK}]", "allowed_ports": f"[{files.port}]"}
    return {"import_filtering_opts": let_in}


def _write_ring(lab: cloud.Cloud, port: int) -> pathlib.Path:
    entries = [
        {"host": host.host, "address": f"{host.machine.address}:{port}", "vnodes": agents.VNODES}
        for host in lab.computes
    ]
    path = lab.folder / "ring.json"
    path.write_text(json.dumps({"version": 1, "epoch": 1, "hosts": entries}))
    return path


WAYS = {"stock": _stock, "acstor": _acstor}


@contextlib.contextmanager
def set_up(lab: cloud.Cloud, way: str) -> Iterator[Files]:
    """Let a cloud that runs be one of :data:`WAYS` and have what Tempest needs, for a block.

    :raises errors.Unusable: a service does not start; shows the end of its log
    """
    client = lab.connect().compute
    for name, megabytes in FLAVORS.items():
        if not client.find_flavor(name, ignore_missing=True):
            client.create_flavor(name=name, ram=megabytes, vcpus=1, disk=1)
    filters = {"filter_scheduler": {"enabled_filters": ",".join(FILTERS)}}
    files = Files(lab.folder)
    files.start()
    try:
        files.wait_ready()
        with lab.nova.scheduler.changed(filters), WAYS[way](lab, files):
            yield files
    finally:
        files.stop()
