# SPDX-License-Identifier: Apache-2.0
"""The cloud under Tempest's tests: stock Nova, or the same with all of acstor.

The two differ only in acstor, so that acstor is the cause of a different result.
"""

import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence

from tests.lab import agents
from tests.lab import runs
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
# A guest without an operating system ignores shutdown and reboot requests, so Nova's wait is short.
_COMPUTE: ini.Sections = {
    "DEFAULT": {"shutdown_timeout": 1, "default_ephemeral_format": "ext4"},
    "libvirt": {"wait_soft_reboot_seconds": 1},
}


class Files(daemon.Daemon):
    """A web server for images of Glance's web-download import."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__("files", folder)
        self.port = daemon.port_of(folder, "files")
        self.files = folder / "files"

    @property
    def url(self) -> str:
        """The URL of the folder."""
        return f"http://{daemon.LOOPBACK}:{self.port}"

    def configure(self) -> None:
        """Create the folder."""
        self.files.mkdir(exist_ok=True)

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the command line of Python's HTTP server."""
        bound = ["--bind", daemon.LOOPBACK, "--directory", self.files]
        return [sys.executable, "-m", "http.server", *bound, str(self.port)]

    def is_ready(self) -> bool:
        """Return whether it listens."""
        return daemon.is_listening(self.port)


def metrics_url(host: compute.Compute) -> str:
    """Return the metrics URL of a host's agent."""
    return f"http://{host.machine.address}:{_METRICS_PORT}/metrics"


@contextlib.contextmanager
def _stock(lab: cloud.Cloud, files: Files) -> Iterator[None]:
    """Run the cloud with Nova's own qcow2 backend for the block."""
    qcow2 = ini.merged(_COMPUTE, {"libvirt": {"images_type": "qcow2"}})
    with contextlib.ExitStack() as stack:
        stack.enter_context(lab.glance.changed(_glance(files)))
        for host in lab.computes:
            stack.enter_context(host.changed(qcow2))
        yield


@contextlib.contextmanager
def _acstor(lab: cloud.Cloud, files: Files) -> Iterator[None]:
    """Run it with import plug-in, listener, agents and acstor's backend for the block."""
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
    """Prepare a running cloud as one of :data:`WAYS`, for a block.

    :raises errors.Unusable: a service does not start; has the end of its log
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


@contextlib.contextmanager
def started(way: str) -> Iterator[tuple[cloud.Cloud, Files, pathlib.Path]]:
    """Run a new cloud as one of :data:`WAYS` for a block; yield a folder, too.

    :raises errors.Unusable: a service does not start; has the end of its log
    """
    begin = time.monotonic()
    with runs.Run() as made:
        lab = cloud.Cloud(made.folder / "openstack")
        try:
            lab.start_compute_services()
            with set_up(lab, way) as files:
                print(f"acstor: the cloud is up after {time.monotonic() - begin:.0f} s", flush=True)
                yield lab, files, made.folder
        finally:
            lab.stop()
