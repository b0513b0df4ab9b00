# SPDX-License-Identifier: Apache-2.0
"""Images of other formats are served if an operator enables the format, and left to Nova otherwise.

Keystone, Glance and RabbitMQ are those of the lab; listener and agent are processes of their own.

"""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.model import ids
from tests.fakes import hosts
from tests.lab import local
from tests.lab import runs
from tests.lab import tiers
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]
CONVERTED, CHUNK_MAP = artefacts.Kind.CONVERTED, artefacts.Kind.CHUNK_MAP
DRIVERS = {"vmdk": "vmdk", "vhd": "vpc", "vhdx": "vhdx", "vdi": "vdi"}
CHUNKS = 64


def image_of(folder: pathlib.Path, disk_format: str, seed: int = 1) -> tuple[bytes, bytes]:
    """Return an image of a format, and its disk as a guest reads it."""
    raw, path, again = folder / "raw", folder / f"image.{disk_format}", folder / "again"
    raw.write_bytes(uploads.some_bytes(chunks=CHUNKS, seed=seed))
    runs.tool(["qemu-img", "convert", "-f", "raw", "-O", DRIVERS[disk_format], raw, path])
    runs.tool(["qemu-img", "convert", "-f", DRIVERS[disk_format], "-O", "raw", path, again])
    return path.read_bytes(), again.read_bytes()


def check(glance: uploads.Images, image_id: str, disk: bytes) -> tuple[str, str]:
    """Check all artefacts of an image; return the ids of its chunk map and its conversion."""
    image = glance.image(image_id)
    found = {kind: glance.image(image.text(kind.pointer)) for kind in (CHUNK_MAP, CONVERTED)}
    for kind, version in (
        (CHUNK_MAP, chunk_map.VERSION),
        (CONVERTED, artefacts.CONVERTED_VERSION),
    ):
        artefacts.check_belongs(image, found[kind], kind, glance.project_id, version)
        assert (found[kind].is_hidden, found[kind].visibility) == (True, "private")
    assert found[CONVERTED].disk_format == "qcow2"
    stored = glance.admin.get(f"/images/{found[CHUNK_MAP].id}/file").content
    as_read = artefacts.as_read(image, found[CONVERTED])
    uploads.check_names(artefacts.parse_chunk_map(as_read, stored), disk, is_keyed=True)
    made = {record["id"] for record in glance.artefacts_of(image_id)}
    assert made == {artefact.id for artefact in found.values()}
    return found[CHUNK_MAP].id, found[CONVERTED].id


def read_whole(glance: uploads.Images, folder: pathlib.Path, image_id: str, size: int) -> bytes:
    """Return an image as a guest reads it on a host with an agent."""
    user = api.credentials(glance.lab.keystone.auth_url, "acstor")
    given: dict[str, Any] = {"sources": "glance", "sections": {"source_glance": user}}
    with local.agent(folder / "host", local.ImageFolder(folder / "none"), **given) as agent:
        agent.wait_ready()
        path = agent.image_path(ids.parse_image_id(image_id))
        with path.open("rb", buffering=0) as guest:
            return b"".join(iter(lambda: guest.read(1 << 20), b""))[:size]


@hosts.needs_fuse
@pytest.mark.parametrize("disk_format", tiers.first_now(DRIVERS))
def test_mirror_of_a_converted_image_equals_its_disk(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path, disk_format: str
) -> None:
    listener = listen(convert_formats=disk_format)
    data, disk = image_of(tmp_path, disk_format)
    image_id = glance.upload(data, disk_format=disk_format)
    glance.wait_state(image_id)
    map_id, made_id = check(glance, image_id, disk)
    assert read_whole(glance, tmp_path, image_id, len(disk)) == disk
    assert list((tmp_path / "state" / "maps").iterdir()) == []
    rows = uploads.manage(listener, "verify", "--bytes", image_id)
    assert (rows[0]["state"], rows[0]["fault"]) == ("ready", "")
    assert uploads.counted(listener)["served"]["images"] == 1
    (tmp_path / "exported").mkdir()
    uploads.manage(listener, "export", "--folder", str(tmp_path / "exported"), image_id)
    names = {path.suffix for path in (tmp_path / "exported").iterdir()}
    assert names == {".qcow2", ".acmap"}
    glance.delete(image_id)
    runs.wait_for(
        lambda: not glance.exists(map_id) and not glance.exists(made_id),
        uploads.DEADLINE_S,
        "the artefacts' end",
        listener.log,
    )


