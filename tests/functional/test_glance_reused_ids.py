# SPDX-License-Identifier: Apache-2.0
"""A deleted image and new bytes under its id: a real Glance, a real agent."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.fakes import hosts
from tests.functional import test_glance_deactivation as deactivation
from tests.lab import agents
from tests.lab import local
from tests.lab import runs
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import installed
from tests.lab.openstack import uploads

Listen = Callable[..., acstor_glance.Listener]
CHUNK = uploads.CHUNK


def upload_as(glance: uploads.Images, image_id: str, data: bytes) -> requests.Response:
    """Upload an image under a chosen id, and return the response to its creation."""
    record = {"id": image_id, "name": "again", "visibility": "private"}
    formats = {"disk_format": "raw", "container_format": "bare"}
    made: requests.Response = glance.tenant.post("/images", json={**record, **formats})
    if made.status_code == 201:
        octets = {"Content-Type": "application/octet-stream"}
        glance.tenant.put(f"/images/{image_id}/file", data=data, headers=octets).raise_for_status()
    return made


def purge(glance: uploads.Images) -> None:
    """Remove the rows of deleted images from Glance's database, as administrators may."""
    conf_file = glance.lab.glance.conf_file
    every = ["--age_in_days", "0", "--max_rows", "-1"]  # other tests leave rows, too
    for what in ("purge", "purge_images_table"):
        command = ["--config-file", str(conf_file), "db", what, *every]
        runs.tool([installed.BIN / "glance-manage", *command])


def read_on(guest: Any, chunk_no: int) -> bytes:
    """Return what a guest reads; empty after an I/O error."""
    guest.seek(chunk_no * CHUNK)
    try:
        found: bytes = guest.read(CHUNK)
    except OSError:
        return b""
    return found


@hosts.needs_fuse
def test_guest_of_a_deleted_image_never_reads_bytes_of_its_reused_id(
    glance: uploads.Images, listen: Listen, tmp_path: pathlib.Path
) -> None:
    listener = listen()
    old, new = (uploads.some_bytes(chunks=8, seed=seed) for seed in (90, 91))
    image_id = glance.upload(old)
    glance.wait_state(image_id)
    nothing = local.ImageFolder(tmp_path / "nothing")
    options = {"keep_images": "none", "read_deadline_s": 1.0, "variants": "no-read-ahead"}
    with deactivation.with_glance(glance, tmp_path / "host", nothing, **options) as agent:
        agent.wait_ready()
        deactivation.ensure(agent, image_id)
        with agent.image_path(image_id).open("rb", buffering=0) as guest:
            assert read_on(guest, 0) == old[:CHUNK]
            glance.delete(image_id)
            assert upload_as(glance, image_id, new).status_code == 409
            purge(glance)
            assert upload_as(glance, image_id, new).status_code == 201
            glance.wait_state(image_id)
            glance.check_chunk_map(image_id, new)
            lost = 0
            for chunk_no in range(len(old) // CHUNK + 1):
                found = read_on(guest, chunk_no)
                assert found in (b"", old[chunk_no * CHUNK :][:CHUNK])
                lost += not found
            assert lost  # the other bytes were readable
        listener.stop()
        agents.request(agent.control_socket, "detach-image", image_id=image_id)
        deactivation.ensure(agent, image_id)
        assert agent.image_path(image_id).read_bytes() == new


@pytest.mark.nightly  # tests only Glance, and restarts it twice
def test_bytes_outlive_a_deleted_image_only_with_delayed_delete(
    glance: uploads.Images,
) -> None:
    data = uploads.some_bytes(chunks=8, seed=92)
    assert not deleted(glance, data).exists()
    with glance.lab.glance.changed({"DEFAULT": {"delayed_delete": True, "scrub_time": 3600}}):
        left = deleted(glance, data)
        assert left.read_bytes() == data
        left.unlink()


def deleted(glance: uploads.Images, data: bytes) -> pathlib.Path:
    """Upload and delete an image, and return its path in the store."""
    image_id = glance.upload(data)
    stored = glance.lab.glance.images / image_id
    assert stored.read_bytes() == data
    glance.delete(image_id)
    for user in (glance.tenant, glance.admin):
        assert user.get(f"/images/{image_id}/file").status_code == 404
    return stored
