# SPDX-License-Identifier: Apache-2.0
"""Special properties of images, flavors and Glance, with real Nova.

``doc/source/admin/limits.rst`` has a row for each.  Few servers cover many properties.

"""

import os
import pathlib
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from tests.fakes import hosts
from tests.fakes import nova_hosts
from tests.lab import runs
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import ini

pytestmark = [
    hosts.needs_fuse,
    hosts.needs_take_over,
    pytest.mark.skipif(not pathlib.Path("/usr/bin/swtpm").exists(), reason="needs swtpm"),
]

KEYS = "castellan.tests.unit.key_manager.mock_key_manager.MockKeyManager"
"""Keeps the secrets of virtual TPMs in the memory of nova-compute."""
OPTIONS: ini.Sections = {
    "DEFAULT": {"force_config_drive": True, "preallocate_images": "space"},
    "key_manager": {"backend": KEYS},
    "libvirt": {"swtpm_enabled": True, "swtpm_user": "root", "swtpm_group": "root"},
}
SECURE = {"hw_firmware_type": "uefi", "os_secure_boot": "required"}
WISHES = {
    "vTPM": {"hw_disk_bus": "scsi", "hw_tpm_version": "2.0", "hw_tpm_model": "tpm-crb"},
    "secure boot": {
        **{"hw_disk_bus": "scsi", "hw_scsi_model": "virtio-scsi", "hw_machine_type": "q35"},
        **SECURE,
    },
    "SATA": {"hw_disk_bus": "sata", "hw_machine_type": "q35"},
    "IDE": {"hw_disk_bus": "ide"},
    "USB": {"hw_disk_bus": "usb"},
}
SHOWN = {
    "vTPM": "devices/tpm/backend[@type='emulator']/encryption",
    "secure boot": "os/loader[@secure='yes']",
    "SATA": "devices/controller[@type='sata']",
    "IDE": "devices/controller[@type='ide']",
    "USB": "devices/controller[@type='usb']",
}
"""The element of libvirt's XML for each property."""
BUILT_S = 2 * nova_hosts.DEADLINE_S
META_DATA = "openstack/latest/meta_data.json"


