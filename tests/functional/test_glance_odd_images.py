# SPDX-License-Identifier: Apache-2.0
"""Unusual images that a real Glance takes: empty, huge, in any format, changing during a read.

Served images get a valid chunk map; all others record why they are refused.

"""

import hashlib
import pathlib
import re
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
from openstack import exceptions

from acstor_common.formats import chunk_map
from acstor_common.image import artefacts
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import map_spool
from acstor_glance.prepare import prehash
from tests.fakes import hosts
from tests.lab import local
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import glance as glance_service
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]
HUGE_BYTES = 1 << 40
LARGE_BYTES = 4 << 30
OTHER_FORMATS = {
    "vmdk": ["-f", "vmdk"],
    "vhd": ["-f", "vpc"],
    "vhdx": ["-f", "vhdx"],
    "vdi": ["-f", "vdi"],
    "ploop": ["-f", "parallels"],
}
"""Disk formats of Glance, and how qemu-img makes an image of each."""


def put_nothing(glance: uploads.Images, image_id: str, where: str) -> None:
    """Upload zero bytes; the SDK treats them as no upload."""
    octets = {"Content-Type": "application/octet-stream"}
    answer = glance.tenant.put(f"/images/{image_id}/{where}", data=b"", headers=octets)
    assert answer.status_code == 204, answer.text


