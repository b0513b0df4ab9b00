# SPDX-License-Identifier: Apache-2.0
"""Export from a real Glance, for hosts whose agents cannot read its store."""

import contextlib
import functools
import http.server
import pathlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.model import ids
from acstor_glance.boot import boot_builder
from acstor_glance.boot import guest_disk
from acstor_glance.client import glance_client
from acstor_glance.cmd import manage as manage_command
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import glance as glance_service
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]


def export(
    listener: acstor_glance.Listener, folder: pathlib.Path, *images: str, status: int = 0
) -> dict[str, str]:
    """Run the command, and return the outcome of each image."""
    rows = uploads.manage(listener, "export", "--folder", str(folder), *images, status=status)
    return {row["image"]: row["outcome"] for row in rows}


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(image_id: str, *endings: str) -> list[str]:
    return sorted(f"{image_id}{ending}" for ending in endings)


def publish_boot_image(
    listener: acstor_glance.Listener, image_id: str, exported: pathlib.Path
) -> bytes:
    """Make and publish a boot image from an exported image, and return its bytes."""
    images = glance_client.connect(manage_command.load_conf(str(listener.conf_file)))
    stem = exported / image_id
    image_map = chunk_map.ChunkMap.parse(stem.with_suffix(".acmap").read_bytes(), "the map")
    made = listener.folder / "made.acboot"
    with stem.with_suffix(".raw").open("rb") as raw:
        disk = guest_disk.GuestDisk(raw.fileno(), image_map)
        trace = boot_image.ProfiledTrace((2, 0, 9))
        boot_builder.write_boot_image(disk, image_map, trace, made, revision=1)
    with made.open("rb") as file:
        images.publish_artefact(artefacts.Kind.BOOT_IMAGE, images.get_image(image_id), file)
    return made.read_bytes()


@contextlib.contextmanager
def agent(
    glance: uploads.Images, folder: pathlib.Path, exported: local.ImageFolder, sources: str
) -> Iterator[agents.Agent]:
    """Run an agent that reads Glance and the folder of exports."""
    sections = {"source_glance": api.credentials(glance.lab.keystone.auth_url, "acstor")}
    given: dict[str, Any] = {"sources": sources, "sections": sections}
    with local.agent(folder, exported, **given) as running:
        running.wait_ready()
        yield running


