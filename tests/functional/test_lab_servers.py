# SPDX-License-Identifier: Apache-2.0
"""Stock Nova on the lab's two compute hosts: the reference for acstor's own backend."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import nova_hosts
from tests.lab import runs
from tests.lab.openstack import cloud

NEWEST = "2.96"
DEADLINE_S = 180


@pytest.fixture
def image_id(nova: cloud.Cloud) -> Iterator[str]:
    images = nova.connect().image
    image = images.create_image(
        name=f"image-{uuid.uuid4()}",
        data=bytes(nova_hosts.IMAGE_BYTES),
        disk_format="raw",
        container_format="bare",
    )
    yield image.id
    images.delete_image(image.id)


@contextlib.contextmanager
def server(lab: cloud.Cloud, image_id: str, host: str) -> Iterator[Any]:
    compute = lab.connect().compute
    compute.default_microversion = NEWEST
    made = compute.create_server(
        name=f"server-{uuid.uuid4()}",
        image_id=image_id,
        flavor_id=compute.find_flavor("small").id,
        networks="none",
        host=host,
    )
    try:
        yield compute.wait_for_server(made, wait=DEADLINE_S, interval=0.3)
    finally:
        compute.delete_server(made)
        compute.wait_for_delete(made, wait=DEADLINE_S, interval=0.3)


def test_server_runs_on_the_requested_host_and_is_deleted_completely(
    nova: cloud.Cloud, image_id: str
) -> None:
    for compute in nova.computes:
        with server(nova, image_id, compute.host) as made:
            assert made.hypervisor_hostname == compute.host
            domains = compute.machine.virsh("list", "--uuid").split()
            assert domains == [made.id]
            assert (compute.instances / made.id / "disk").is_file()
        assert compute.machine.virsh("list", "--all", "--uuid").split() == []
        assert not (compute.instances / made.id).exists()


def test_crashed_host_restarts_with_its_guest_stopped(nova: cloud.Cloud, image_id: str) -> None:
    second = nova.computes[1]
    with server(nova, image_id, second.host) as made:
        guest = int(second.machine.inside.run(["pgrep", "--full", f"uuid {made.id}"]))
        second.crash()
        assert second.machine.pid is None
        assert runs.start_ticks(guest) is None
        nova.start_compute_services()
        assert second.machine.virsh("list", "--all", "--uuid").split() == [made.id]
