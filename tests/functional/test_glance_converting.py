# SPDX-License-Identifier: Apache-2.0
"""Conversion of images to qcow2 files with the same disk, and refusal of hostile images.

qemu-img, oslo.utils and bubblewrap are the real ones.

"""

import pathlib
import random
import shutil
import struct
import subprocess
import time

import pytest

from acstor_common import errors
from acstor_common.model import geometry
from acstor_glance import sandbox
from acstor_glance.prepare import conversion
from tests.fakes import glance_records as records
from tests.fakes import missing_programs
from tests.lab import runs

WALLS = sandbox.Sandbox.BUBBLEWRAP
LIMITS = conversion.ConversionLimits()
DISK_BYTES = 12 * geometry.MIB + 512
OPTIONS = {
    "vmdk": ["-O", "vmdk", "-o", "subformat=monolithicSparse"],
    "vmdk-streamed": ["-O", "vmdk", "-o", "subformat=streamOptimized"],
    "vhd": ["-O", "vpc", "-o", "force_size=on"],
    "vhdx": ["-O", "vhdx"],
    "vdi": ["-O", "vdi"],
}

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-img") is None or shutil.which("bwrap") is None,
    reason="qemu-utils or bubblewrap is not installed: run tools/install.sh",
)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a raw disk: incompressible bytes, text, and holes."""
    path = tmp_path_factory.mktemp("disk") / "disk"
    with path.open("wb") as file:
        file.write(random.Random(5).randbytes(3 * geometry.MIB))
        file.seek(8 * geometry.MIB)
        file.write(b"text that compresses " * 50_000)
        file.truncate(DISK_BYTES)
    return path


def made_of(disk: pathlib.Path, folder: pathlib.Path, kind: str) -> pathlib.Path:
    path = folder / f"made.{kind}"
    runs.tool(["qemu-img", "convert", "-f", "raw", *OPTIONS[kind], disk, path])
    return path


def convert(
    path: pathlib.Path,
    disk_format: str,
    work: pathlib.Path,
    isolation: sandbox.Sandbox = WALLS,
    limits: conversion.ConversionLimits = LIMITS,
) -> pathlib.Path:
    """Convert an image, and return the raw disk in the result."""
    image = records.image(disk_format=disk_format, size=path.stat().st_size)
    work.mkdir(mode=0o700)
    raw = work / "raw"
    with (work / "image").open("w+b") as stored:
        stored.write(path.read_bytes())
        stored.flush()
        with conversion.convert_image(image, stored, work, isolation, limits) as made:
            words = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw"]
            runs.tool([*words, made.name, raw])
            assert pathlib.Path(made.name).stat().st_size < 5 * geometry.MIB
    return raw


def refused(path: pathlib.Path, disk_format: str, work: pathlib.Path) -> str:
    with pytest.raises(errors.NotRaw) as caught:
        convert(path, disk_format, work)
    return caught.value.why


@pytest.mark.parametrize("isolation", sandbox.Sandbox, ids=str)
@pytest.mark.parametrize("kind", OPTIONS)
def test_converted_disk_has_the_same_bytes(
    disk: pathlib.Path, tmp_path: pathlib.Path, kind: str, isolation: sandbox.Sandbox
) -> None:
    path, disk_format = made_of(disk, tmp_path, kind), kind.partition("-")[0]
    raw = convert(path, disk_format, tmp_path / "work", isolation)
    found, expected = raw.read_bytes(), disk.read_bytes()
    # Some formats round disks up to whole clusters or cylinders: the rest is zeros.
    assert found[:DISK_BYTES] == expected
    assert not any(found[DISK_BYTES:])


@pytest.mark.parametrize("kind", OPTIONS)
def test_truncated_image_is_refused_or_converted_without_a_hang(
    disk: pathlib.Path, tmp_path: pathlib.Path, kind: str
) -> None:
    path, disk_format = made_of(disk, tmp_path, kind), kind.partition("-")[0]
    data = path.read_bytes()
    for number, share in enumerate((1, 5, 9)):
        path.write_bytes(data[: len(data) * share // 10])
        try:
            convert(path, disk_format, tmp_path / f"work{number}")
        except errors.NotRaw as refusal:
            assert refusal.why


@pytest.mark.parametrize("disk_format", sorted(conversion.DRIVERS))
def test_image_in_another_format_than_declared_is_refused(
    disk: pathlib.Path, tmp_path: pathlib.Path, disk_format: str
) -> None:
    other = "vdi" if disk_format != "vdi" else "vhdx"
    why = refused(made_of(disk, tmp_path, other), disk_format, tmp_path / "work")
    assert why == f"its format is {other}, but {disk_format} in Glance"
    why = refused(disk, disk_format, tmp_path / "raw")
    assert why == f"its format is raw, but {disk_format} in Glance"


@pytest.mark.parametrize("subformat", ["monolithicFlat", "twoGbMaxExtentSparse"])
def test_vmdk_that_names_other_files_is_refused(
    disk: pathlib.Path, tmp_path: pathlib.Path, subformat: str
) -> None:
    path = tmp_path / "disk.vmdk"
    words = ["qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", f"subformat={subformat}"]
    runs.tool([*words, disk, path])
    assert refused(path, "vmdk", tmp_path / "work")


def test_vmdk_with_a_parent_is_refused(disk: pathlib.Path, tmp_path: pathlib.Path) -> None:
    parent, path = made_of(disk, tmp_path, "vmdk"), tmp_path / "child.vmdk"
    runs.tool(["qemu-img", "create", "-q", "-f", "vmdk", "-F", "vmdk", "-b", parent, path])
    assert refused(path, "vmdk", tmp_path / "work")


def test_too_large_disk_is_refused_before_it_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "large.vdi"
    runs.tool(["qemu-img", "create", "-q", "-f", "vdi", path, "3T"])
    why = refused(path, "vdi", tmp_path / "work")
    assert why.startswith("its disk is too large: 3298534883328 bytes")


def bomb(path: pathlib.Path, blocks: int = 512) -> pathlib.Path:
    """Make a VDI image of little more than one MiB whose blocks are all the same one."""
    runs.tool(["qemu-img", "create", "-q", "-f", "vdi", path, f"{blocks}M"])
    header = bytearray(path.read_bytes())
    map_at, data_at = struct.unpack_from("<II", header, 0x154)
    header[map_at : map_at + 4 * blocks] = bytes(4 * blocks)  # all of them are block 0
    struct.pack_into("<I", header, 0x184, blocks)
    path.write_bytes(header[:data_at].ljust(data_at, b"\0") + random.Random(6).randbytes(1 << 20))
    return path


def test_vdi_that_repeats_one_block_is_stopped_at_the_write_limit(
    tmp_path: pathlib.Path,
) -> None:
    path = bomb(tmp_path / "bomb.vdi")
    limits = LIMITS._replace(spare_bytes=4 * geometry.MIB)
    began_s = time.monotonic()
    with pytest.raises(errors.LimitExceeded, match=r"write 2 times"):
        convert(path, "vdi", tmp_path / "work", limits=limits)
    assert time.monotonic() - began_s < limits.spare_s
    assert max(one.stat().st_size for one in tmp_path.rglob("made")) <= 8 * geometry.MIB


def test_conversion_over_its_time_limit_is_killed(
    tmp_path: pathlib.Path,
) -> None:
    path = bomb(tmp_path / "bomb.vdi")
    limits = LIMITS._replace(spare_s=1, spare_bytes=2048 * geometry.MIB)
    began_s = time.monotonic()
    with pytest.raises(errors.LimitExceeded, match="was ended: for its"):
        convert(path, "vdi", tmp_path / "work", limits=limits)
    assert time.monotonic() - began_s < 60
    runs.wait_for(lambda: not still_running(tmp_path), 10, "the end of it", lambda: str(tmp_path))


def still_running(folder: pathlib.Path) -> bool:
    words = ["pgrep", "-f", str(folder / "work")]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_missing_sandbox_is_reported_and_does_not_refuse_the_image(
    disk: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made_of(disk, tmp_path, "vdi")
    missing_programs.hide(monkeypatch, tmp_path / "programs", "bwrap")
    with pytest.raises(errors.Unusable, match="sandbox") as caught:
        convert(path, "vdi", tmp_path / "work")
    assert not isinstance(caught.value, errors.NotRaw)