def test_unsupported_disk_format_is_refused_by_its_name(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listen()
    image_of = {}
    for disk_format, options in OTHER_FORMATS.items():
        path = tmp_path / disk_format
        runs.tool(["qemu-img", "create", "-q", *options, path, "8M"])
        image_of[disk_format] = glance.upload(path.read_bytes(), disk_format=disk_format)
    (tmp_path / "folder").mkdir()
    runs.tool(["genisoimage", "-quiet", "-o", tmp_path / "iso", tmp_path / "folder"])
    image_of["iso"] = glance.upload((tmp_path / "iso").read_bytes(), disk_format="iso")
    for name in ("ami", "ari", "aki"):
        data = uploads.some_bytes(chunks=8)
        image_of[name] = glance.upload(data, disk_format=name, container_format=name)
    for disk_format, image_id in image_of.items():
        said = glance.wait_state(image_id, "refused")["acstor_message"]
        assert said.startswith(f"its disk format is {disk_format}, and only raw and qcow2 images")
    boxed = glance.upload(uploads.some_bytes(chunks=8), container_format="ova")
    assert "container format is ova" in glance.wait_state(boxed, "refused")["acstor_message"]
    huge = tmp_path / "huge"
    runs.tool(["qemu-img", "create", "-q", "-f", "qcow2", huge, str(HUGE_BYTES)])
    misnamed = glance.upload(huge.read_bytes())
    assert "its format is qcow2" in glance.wait_state(misnamed, "refused")["acstor_message"]
    assert glance.artefacts() == []


def test_image_that_nova_inspection_refuses_is_not_served(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    """Glance 33 refuses subclusters, but an older one may have stored them."""
    data = uploads.some_bytes(seed=73)
    with_subclusters = uploads.qcow2(tmp_path, data, "-o", "extended_l2=on")
    with pytest.raises(exceptions.HttpException, match="415"):
        glance.upload(with_subclusters, disk_format="qcow2")
    image_id = glance.upload(uploads.qcow2(tmp_path, data), disk_format="qcow2")
    (glance.lab.glance.images / image_id).write_bytes(with_subclusters)
    change = f"UPDATE images SET size = {len(with_subclusters)} WHERE id = '{image_id}'"
    glance.lab.mariadb.execute(change, database="glance")
    hash_anew(glance, image_id)
    listen()
    record = glance.wait_state(image_id, "refused")
    assert "incompatible features that are not known" in record["acstor_message"]
    assert record["acstor_retry"] == "1 never"
    assert glance.artefacts() == []


def grow(glance: uploads.Images, image_id: str, size_bytes: int) -> None:
    """Extend a stored image by a hole: an upload of this size would take too long."""
    with (glance.lab.glance.images / image_id).open("r+b") as stored:
        stored.truncate(size_bytes)
    change = f"UPDATE images SET size = {size_bytes} WHERE id = '{image_id}'"
    glance.lab.mariadb.execute(change, database="glance")


def hash_anew(glance: uploads.Images, image_id: str) -> None:
    """Let Glance store the hash of the file's present content."""
    with (glance.lab.glance.images / image_id).open("rb") as stored:
        value = hashlib.file_digest(stored, "sha512").hexdigest()
    change = f"UPDATE images SET os_hash_value = '{value}' WHERE id = '{image_id}'"
    glance.lab.mariadb.execute(change, database="glance")


@hosts.needs_fuse
@pytest.mark.nightly
def test_sparse_image_of_a_tebibyte_is_hashed_and_read_to_its_end(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    data = uploads.some_bytes(seed=70)
    image_id = ids.parse_image_id(glance.upload(data))
    grow(glance, image_id, HUGE_BYTES)
    end = b"the end of it".rjust(512, b".")
    with (glance.lab.glance.images / image_id).open("r+b") as stored:
        stored.seek(HUGE_BYTES - len(end))
        stored.write(end)
    # Glance would hash it for half an hour, so its map is published as the import plugin does.
    chunk_bytes = geometry.MAX_CHUNK_BYTES
    waiting = map_spool.MapSpool(tmp_path / "state").map_path(image_id)
    prehash.prehash(glance.lab.glance.images / image_id, waiting, image_id, chunk_bytes=chunk_bytes)
    listen(constants={tuned.SERVICE_CHUNK_BYTES: chunk_bytes}, dedup_scope="cloud")
    record = glance.wait_state(image_id)
    artefact_id = record[artefacts.Kind.CHUNK_MAP.pointer]
    raw = glance.admin.get(f"/images/{artefact_id}/file").content
    found = chunk_map.ChunkMap.parse(raw, "m", expected_stored_bytes=HUGE_BYTES)
    assert sum(not found.is_zero(number) for number in range(len(found))) == 2
    assert found.cid_of(0) == ids.cid_of(data.ljust(chunk_bytes, b"\0"))
    assert found.cid_of(len(found) - 1) == ids.cid_of(end.rjust(chunk_bytes, b"\0"))
    user = api.credentials(glance.lab.keystone.auth_url, "acstor")
    given = {"sources": "glance", "sections": {"source_glance": user}}
    with local.agent(tmp_path / "host", local.ImageFolder(tmp_path / "none"), **given) as agent:
        agent.wait_ready()
        with agent.image_path(image_id).open("rb", buffering=0) as guest:
            assert guest.read(len(data)) == data
            guest.seek(HUGE_BYTES // 2)
            assert guest.read(512) == bytes(512)
            guest.seek(-len(end), 2)
            assert (guest.read(), guest.tell()) == (end, HUGE_BYTES)


RECORD_OF_ZEROS = 36
"""Bytes of a run's record in the log."""


def percents(listener: acstor_glance.Listener, image_id: str) -> list[int]:
    """Return the progress that a listener logged for the hash of an image, in order."""
    said = re.findall(rf"image {image_id}: (\d+) % hashed", listener.log())
    return [int(percent) for percent in said]


@pytest.mark.nightly
def test_next_listener_resumes_the_hashing_of_a_killed_one(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    image_id = glance.upload(uploads.some_bytes(seed=73))
    grow(glance, image_id, LARGE_BYTES)
    hash_anew(glance, image_id)
    options = {"file_store_dirs": glance.lab.glance.images}
    first = listen("first", **options)
    runs.wait_for(
        lambda: max(percents(first, image_id), default=0) >= 50,
        uploads.DEADLINE_S,
        "half of the hashing",
        first.log,
    )
    first.kill()
    assert max(percents(first, image_id)) < 100
    assert glance.artefacts() == []
    (kept,) = (tmp_path / "state" / "maps").glob("*.part")
    records = 0.4 * LARGE_BYTES // prehash.BUFFER_SIZES.record
    assert kept.stat().st_size >= records * RECORD_OF_ZEROS
    listen("second", **options)
    record = glance.wait_state(image_id)
    assert not kept.exists()
    raw = glance.admin.get(f"/images/{record[artefacts.Kind.CHUNK_MAP.pointer]}/file").content
    found = chunk_map.ChunkMap.parse(raw, "m", expected_stored_bytes=LARGE_BYTES)
    assert sum(not found.is_zero(number) for number in range(len(found))) == 17


def keep_writing(path: pathlib.Path, is_over: threading.Event) -> None:
    """Rewrite a staged file repeatedly until it is deleted or ``is_over``."""
    while not is_over.is_set() and path.exists():
        with path.open("r+b") as staged:
            staged.seek(10 * uploads.CHUNK)
            staged.write(b"other bytes")
        time.sleep(0.001)


def test_stored_file_that_differs_from_the_hash_is_refused(
    glance: uploads.Images, listen: Listen
) -> None:
    data = uploads.some_bytes(seed=71)
    image_id = glance.upload(data)
    with (glance.lab.glance.images / image_id).open("r+b") as stored:
        stored.seek(uploads.CHUNK + 5)
        stored.write(bytes([data[uploads.CHUNK + 5] ^ 1]))
    listener = listen(file_store_dirs=glance.lab.glance.images)
    said = glance.wait_state(image_id, "failed")["acstor_message"]
    assert "the sha512 of its data differs from that in Glance" in said
    assert glance.artefacts_of(image_id) == []
    assert "the sha512 of its data differs" in listener.log()


# The last tests of the module: from here on Glance writes sparse files, and then prepares
# imported images.


@pytest.fixture(scope="module")
def thin(image_services: cloud.Cloud) -> Iterator[None]:
    """Let Glance write sparse files until the module ends."""
    with image_services.glance.changed({"fs": {"filesystem_thin_provisioning": True}}):
        yield


@pytest.mark.parametrize("is_in_file_store", [False, True], ids=["api", "file-store"])
def test_sparse_image_gets_its_chunk_map_from_file_or_download(
    thin: None, glance: uploads.Images, listen: Listen, *, is_in_file_store: bool
) -> None:
    data = bytearray(uploads.some_bytes(chunks=1024, seed=72))
    data[8 * uploads.CHUNK : 1000 * uploads.CHUNK] = bytes(992 * uploads.CHUNK)
    options = {"file_store_dirs": glance.lab.glance.images} if is_in_file_store else {}
    listener = listen(**options)
    image_id = glance.upload(bytes(data))
    glance.wait_state(image_id)
    stored = (glance.lab.glance.images / image_id).stat()
    assert stored.st_blocks * 512 < len(data) // 4
    glance.check_chunk_map(image_id, bytes(data))
    assert uploads.metric(listener, "acstor_glance_hashed_bytes_total") == len(data)


def is_empty(record: dict[str, Any]) -> bool:
    """Whether the listener refused it; the import plugin said so before, in other words."""
    return record.get("acstor_message") == "it is empty"


def test_empty_image_is_refused_after_upload_and_import(
    importing: pathlib.Path, glance: uploads.Images, listen: Listen
) -> None:
    listener = listen()
    uploaded_id = glance.create().id
    put_nothing(glance, uploaded_id, "file")
    imported = glance.create()
    put_nothing(glance, imported.id, "stage")
    glance.tenant.import_image(imported)
    glance.wait(imported.id, glance_service.is_imported, "the import")
    for image_id in (uploaded_id, imported.id):
        record = glance.wait(image_id, is_empty, "its refusal by the listener")
        assert (record["status"], record["size"]) == ("active", 0)
        assert record["acstor_state"] == "refused"
    assert glance.artefacts() == []
    listener.stop()
    rows = uploads.manage(listener, "verify", uploaded_id, imported.id)
    assert {(row["state"], row["fault"]) for row in rows} == {("refused", "")}


def test_staged_file_that_changes_is_hashed_by_the_listener_once_stored(
    importing: pathlib.Path, glance: uploads.Images, listen: Listen
) -> None:
    image = glance.create()
    is_over = threading.Event()
    glance.tenant.stage_image(image, data=uploads.some_bytes(chunks=512, seed=71))
    staged = glance.lab.glance.data / "staging" / image.id
    with uploads.threaded(lambda: keep_writing(staged, is_over)):
        try:
            glance.tenant.import_image(image)
            glance.wait_state(image.id, "failed")
        finally:
            is_over.set()
    record = glance.wait(image.id, glance_service.is_imported, "the import")
    assert "changed while it was read" in record["acstor_message"]
    assert glance.artefacts() == []
    listen()
    glance.wait_state(image.id)
    stored = (glance.lab.glance.images / image.id).read_bytes()
    assert b"other bytes" in stored
    glance.check_chunk_map(image.id, stored)