@hosts.needs_fuse
def test_export_writes_files_for_agents_and_removes_unserved_images(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen()
    data, other = uploads.some_bytes(seed=60), uploads.some_bytes(seed=61)
    image_id, other_id = glance.upload(data), glance.upload(other)
    refused_id = glance.upload(uploads.vdi(tmp_path), disk_format="vdi")
    for made, state in ((image_id, "ready"), (other_id, "ready"), (refused_id, "refused")):
        glance.wait_state(made, state)
    exported = local.ImageFolder(tmp_path / "exported")
    said = export(listener, exported.folder)
    assert said == {image_id: "exported", other_id: "exported", refused_id: "unprepared"}
    both = [*files_of(image_id, ".acmap", ".raw"), *files_of(other_id, ".acmap", ".raw")]
    assert names(exported.folder) == sorted(both)
    assert exported.path(ids.parse_image_id(image_id)).read_bytes() == data

    made = publish_boot_image(listener, image_id, exported.folder)
    assert export(listener, exported.folder, image_id, other_id) == {
        image_id: "exported",
        other_id: "present",
    }
    stored = exported.boot_image_path(ids.parse_image_id(image_id)).read_bytes()
    assert stored == made
    map_bytes = (exported.folder / f"{image_id}.acmap").read_bytes()
    keys = chunk_map.ChunkMap.parse(map_bytes, "the chunk map").scope_keys
    assert set(boot_frames.check_boot_image([stored], "the boot image", keys).trace) == {2, 0, 9}
    with agent(glance, tmp_path / "host", exported, "file") as reading:
        assert reading.image_path(ids.parse_image_id(image_id)).read_bytes() == data

    glance.admin.deactivate_image(other_id)
    assert export(listener, exported.folder)[other_id] == "removed"
    assert names(exported.folder) == files_of(image_id, ".acboot", ".acmap", ".raw")


@hosts.needs_fuse
def test_exported_qcow2_image_reads_as_its_disk(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen()
    data = uploads.some_bytes(seed=66)
    stored = uploads.qcow2(tmp_path, data)
    image_id = glance.upload(stored, disk_format="qcow2")
    glance.wait_state(image_id)
    exported = local.ImageFolder(tmp_path / "exported")
    assert export(listener, exported.folder) == {image_id: "exported"}
    assert names(exported.folder) == files_of(image_id, ".acmap", ".qcow2")
    assert (exported.folder / f"{image_id}.qcow2").read_bytes() == stored
    with agent(glance, tmp_path / "host", exported, "file") as reading:
        assert reading.image_path(ids.parse_image_id(image_id)).read_bytes() == data


@hosts.needs_fuse
def test_agent_reads_the_file_store_and_serves_only_active_images(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listen()
    data, hidden = uploads.some_bytes(seed=64), uploads.some_bytes(seed=65)
    image_id, hidden_id = glance.upload(data), glance.upload(hidden)
    for made in (image_id, hidden_id):
        glance.wait_state(made)
    glance.admin.deactivate_image(hidden_id)
    sections = {
        "source_glance": api.credentials(glance.lab.keystone.auth_url, "acstor"),
        "source_file": {"folder": glance.lab.glance.images},
    }
    nothing = local.ImageFolder(tmp_path / "nothing")
    given: dict[str, Any] = {"sources": "file,glance", "sections": sections}
    with local.agent(tmp_path / "host", nothing, **given) as running:
        running.wait_ready()
        assert running.image_path(ids.parse_image_id(image_id)).read_bytes() == data
        with pytest.raises(OSError):
            running.image_path(ids.parse_image_id(hidden_id)).read_bytes()
    asked = [
        line
        for line in glance.lab.glance.log().splitlines()
        if f"GET /v2/images/{image_id}/file" in line and " 206" in line
    ]
    assert asked == []


def test_image_with_a_wrong_hash_is_not_exported_and_blocks_removals(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen()
    data = uploads.some_bytes(seed=62)
    damaged_id, gone_id = glance.upload(data), glance.upload(data)
    for image_id in (damaged_id, gone_id):
        glance.wait_state(image_id)
    folder = tmp_path / "exported"
    missing = uploads.manage(listener, "export", "--folder", str(folder), damaged_id, status=3)
    assert "No such file or directory" in missing[0]["message"]
    folder.mkdir()
    assert export(listener, folder, gone_id) == {gone_id: "exported"}
    glance.delete(gone_id)
    stored = glance.lab.glance.images / damaged_id
    stored.write_bytes(bytes(len(data)))
    [row] = uploads.manage(listener, "export", "--folder", str(folder), status=3)
    assert (row["image"], row["outcome"]) == (damaged_id, "failed")
    assert "the sha512 of its data differs" in row["message"]
    assert names(folder) == files_of(gone_id, ".acmap", ".raw")
    stored.write_bytes(data)
    assert export(listener, folder) == {damaged_id: "exported", gone_id: "removed"}


@contextlib.contextmanager
def web_server(folder: pathlib.Path) -> Iterator[int]:
    """Serve the files of a folder; yield the port."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def located(glance: uploads.Images, url: str) -> Iterator[ids.ImageId]:
    """Make an image whose bytes stay behind ``url`` and are hashed by Glance.

    The block deletes it: without its store Glance cannot delete it any more.

    """
    image_id: str = glance.create().id
    answer = glance.tenant.post(f"/images/{image_id}/locations", json={"url": url})
    assert answer.status_code == 202, answer.text
    try:
        glance.wait(
            image_id,
            lambda record: record["status"] == "active" and bool(record.get("os_hash_value")),
            "the new location",
        )
        yield ids.parse_image_id(image_id)
    finally:
        glance.delete(image_id)


def copy_to_file_store(glance: uploads.Images, image_id: str) -> None:
    body = {"method": {"name": "copy-image"}, "stores": ["fs"]}
    answer = glance.admin.post(f"/images/{image_id}/import", json=body)
    assert answer.status_code == 202, answer.text
    glance.wait(
        image_id,
        lambda record: "fs" in record["stores"].split(",") and glance_service.is_imported(record),
        "the copy",
    )


@hosts.needs_fuse
def test_image_in_a_store_without_ranges_is_read_whole_or_exported(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "www").mkdir()
    data = uploads.some_bytes(seed=63)
    (tmp_path / "www/disk").write_bytes(data)
    exported = local.ImageFolder(tmp_path / "exported")
    with web_server(tmp_path / "www") as port:
        changes = {
            "DEFAULT": {"enabled_backends": "fs:file,web:http"},
            "fs": {"weight": 10},
            "import_filtering_opts": {
                "allowed_hosts": "[127.0.0.1]",
                "allowed_ports": f"[{port}]",
            },
        }
        url = f"http://127.0.0.1:{port}/disk"
        with glance.lab.glance.changed(changes), located(glance, url) as image_id:
            listener = listen()
            glance.wait_state(image_id)
            glance.check_chunk_map(image_id, data)
            with agent(glance, tmp_path / "h1", exported, "glance") as streaming:
                assert streaming.image_path(image_id).read_bytes() == data
                assert "downloading all" in streaming.log()
            assert export(listener, exported.folder) == {image_id: "exported"}
            with agent(glance, tmp_path / "h2", exported, "glance,file") as reading:
                assert reading.image_path(image_id).read_bytes() == data
            copy_to_file_store(glance, image_id)
            with agent(glance, tmp_path / "h3", exported, "glance") as reading:
                assert reading.image_path(image_id).read_bytes() == data
