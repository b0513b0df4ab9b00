# SPDX-License-Identifier: Apache-2.0
"""Volumes of images by a real Cinder with acstor's driver: bytes, copies, deletion, and faults."""

import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_cinder import base_files
from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import cinder
from tests.lab.openstack import cloud
from tests.lab.openstack import daemon
from tests.lab.openstack import installed

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

DRIVER = "acstor_cinder.nfs.MirrorNfsDriver"
DEADLINE_S = 240.0
PROCESSED = "available", "error"


class Volumes:
    """A Cinder with acstor's driver and the stock one, an agent beside it, and images."""

    def __init__(self, lab: cloud.Cloud, agent: agents.Agent, folder: pathlib.Path) -> None:
        self.agent, self.images = agent, nova_hosts.Images(lab, folder / "images")
        own = {"backend_stats_polling_interval": 3}
        self.mirrored = cinder.Backend("mirrored", folder, DRIVER, **own)
        self.stock = cinder.Backend("stock", folder, **own)
        self.cinder = cinder.Cinder(lab, folder, [self.mirrored, self.stock])
        self.cinder.volume.changes = {
            "acstor": {"control_socket": agent.control_socket, "mount_point": agent.mount_point}
        }

    @property
    def client(self) -> Any:
        """The administrator's client of Cinder."""
        return self.cinder.client

    def create(self, **source: Any) -> Any:
        """Create a volume of 1 GiB, and wait until it exists."""
        kind = source.pop("volume_type", self.mirrored.name)
        options = {"size": 1, "name": f"test-{uuid.uuid4()}", "volume_type": kind, **source}
        made = self.wait(self.client.create_volume(**options).id)
        if made.status == "error":
            print(self.cinder.volume.log())
        return made

    def wait(self, volume_id: str, *states: str) -> Any:
        """Wait until a volume has one of these states, and return it."""
        wanted = states or PROCESSED
        is_done = lambda: self.client.get_volume(volume_id).status in wanted  # noqa: E731
        runs.wait_for(is_done, DEADLINE_S, f"the volume's {wanted}", self.cinder.volume.log)
        return self.client.get_volume(volume_id)

    def file(self, volume_id: str) -> pathlib.Path:
        """Return a volume's file."""
        return self.mirrored.folder / f"volume-{volume_id}"

    def base(self, image_id: str) -> pathlib.Path | None:
        """Return the base file of an image on the share, or None."""
        found = self.mirrored.folder.glob(f"acstor-{image_id}-*")
        return next((path for path in found if not path.suffix), None)  # a partial copy has one

    def wait_copied(self, image_id: str) -> None:
        """Wait until an image is on the share."""

        def is_copied() -> bool:
            base = self.base(image_id)
            return base is not None and base.is_file() and not base.is_symlink()

        runs.wait_for(is_copied, DEADLINE_S, "the copy", self.cinder.volume.log)

    def delete(self, volume_id: str) -> None:
        """Delete a volume, and wait until it is gone."""
        self.client.delete_volume(volume_id, ignore_missing=True)
        is_gone = lambda: self.client.find_volume(volume_id, ignore_missing=True) is None  # noqa: E731
        runs.wait_for(is_gone, DEADLINE_S, "the volume's end", self.cinder.volume.log)


@pytest.fixture(scope="module")
def volumes(
    openstack_lab: cloud.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Volumes]:
    if not installed.has_cinder():
        pytest.skip(f"Cinder is not installed: {installed.REMEDY}")
    openstack_lab.start_image_services()
    folder = openstack_lab.folder / "volumes"
    folder.mkdir()
    host = local.LocalHost("volumes", "", local.LOOPBACK, folder)
    agent = agents.Agent(
        host,
        "",
        security="insecure",
        sections={"source_glance": nova_hosts.service_user(openstack_lab)},
        sources="glance",
        peer_listen=f"{local.LOOPBACK}:{daemon.port_of(folder, 'peer')}",
        metrics_listen="",
    )
    with agent:
        agent.wait_ready()
        found = Volumes(openstack_lab, agent, folder)
        try:
            found.cinder.start()
            yield found
        finally:
            found.cinder.stop()


def check_bytes(path: pathlib.Path, image: pathlib.Path | bytes) -> None:
    """Check that a volume's disk begins with an image's bytes, and has zeros after them."""
    expected = image if isinstance(image, bytes) else image.read_bytes()
    raw = path.with_name(f"{path.name}-read.raw")
    try:
        runs.tool(["qemu-img", "convert", "-O", "raw", path, raw])
        with raw.open("rb") as disk:
            assert disk.read(len(expected)) == expected
            assert not any(disk.read(1 << 20))
        assert raw.stat().st_size == 1 << 30
    finally:
        raw.unlink(missing_ok=True)