def test_format_outside_convert_formats_is_refused_and_its_artefacts_purged(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    first = listen("first", convert_formats="vmdk,vhdx")
    data, disk = image_of(tmp_path, "vmdk")
    image_id = glance.upload(data, disk_format="vmdk")
    other_id = glance.upload(image_of(tmp_path, "vdi")[0], disk_format="vdi")
    glance.wait_state(image_id)
    check(glance, image_id, disk)
    said = glance.wait_state(other_id, "refused")["acstor_message"]
    assert said.startswith("its disk format is vdi, ") and "convert_formats" in said
    assert glance.artefacts_of(other_id) == []
    first.stop()
    second = listen("second")
    glance.wait_state(image_id, "refused")
    assert CONVERTED.pointer not in glance.record(image_id)
    assert uploads.counted(second)["disk-format:vmdk"]["images"] == 1
    uploads.manage(second, "purge", "--yes")
    assert glance.artefacts() == []


def test_repeated_preparation_replaces_only_a_damaged_conversion(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen(convert_formats="vhdx")
    data, disk = image_of(tmp_path, "vhdx")
    image_id = glance.upload(data, disk_format="vhdx")
    glance.wait_state(image_id)
    _map_id, made_id = check(glance, image_id, disk)
    listener.stop()
    uploads.manage(listener, "prepare", "--force", image_id)
    assert check(glance, image_id, disk)[1] == made_id
    with (glance.lab.glance.images / made_id).open("r+b") as stored:
        stored.seek(glance.record(made_id)["size"] // 2)  # random bytes, which differ
        stored.write(b"damaged" * 100)
    faulty = uploads.manage(listener, "verify", "--bytes", image_id, status=3)
    assert faulty[0]["fault"]
    uploads.manage(listener, "verify", "--bytes", "--repair", image_id)
    assert check(glance, image_id, disk)[1] != made_id
    assert not glance.exists(made_id)


def test_hostile_and_mislabelled_images_are_refused_for_good(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    vmdk, child = image_of(tmp_path, "vmdk")[0], tmp_path / "child"
    backing = ["-F", "vmdk", "-b", tmp_path / "image.vmdk"]
    runs.tool(["qemu-img", "create", "-q", "-f", "vmdk", *backing, child])
    runs.tool(["qemu-img", "create", "-q", "-f", "vdi", tmp_path / "large", "3T"])
    large = glance.upload((tmp_path / "large").read_bytes(), disk_format="vdi")
    linked = glance.upload_unseen(vmdk, child.read_bytes(), disk_format="vmdk")
    broken = glance.upload_unseen(vmdk, vmdk[:700], disk_format="vmdk")
    listen(convert_formats="vmdk,vdi")
    for image_id, why in (
        (large, "its disk is too large"),
        (linked, "it has a backing file"),
        (broken, "its format "),
    ):
        record = glance.wait_state(image_id, "refused")
        assert record["acstor_message"].startswith(why), record["acstor_message"]
        assert record["acstor_retry"] == "1 never"
    assert glance.artefacts() == []
    assert list((tmp_path / "state" / "maps").iterdir()) == []


def test_conversion_of_a_killed_listener_is_done_by_the_next_one(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    data, disk = image_of(tmp_path, "vhdx")
    first = listen("first", convert_formats="vhdx")
    image_id = glance.upload(data, disk_format="vhdx")
    runs.wait_for(
        lambda: f"image {image_id}: preparing" in first.log(),
        uploads.DEADLINE_S,
        "its begin",
        first.log,
    )
    first.kill()
    listen("second", convert_formats="vhdx")
    glance.wait_state(image_id)
    check(glance, image_id, disk)