@pytest.fixture(scope="module")
def cluster(compute_lab: cloud.Cloud) -> Iterator[nova_hosts.NovaHosts]:
    """The two compute hosts with acstor, which allow all of these properties."""
    with nova_hosts.running(compute_lab, more=OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def wishing(cluster: nova_hosts.NovaHosts) -> Iterator[dict[str, nova_hosts.Server]]:
    """A server for each of :data:`WISHES`, with swap and an ephemeral disk; built in parallel."""
    begun = {}
    try:
        for number, (name, facts) in enumerate(WISHES.items()):
            host = cluster.hosts[number % len(cluster.hosts)]
            begun[name] = cluster.begin(cluster.images.new(**facts), host, "bigger")
        yield begun
    finally:
        for server in begun.values():
            server.delete()


def domain(server: nova_hosts.Server) -> ElementTree.Element:
    """Return libvirt's XML of a server."""
    machine = server.host.compute.machine
    return ElementTree.fromstring(machine.virsh("dumpxml", server.id))


def parts_of(server: nova_hosts.Server, name: str) -> dict[str, dict[str, str]]:
    """Return the child elements of a server's disk in libvirt's XML: their attributes by name."""
    for found in domain(server).findall("devices/disk"):
        parts = {part.tag: part.attrib for part in found}
        if parts["source"].get("file") == str(server.disk(name)):
            return {"disk": found.attrib, **parts}
    raise AssertionError(f"{server.id} has no {name}")


def test_server_with_an_encrypted_disk_finds_no_valid_host(
    cluster: nova_hosts.NovaHosts,
) -> None:
    """No host offers encryption to the scheduler, so no server is built without it."""
    wish = {"hw_ephemeral_encryption": "true", "hw_ephemeral_encryption_format": "luks"}
    image_id = cluster.images.new(**wish)
    server = cluster.begin(image_id)
    try:
        assert "No valid host" in server.wait("ERROR").fault["message"]
        assert not any(os.path.lexists(host.base(image_id)) for host in cluster.hosts)
    finally:
        server.delete()


def test_image_deleted_from_its_first_store_is_served_from_the_second(
    cluster: nova_hosts.NovaHosts, tmp_path: pathlib.Path
) -> None:
    host, client = cluster.hosts[1], cluster.images.client
    image_id = cluster.images.new()
    first, second = cluster.images.stored(image_id), tmp_path / "second" / image_id
    second.parent.mkdir()
    stores = {
        "DEFAULT": {"enabled_backends": "fs:file,second:file"},
        "second": {"filesystem_store_datadir": second.parent},
    }
    with cluster.lab.glance.changed(stores):
        client.import_image(client.get_image(image_id), method="copy-image", stores=["second"])
        copied = lambda: "second" in client.get(f"/images/{image_id}").json()["stores"]  # noqa: E731
        runs.wait_for(copied, nova_hosts.DEADLINE_S, "the copy", cluster.lab.glance.log)
        client.delete(f"/stores/fs/{image_id}").raise_for_status()
        assert (first.exists(), second.exists()) == (False, True)
        with cluster.server(image_id, host):
            assert host.is_mirrored(image_id)
            assert host.run("cmp", host.agent.image_path(image_id), second) == ""
            assert cluster.images.downloads(image_id) == 0
        client.delete_image(image_id)


@pytest.mark.nightly
def test_agent_uses_the_glance_of_its_configured_region(
    cluster: nova_hosts.NovaHosts,
) -> None:
    host, identity = cluster.hosts[0], cluster.lab.connect().identity
    glance = identity.find_service("glance")
    other = identity.create_region(id="Another")
    nobody = {"interface": "public", "url": "http://127.0.0.1:9", "region_id": other.id}
    endpoint = identity.create_endpoint(service_id=glance.id, **nobody)
    try:
        nova_hosts.restart_agent(host)
        assert nova_hosts.service_user(cluster.lab)["region_name"] == api.REGION != other.id
        with cluster.server(cluster.images.new(), host) as server:
            assert server.lies_on_mirror()
    finally:
        identity.delete_endpoint(endpoint)
        identity.delete_region(other)


@pytest.mark.nightly
@pytest.mark.parametrize("name", WISHES)
def test_hardware_property_of_an_image_is_applied_on_a_mirror(
    wishing: dict[str, nova_hosts.Server], name: str
) -> None:
    server = wishing[name]
    server.wait("ACTIVE", deadline_s=BUILT_S)
    assert domain(server).find(SHOWN[name]) is not None
    root = parts_of(server, "disk")
    assert root["target"]["bus"] == WISHES[name]["hw_disk_bus"]
    said = [root["driver"].get(word) for word in ("cache", "error_policy", "rerror_policy")]
    assert said == ["writeback", "stop", "stop"]
    assert server.lies_on_mirror()
    for own in ("disk.config", "disk.eph0", "disk.swap"):
        assert "rerror_policy" not in parts_of(server, own)["driver"], "Nova's own, as ever"
    listed = server.host.run("isoinfo", "-R", "-f", "-i", server.disk("disk.config"))
    assert META_DATA in listed
    server.hard_reboot()
    assert server.lies_on_mirror()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "device", "bus"), [("secure boot", "cdrom", "sata"), ("IDE", "disk", "usb")]
)
def test_rescue_disk_uses_a_mirror_on_the_bus_of_its_image(
    cluster: nova_hosts.NovaHosts,
    wishing: dict[str, nova_hosts.Server],
    name: str,
    device: str,
    bus: str,
) -> None:
    """Also when Nova preallocates disks and therefore requests native I/O."""
    server = wishing[name]
    server.wait("ACTIVE", deadline_s=BUILT_S)
    rescue_id = cluster.images.new(hw_rescue_device=device, hw_rescue_bus=bus)
    server.client.rescue_server(server.id, image_ref=rescue_id)
    server.wait("RESCUE")
    shown = parts_of(server, "disk.rescue")
    assert (shown["disk"]["device"], shown["target"]["bus"]) == (device, bus)
    assert server.lies_on_mirror(rescue_id, "disk.rescue")
    server.client.unrescue_server(server.id)
    server.wait("ACTIVE")
    assert server.lies_on_mirror()
