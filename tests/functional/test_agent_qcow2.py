# SPDX-License-Identifier: Apache-2.0
"""Guests read a qcow2 image from any source: the bytes equal qemu-img's conversion."""

import os
import pathlib
import random
import shutil

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.fakes import http_server
from tests.fakes import qcow2_images
from tests.functional import test_agent_fully_cached as keeping
from tests.functional import test_agent_reading as reading

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img"),
]

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES


@pytest.mark.parametrize("options", qcow2_images.KINDS.values(), ids=qcow2_images.KINDS)
def test_qcow2_image_reads_as_qemu_img_converts_it(images, start, options):
    data = qcow2_images.some_bytes(7 * MIB + 77 * 512)
    image_id = qcow2_images.add(images, data, options)
    path = start().image_path(image_id)
    assert path.stat().st_size == len(data)
    assert hosts.read_direct(path, 0, 8 * MIB) == data


@pytest.mark.parametrize("chunk_bytes", [16 * KIB, MIB, 4 * MIB])
@pytest.mark.parametrize("cluster", ["4k", "64k", "2M"])
def test_chunks_and_clusters_may_differ_in_size(images, start, chunk_bytes, cluster):
    data = qcow2_images.some_bytes(9 * MIB)
    options = ("-c", "-o", f"cluster_size={cluster}")
    image_id = qcow2_images.add(images, data, options, chunk_bytes=chunk_bytes)
    path = start().image_path(image_id)
    rng = random.Random(3)
    with path.open("rb", buffering=0) as file:
        for _ in range(60):
            offset, length = rng.randrange(len(data)), rng.choice([1, 4096, CHUNK, 300 * KIB])
            assert os.pread(file.fileno(), length, offset) == data[offset : offset + length]
    assert hosts.read_direct(path, 0, 9 * MIB) == data


@pytest.mark.parametrize("options", [qcow2_images.DEFLATED, qcow2_images.STORED])
def test_qcow2_image_is_read_over_http(images, start, options):
    data = qcow2_images.some_bytes(6 * MIB)
    image_id = qcow2_images.add(images, data, options)
    stored = (images.folder / f"{image_id}.qcow2").read_bytes()
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    with http_server.serve(files) as server:
        agent = start(**hosts.http_options(server.url))
        assert hosts.read_direct(agent.image_path(image_id), 0, 6 * MIB) == data
        of_map = len(files[f"{image_id}.acmap"])
        assert server.body_bytes < len(stored) * 1.05 + 2 * of_map


def test_raw_and_qcow2_images_share_chunks_of_the_same_content(images, start):
    data = qcow2_images.some_bytes(4 * MIB)
    raw_id, qcow2_id = images.add(data), qcow2_images.add(images, data)
    agent = start()
    assert hosts.read_direct(agent.image_path(raw_id), 0, 4 * MIB) == data
    before = agent.status()["exchange"]["source_bytes"]
    assert before > 0
    assert hosts.read_direct(agent.image_path(qcow2_id), 0, 4 * MIB) == data
    assert agent.status()["exchange"]["source_bytes"] == before


def test_replaced_image_file_is_refused(images, start):
    image_id = qcow2_images.add(images, qcow2_images.some_bytes(4 * MIB))
    with (images.folder / f"{image_id}.qcow2").open("ab") as file:
        file.write(b"more")
    agent = start()
    assert reading.errno_of(os.stat, agent.image_path(image_id))
    assert "chunk map of image" in agent.log()


def _damage(path: pathlib.Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def test_changed_cluster_fails_with_an_error_and_others_are_read(images, start, tmp_path):
    data = qcow2_images.some_bytes(2 * MIB)
    image_id = qcow2_images.add(images, data)
    agent = start(read_deadline_s=1.0, variants="no-read-ahead")
    image = agent.image_path(image_id)
    stored = images.folder / f"{image_id}.qcow2"
    [extent] = [e for e in qcow2_images.extents_of(stored.read_bytes()) if e.at == CHUNK]
    assert extent.codec
    assert hosts.read_direct(image, 0, CHUNK) == data[:CHUNK]
    _damage(stored, extent.offset + 20)
    assert reading.errno_of(hosts.read_direct, image, CHUNK, CHUNK)
    assert hosts.read_direct(image, 3 * CHUNK, CHUNK) == data[3 * CHUNK : 4 * CHUNK]
    _damage(stored, extent.offset + 20)
    assert hosts.read_direct(image, CHUNK, CHUNK) == data[CHUNK : 2 * CHUNK]


def test_second_source_serves_a_chunk_that_is_corrupt_in_the_first(images, start, tmp_path):
    """The agent detects the wrong bytes of one source and reads the next one."""
    data = qcow2_images.some_bytes(2 * MIB)
    image_id = qcow2_images.add(images, data)
    files = {path.name: path.read_bytes() for path in images.folder.iterdir()}
    stored = images.folder / f"{image_id}.qcow2"
    for extent in qcow2_images.extents_of(stored.read_bytes()):
        _damage(stored, extent.offset + 20)
    with http_server.serve(files) as server:
        options = hosts.http_options(server.url)
        agent = start(**{**options, "sources": "file,http"})
        assert hosts.read_direct(agent.image_path(image_id), 0, 2 * MIB) == data


def test_home_reads_a_qcow2_image_that_it_does_not_mirror(tmp_path, images):
    data = qcow2_images.some_bytes(20 * MIB)  # two pages of the layout
    image_id = qcow2_images.add(images, data)
    with hosts.cloud(tmp_path, images, ("h1", "h2")) as cloud:
        assert hosts.read_direct(cloud["h1"].image_path(image_id), 0, 20 * MIB) == data
        home = cloud["h2"].status()
        assert home["exchange"]["served_chunks"] > 20
        assert home["exchange"]["source_bytes"] > MIB
        assert not home["images"]


def test_fill_of_an_unopened_qcow2_image_completes_after_a_restart(images, start):
    data = qcow2_images.some_bytes(9 * MIB)
    image_id = qcow2_images.add(images, data, qcow2_images.DEFLATED)
    agent = start(**keeping.KEEPING, fill_rate_limit_mbit=1.0)
    agent.ctl("attach", image_id)
    agent.ctl("pause", image_id)
    keeping.wait_for(agent, image_id, "paused")
    keeping.next_worker(agent)
    assert keeping.wait_for(agent, image_id, "paused")["remaining_bytes"]
    agent.ctl("hydrate", image_id)
    keeping.wait_for(agent, image_id, "fully_cached")
    (images.folder / f"{image_id}.qcow2").unlink()
    keeping.read_back(agent, image_id, data)