def test_volume_is_an_overlay_and_outlives_its_image_and_the_agent(volumes: Volumes) -> None:
    image_id = volumes.images.new()
    data = volumes.images.stored(image_id).read_bytes()
    first = volumes.create(image_id=image_id)
    assert (first.status, first.is_bootable) == ("available", True)
    assert volumes.file(first.id).stat().st_size < len(data) / 10
    check_bytes(volumes.file(first.id), data)
    second = volumes.create(image_id=image_id)
    volumes.wait_copied(image_id)
    assert volumes.images.downloads(image_id) == 0, "nobody downloaded it"
    volumes.images.client.delete_image(image_id)
    volumes.agent.stop()
    try:
        for one in (first, second):
            check_bytes(volumes.file(one.id), data)
    finally:
        volumes.agent.start()
        volumes.agent.wait_ready()
    volumes.delete(first.id)
    check_bytes(volumes.file(second.id), data)
    volumes.delete(second.id)
    assert volumes.base(image_id) is None
    assert not list(volumes.mirrored.folder.glob(f"*{image_id}*"))


@pytest.mark.nightly
def test_clones_snapshots_and_larger_disks_keep_the_bytes(volumes: Volumes) -> None:
    image_id = volumes.images.new()
    data = volumes.images.stored(image_id).read_bytes()
    origin = volumes.create(image_id=image_id)
    clone = volumes.create(source_volume_id=origin.id)
    assert clone.status == "available"
    assert not list(volumes.mirrored.folder.glob(f"volume-{clone.id}.*")), "it uses no base"
    check_bytes(volumes.file(clone.id), data)
    snapshot = volumes.client.create_snapshot(volume_id=origin.id, name="test")
    ready = lambda: volumes.client.get_snapshot(snapshot.id).status == "available"  # noqa: E731
    runs.wait_for(ready, DEADLINE_S, "the snapshot", volumes.cinder.volume.log)
    copied = volumes.create(snapshot_id=snapshot.id)
    assert copied.status == "available"
    check_bytes(volumes.file(copied.id), data)
    volumes.client.delete_snapshot(snapshot.id)
    gone = lambda: not list(volumes.client.snapshots())  # noqa: E731
    runs.wait_for(gone, DEADLINE_S, "the snapshot's end", volumes.cinder.volume.log)
    check_bytes(volumes.file(origin.id), data)
    volumes.client.extend_volume(origin.id, 2)
    assert volumes.wait(origin.id).size == 2
    for one in (origin, clone, copied):
        volumes.delete(one.id)


@pytest.mark.nightly
def test_cinder_does_not_copy_an_overlay_without_its_base(volumes: Volumes) -> None:
    image_id = volumes.images.new()
    origin = volumes.create(image_id=image_id)

    def retype(volume_id: str, states: tuple[str, ...]) -> None:
        volumes.client.retype_volume(volume_id, volumes.stock.name, migration_policy="on-demand")
        is_over = lambda: (  # noqa: E731
            (found := volumes.client.get_volume(volume_id)).status == "available"
            and found.migration_status in states
        )
        runs.wait_for(is_over, DEADLINE_S, f"the retype of {volume_id}", volumes.cinder.volume.log)

    retype(origin.id, ("error",))
    assert f"volume {origin.id} shares the base file of its image" in volumes.cinder.volume.log()
    check_bytes(volumes.file(origin.id), volumes.images.stored(image_id))
    clone = volumes.create(source_volume_id=origin.id)
    retype(clone.id, ("success",))
    check_bytes(volumes.stock.folder / f"volume-{clone.id}", volumes.images.stored(image_id))


@pytest.mark.parametrize("fault", ["no-map", "no-agent", "signed"])
def test_cinder_downloads_an_image_that_the_driver_cannot_use(volumes: Volumes, fault: str) -> None:
    facts = {"img_signature": "AA=="} if fault == "signed" else {}
    image_id = volumes.images.add(os.urandom(1 << 20), **facts)
    if fault != "no-map":
        volumes.images.map(image_id)
    if fault == "no-agent":
        volumes.agent.stop()
    try:
        made = volumes.create(image_id=image_id)
    finally:
        if fault == "no-agent":
            volumes.agent.start()
            volumes.agent.wait_ready()
    assert f"image {image_id}: Cinder downloads it: " in volumes.cinder.volume.log()
    if fault == "signed":  # and Cinder finds the signature invalid
        assert made.status == "error"
        return
    assert volumes.images.downloads(image_id) == 1
    assert volumes.base(image_id) is None
    check_bytes(volumes.file(made.id), volumes.images.stored(image_id))


@pytest.mark.nightly
def test_failed_copy_to_the_share_is_retried(volumes: Volumes) -> None:
    image_id = volumes.images.new()
    value = volumes.images.client.get(f"/images/{image_id}").json()["os_hash_value"]
    base = base_files.base_name(image_id, bytes.fromhex(value))
    obstacle = base_files.copy_path(volumes.mirrored.folder, base)
    obstacle.mkdir()
    made = volumes.create(image_id=image_id)
    assert made.status == "available", "a volume does not wait for the copy"
    is_told = lambda: f"{base} is not copied to " in volumes.cinder.volume.log()  # noqa: E731
    runs.wait_for(is_told, DEADLINE_S, "the failure", volumes.cinder.volume.log)
    secret = volumes.mirrored.folder.parent / "secret"
    secret.write_bytes(b"of cinder-volume's host")
    link = volumes.mirrored.folder / base
    link.unlink()
    link.symlink_to(secret)  # as a host with write access to the share could
    obstacle.rmdir()
    volumes.wait_copied(image_id)
    assert link.read_bytes() == volumes.images.stored(image_id).read_bytes()
    check_bytes(volumes.file(made.id), volumes.images.stored(image_id))
