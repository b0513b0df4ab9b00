# SPDX-License-Identifier: Apache-2.0
"""A cloud with two compute hosts: the first uses acstor, the second is stock Nova."""

import contextlib
import pathlib
from collections.abc import Iterator

from acstor_common.model import geometry
from evaluation.bench import harness
from tests.fakes import nova_hosts
from tests.lab import guest_files
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.lab.openstack import installed

DEADLINE_S = 1200.0
FLAVOR = "bench"
TRACE_IDLE_S = 20.0  # GRUB waits 5 s for input on the console
LOGIN = "login: "


def check() -> None:
    """Check that Nova is installed.

    :raises harness.CannotRun: it is not
    """
    if not installed.is_ready():
        raise harness.CannotRun(f"the services of OpenStack are not installed: {installed.REMEDY}")


@contextlib.contextmanager
def started(folder: pathlib.Path) -> Iterator[cloud.Cloud]:
    """Run a cloud with the services for servers, for the block."""
    lab = cloud.Cloud(folder)
    try:
        lab.start_compute_services()
        yield lab
    finally:
        lab.stop()


@contextlib.contextmanager
def running(
    lab: cloud.Cloud,
    disk_gib: int,
    glance_url: str | None = None,
    gateway_url: str | None = None,
    own: ini.Sections | None = None,
) -> Iterator[nova_hosts.NovaHosts]:
    """Run both hosts for the block.

    :param disk_gib: the size of their servers' disks
    :param glance_url: Glance's URL for both hosts and the agent; None: its own
    :param gateway_url: the gateway's URL for the agent; None: it uses only Glance
    :param own: further options of the first host's nova.conf
    """
    images = nova_hosts.Images(lab, lab.folder / "acstor-glance")
    first, second = lab.computes
    there: ini.Sections = {"DEFAULT": {"debug": True}}
    source = nova_hosts.service_user(lab)
    if glance_url:
        there = {**there, "glance": {"api_servers": glance_url}}
        source = {**source, "endpoint_override": glance_url}
    sections = {"source_glance": source}
    if gateway_url:
        sections["source_gateway"] = {"url": gateway_url}
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(
            first.agent(
                sections=sections,
                sources="glance,gateway" if gateway_url else "glance",
                constants={tuned.RECORD_IDLE_S: TRACE_IDLE_S},
                cache_limit_bytes=4 * 1024 * geometry.MIB,
            )
        )
        options = ini.merged(nova_hosts.nova_options(agent), there, own or {})
        stack.enter_context(first.changed(options))
        stack.enter_context(second.changed(there))
        for compute in (first, second):
            nova_hosts.wait_started(compute)
        hosts = [nova_hosts.Host(compute, agent) for compute in (first, second)]
        both = nova_hosts.NovaHosts(lab, hosts, images)
        flavor = both.client.create_flavor(name=FLAVOR, ram=384, vcpus=1, disk=disk_gib)
        try:
            yield both
        finally:
            both.client.delete_flavor(flavor)


@contextlib.contextmanager
def servers(
    both: nova_hosts.NovaHosts, raw: pathlib.Path, qcow2: pathlib.Path
) -> Iterator[dict[str, nova_hosts.Server]]:
    """Run a server on each host for the block; yield both at their login prompts.

    :param raw: the disk as acstor's image, with a chunk map
    :param qcow2: the same disk as stock Nova's image
    """
    with raw.open("rb") as plain, qcow2.open("rb") as packed:
        image_ids = both.images.map(both.images.add(plain)), both.images.add(packed, "qcow2")
    with contextlib.ExitStack() as stack:
        found = {
            way: stack.enter_context(both.server(image_id, host, FLAVOR, DEADLINE_S))
            for way, image_id, host in zip(("acstor", "stock"), image_ids, both.hosts, strict=True)
        }
        for server in found.values():
            wait_login(server)
        yield found


def wait_login(server: nova_hosts.Server) -> None:
    """Wait for the login prompt of a server's guest."""

    def has_login() -> bool:
        return LOGIN in server.console().partition(guest_files.MARKER)[2]

    runs.wait_for(has_login, DEADLINE_S, "the login prompt", server.console)
