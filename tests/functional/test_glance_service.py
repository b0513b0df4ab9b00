# SPDX-License-Identifier: Apache-2.0
"""Images uploaded to a real Glance by any method get chunk maps bound to them.

Keystone, Glance and RabbitMQ are those of the lab; the listener is a process of its own.

"""

import os
import pathlib
import pty
import subprocess
import sys
import termios
import uuid
from collections.abc import Callable

import pytest
import requests

from acstor_common.image import artefacts
from tests.lab import runs
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]


def test_uploaded_image_gets_a_chunk_map_that_is_deleted_with_it(
    glance: uploads.Images, listen: Listen
) -> None:
    listener = listen()
    data = uploads.some_bytes()
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    artefact = glance.check_chunk_map(image_id, data)
    hidden_from_tenants = [image.id for image in glance.tenant.images(os_hidden=True)]
    assert artefact["id"] not in hidden_from_tenants
    assert uploads.metric(listener, 'acstor_glance_processed_images_total{outcome="prepared"}') == 1
    assert uploads.metric(listener, "acstor_glance_hashed_bytes_total") == len(data)
    glance.delete(image_id)
    runs.wait_for(
        lambda: not glance.exists(artefact["id"]),
        uploads.DEADLINE_S,
        "the artefact's end",
        listener.log,
    )


def test_listener_publishes_unpublished_maps_of_the_plugin(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    shared = tmp_path / "state"
    nowhere = "file:///proc/claims"  # the plugin hashes, but cannot lease the image to publish
    sections = dict(acstor_glance.plugin_sections(glance.lab, shared, coordination_url=nowhere))
    sections["DEFAULT"] = {
        "property_protection_file": uploads.PROTECTIONS,
        "property_protection_rule_format": "roles",
    }
    data = uploads.some_bytes(seed=3)
    with glance.lab.glance.changed(sections):
        image_id = glance.import_staged(data)
        assert (shared / "maps" / f"{image_id}.acmap").exists()
        listener = listen()  # its first reconcile finds the image
        glance.wait_state(image_id)
        glance.check_chunk_map(image_id, data)
        assert uploads.metric(listener, "acstor_glance_hashed_bytes_total") == 0
        seen = glance.tenant.get(f"/images/{image_id}").json()
        assert [name for name in seen if name.startswith(artefacts.PREFIX)] == []
        with pytest.raises(requests.HTTPError, match="403"):
            glance.patch(image_id, "tenant", acstor_chunk_map=str(uuid.uuid4()))


def test_refused_images_record_the_reason(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listen()
    foreign = glance.upload(uploads.vdi(tmp_path), disk_format="vdi")
    misnamed = glance.upload(uploads.qcow2(tmp_path, uploads.some_bytes()))
    said = glance.wait_state(foreign, "refused")["acstor_message"]
    assert "its disk format is vdi" in said and "image_conversion" in said
    record = glance.wait_state(misnamed, "refused")
    assert "its format is qcow2" in record["acstor_message"]
    assert record["acstor_retry"] == "1 never"
    assert glance.artefacts() == []


def test_image_in_the_file_store_is_read_without_a_download(
    glance: uploads.Images, listen: Listen
) -> None:
    listen(file_store_dirs=glance.lab.glance.images)
    data = uploads.some_bytes(seed=20)
    image_id = glance.upload(data)
    glance.wait_state(image_id)
    asked = [
        line
        for line in glance.lab.glance.log().splitlines()
        if f"GET /v2/images/{image_id}/file" in line
    ]
    assert asked == []
    glance.check_chunk_map(image_id, data)


def test_progress_of_the_command_is_shown_on_a_terminal(
    glance: uploads.Images, tmp_path: pathlib.Path
) -> None:
    data = uploads.some_bytes(chunks=256, seed=25)
    image_id = glance.upload(data)
    options = acstor_glance.Listener("unused", glance.lab, tmp_path)
    options.configure()
    terminal, command_side = pty.openpty()
    termios.tcsetwinsize(command_side, (24, 120))
    words = ["--config-file", options.conf_file, "prepare", image_id]
    command = [sys.executable, "-W", "ignore", "-m", "acstor_glance.cmd.manage", *words]
    try:
        done = subprocess.run(command, stderr=command_side, timeout=uploads.DEADLINE_S, check=False)
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(command_side)
        os.close(terminal)
    assert done.returncode == 0, shown
    assert image_id in shown and "B/s" in shown
    glance.check_chunk_map(image_id, data)


def test_purge_removes_all_artefacts_and_properties(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen()
    refused_id = glance.upload(uploads.vdi(tmp_path), disk_format="vdi")
    image_id = glance.upload(uploads.some_bytes(seed=23))
    glance.wait_state(refused_id, "refused")
    glance.wait_state(image_id)
    listener.stop()
    by_id = {row["image"]: row for row in uploads.manage(listener, "list")}
    assert (by_id[refused_id]["state"], by_id[image_id]["state"]) == ("refused", "ready")
    assert {row["outcome"] for row in uploads.manage(listener, "purge")} == {"would be removed"}
    assert glance.artefacts() != []
    uploads.manage(listener, "purge", "--yes")
    assert glance.artefacts() == []
    for purged in (refused_id, image_id):
        record = glance.record(purged)
        assert [name for name in record if name.startswith(artefacts.PREFIX)] == []


# The last tests of the module: from here on Glance prepares imported images


def test_import_publishes_the_chunk_map_without_a_listener(
    importing: pathlib.Path, glance: uploads.Images
) -> None:
    data = uploads.some_bytes(seed=2)
    image_id = glance.import_staged(data)
    glance.wait_state(image_id)
    glance.check_chunk_map(image_id, data)
    assert list((importing / "maps").iterdir()) == []


def test_qcow2_image_gets_the_chunk_map_of_its_disk(
    importing: pathlib.Path, glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    data = uploads.some_bytes(seed=26)
    stored = uploads.qcow2(tmp_path, data)
    imported_id = glance.import_staged(stored, disk_format="qcow2")
    glance.wait_state(imported_id)
    glance.check_chunk_map(imported_id, data)
    listen()
    uploaded_id = glance.upload(stored, disk_format="qcow2")
    glance.wait_state(uploaded_id)
    glance.check_chunk_map(uploaded_id, data)


def test_plugin_marks_unserved_images_and_lets_the_import_finish(
    importing: pathlib.Path, glance: uploads.Images, tmp_path: pathlib.Path
) -> None:
    image_id = glance.import_staged(uploads.vdi(tmp_path), disk_format="vdi")
    record = glance.wait_state(image_id, "refused")
    assert "its disk format is vdi" in record["acstor_message"]
    misnamed_id = glance.import_staged(uploads.qcow2(tmp_path, uploads.some_bytes()))
    record = glance.wait_state(misnamed_id, "refused")
    assert "its format is qcow2" in record["acstor_message"]
    assert glance.artefacts() == []
