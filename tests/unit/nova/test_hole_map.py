# SPDX-License-Identifier: Apache-2.0
"""A hole map read by qemu-img: the image's bytes, with zero chunks never read."""

import json
import random
import shutil
import subprocess

import pytest

from acstor_common.model import geometry
from acstor_nova.snapshots import hole_map
from tests.fakes import qcow2_readers

KIB, MIB = geometry.KIB, geometry.MIB
CHUNK = geometry.DEFAULT_CHUNK_BYTES

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")


def qemu_img(*argv):
    return subprocess.run(["qemu-img", *argv], check=True, capture_output=True).stdout


def mapped(folder, cut, zeros):
    """Write a map; return the JSON name for QEMU, with a data file still to be made."""
    with (folder / "holes").open("xb") as file:
        hole_map.write_hole_map(file, cut, zeros.__contains__)
    data = {"driver": "file", "filename": str(folder / "data")}
    file = {"driver": "file", "filename": str(folder / "holes")}
    return "json:" + json.dumps({"driver": "qcow2", "file": file, "data-file": data})


@pytest.mark.parametrize("chunk_bytes", [16 * KIB, CHUNK, MIB, 4 * MIB])
@pytest.mark.parametrize("end", [-513, -1, 0, 1, 512, 5000])
def test_hole_map_gives_the_images_bytes_without_reading_zeros(tmp_path, chunk_bytes, end):
    rng = random.Random(chunk_bytes + end)
    cut = geometry.Geometry(9 * chunk_bytes + end, chunk_bytes)
    zeros = set(rng.sample(range(cut.chunk_count), 4))
    name = mapped(tmp_path, cut, zeros)
    data = bytearray(rng.randbytes(cut.size_bytes))  # also in chunks mapped as zeros
    (tmp_path / "data").write_bytes(data)
    qemu_img("convert", "-f", "qcow2", "-O", "raw", name, tmp_path / "out")
    for chunk_no in zeros:
        start = chunk_no * chunk_bytes
        data[start : start + cut.chunk_length(chunk_no)] = bytes(cut.chunk_length(chunk_no))
    made = (tmp_path / "out").read_bytes()
    assert made[: len(data)] == data
    assert not any(made[len(data) :]) and len(made) - len(data) < 512
    qcow2_readers.check(tmp_path / "holes", made, tmp_path / "data")


@pytest.mark.parametrize("chunk_bytes", [16 * KIB, CHUNK])
def test_map_of_a_large_image_has_only_the_needed_tables(tmp_path, chunk_bytes):
    cut = geometry.Geometry(64 << 30, chunk_bytes)
    held = {0, 1, 99_999, cut.chunk_count // 2, cut.chunk_count - 1}
    name = mapped(tmp_path, cut, set(range(cut.chunk_count)) - held)
    with (tmp_path / "data").open("wb") as file:
        file.truncate(cut.size_bytes)
    found = json.loads(qemu_img("map", "-f", "qcow2", "--output=json", name))
    seen = {
        chunk_no
        for stretch in found
        if stretch["data"]
        for chunk_no in range(
            stretch["start"] // chunk_bytes,
            (stretch["start"] + stretch["length"]) // chunk_bytes,
        )
    }
    assert seen == held
    assert (tmp_path / "holes").stat().st_size < 12 * hole_map.MAX_CLUSTER_BYTES


def test_empty_image_has_a_map(tmp_path):
    name = mapped(tmp_path, geometry.Geometry(0, CHUNK), set())
    (tmp_path / "data").touch()
    assert json.loads(qemu_img("info", "--output=json", name))["virtual-size"] == 0
