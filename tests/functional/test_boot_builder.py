# SPDX-License-Identifier: Apache-2.0
"""The builder on a real QEMU: a real image, and images that attack it."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance import sandbox
from acstor_glance.boot import boot_builder
from acstor_glance.boot import boot_guest
from acstor_glance.prepare import prehash
from tests.fakes import boot_sectors
from tests.lab import guest_image
from tests.lab import local
from tests.lab import runs
from tests.lab import uefi_image

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="qemu-system-x86 is not installed"
)
IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
MIB = geometry.MIB
# Time that the guest waits for a processor is not idle time, so on a busy machine it takes longer.
LIMITS = boot_guest.GuestLimits(longest_s=240.0, idle_s=4.0, memory_bytes=64 * MIB)
UEFI = {
    "firmware": boot_guest.Firmware.UEFI,
    "limits": dataclasses.replace(LIMITS, memory_bytes=256 * MIB),
}
needs_uefi = pytest.mark.skipif(
    not boot_guest.UEFI_FIRMWARE.is_file(), reason="ovmf is not installed: run tools/install.sh"
)
COMMAND = [sys.executable, "-m", "acstor_glance.cmd.boot_image"]


def prepared(folder: pathlib.Path, data: bytes) -> tuple[pathlib.Path, chunk_map.ChunkMap]:
    """Write an image and its chunk map."""
    image = folder / f"{IMAGE_ID}.raw"
    image.write_bytes(data)
    map_path = image.with_suffix(".acmap")
    prehash.prehash(image, map_path, IMAGE_ID)
    return image, chunk_map.ChunkMap.parse(map_path.read_bytes(), str(map_path))


def build(
    folder: pathlib.Path, data: bytes, limits: boot_guest.GuestLimits = LIMITS
) -> tuple[boot_builder.Summary, list[int]]:
    image, image_map = prepared(folder, data)
    output = image.with_suffix(".acboot")
    summary = boot_builder.build(image, image_map, output, limits=limits)
    head = boot_frames.check_boot_image([output.read_bytes()], str(output))
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        image.with_suffix(ending).name for ending in (".raw", ".acmap", ".acboot")
    )
    return summary, list(head.trace)


def test_image_of_zeros_does_not_boot(tmp_path):
    image, image_map = prepared(tmp_path, bytes(4 * MIB))
    with pytest.raises(errors.BootFailed, match="it does not boot"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data",
    [
        local.random_bytes(4 * MIB),
        bytes(446) + boot_sectors.PARTITIONS + b"\x55\xaa" + b"x" * (4 * MIB - 512),
    ],
    ids=["random", "partitions-only"],
)
def test_image_without_a_boot_loader_gets_no_boot_image(tmp_path, data):
    image, image_map = prepared(tmp_path, data)
    began_s = time.monotonic()
    with pytest.raises(errors.BootFailed, match=r"no boot loader that the firmware \(bios\)"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=boot_guest.GuestLimits())
    assert time.monotonic() - began_s < boot_guest.GuestLimits().idle_s  # nobody waited for it
    assert not (tmp_path / "out").exists()


def test_endless_reads_of_a_guest_stop_at_the_read_limit(tmp_path):
    limits = dataclasses.replace(LIMITS, boot_bytes=2 * MIB)
    data = boot_sectors.image(boot_sectors.READ_FOREVER, 16 * MIB)
    summary, trace = build(tmp_path, data, limits)
    assert (summary.end, trace) == ("full", list(range(32)))


def test_build_stops_at_its_time_limit(tmp_path):
    limits = dataclasses.replace(LIMITS, longest_s=20.0, idle_s=60.0)
    summary, trace = build(tmp_path, boot_sectors.image(boot_sectors.HANG, 4 * MIB), limits)
    assert (summary.end, trace[0]) == ("time", 0)


def test_endless_writes_of_a_guest_stop_at_the_write_limit(tmp_path):
    limits = dataclasses.replace(LIMITS, written_bytes=2 * MIB, idle_s=8.0)
    data = boot_sectors.image(boot_sectors.WRITE_FOREVER, 64 * MIB)
    summary, _ = build(tmp_path, data, limits)
    assert summary.end in ("ended", "idle")  # killed by its limit, or its writes fail


def test_image_that_differs_from_its_chunk_map_is_refused(tmp_path):
    image, image_map = prepared(tmp_path, boot_sectors.image(boot_sectors.HANG, 4 * MIB))
    data = bytearray(image.read_bytes())
    data[300] ^= 1
    image.write_bytes(data)
    with pytest.raises(errors.ChunkInvalid, match="chunk 0 of image"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)
    image.write_bytes(data[:-512])
    with pytest.raises(errors.Unusable, match="Make the chunk map again"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)
    assert not (tmp_path / "out").exists()


def test_qemu_is_confined_and_dies_with_the_builder(tmp_path):
    image, _ = prepared(tmp_path, boot_sectors.image(boot_sectors.FLOOD_CONSOLE, 4 * MIB))
    argv = [*COMMAND, "build", str(image), "--idle", "60", "--longest", "120", "--memory", "64"]
    builder = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        qemu = wait_for(lambda: qemu_of(builder.pid))
        status = pathlib.Path(f"/proc/{qemu}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")
        limits = pathlib.Path(f"/proc/{qemu}/limits").read_text()
        assert f"Max file size             {boot_guest.GuestLimits().written_bytes}" in limits
        assert f"Max cpu time              {4 * 120 + 60} " in limits
        if os.geteuid() == 0:
            assert fields["Uid"].split()[0] != "0"
            assert int(fields["CapEff"], 16) == 0
        for kind in ("net", "ipc", "mnt", "pid", "uts"):
            ours = os.readlink(f"/proc/self/ns/{kind}")
            assert os.readlink(f"/proc/{qemu}/ns/{kind}") != ours
    finally:
        builder.kill()
        builder.wait()
    wait_for(lambda: not pathlib.Path(f"/proc/{qemu}/exe").exists())


def qemu_of(pid: int) -> int | None:
    """Return the process that a builder has started, once it is QEMU and is confined."""
    for child in sandbox.process_tree(pid):
        with contextlib.suppress(OSError):  # it has ended
            status = pathlib.Path(f"/proc/{child}/status").read_text()
            if "Name:\tqemu-system" in status and "Seccomp:\t2" in status:
                return child
    return None


@needs_uefi
def test_uefi_gives_up_on_an_image_that_it_cannot_boot(tmp_path):
    image, image_map = prepared(tmp_path, boot_sectors.image(boot_sectors.RESET, 4 * MIB))
    patient = dataclasses.replace(
        UEFI["limits"], idle_s=60.0
    )  # it looks elsewhere, too, and says so
    with pytest.raises(errors.BootFailed, match=r"no boot loader that the firmware \(uefi\)"):
        boot_builder.build(image, image_map, tmp_path / "out", **(UEFI | {"limits": patient}))
    assert not (tmp_path / "out").exists()  # and the BIOS would have run what ends QEMU


def test_missing_uefi_firmware_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(boot_guest, "UEFI_FIRMWARE", tmp_path / "nowhere.fd")
    image, image_map = prepared(tmp_path, boot_sectors.image(boot_sectors.RESET, 4 * MIB))
    with pytest.raises(errors.Unusable, match=r"nowhere.fd: it is not installed.*Install ovmf"):
        boot_builder.build(image, image_map, tmp_path / "out", **UEFI)
    assert boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS).end == "ended"


def wait_for(find, deadline_s: float = 60.0):
    end_s = time.monotonic() + deadline_s
    while not (found := find()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


@pytest.mark.nightly
@needs_uefi
def test_uefi_only_image_gets_its_boot_image_from_uefi(
    tmp_path: pathlib.Path, lab_image: guest_image.GuestImage
):
    """Build, show and verify by the command, as an operator does."""
    disk = uefi_image.make(lab_image, tmp_path)
    map_path, output = tmp_path / "map", tmp_path / "uefi"
    prehash.prehash(disk, map_path, IMAGE_ID)
    argv = ["build", str(disk), "--map", str(map_path), "--json", "-o"]
    assert "no boot loader" in run(*argv, str(tmp_path / "bios"), status=1)
    with runs.prioritized():
        built = json.loads(run(*argv, str(output), "--firmware", "uefi"))
    assert built["end"] == "marker"
    assert 300 < built["chunks"] < 3000
    assert built["stored_bytes"] == output.stat().st_size < 0.03 * built["image_bytes"]
    shown = json.loads(run("show", str(output), "--json"))
    assert (shown["image_id"], shown["chunks"], shown["revision"]) == (IMAGE_ID, built["chunks"], 1)
    assert "chunk map" in run("verify", str(output), "--map", str(map_path))
    output.write_bytes(output.read_bytes()[:-1])
    assert "bytes are expected" in run("verify", str(output), status=1)


def run(*argv: str, status: int = 0) -> str:
    done = subprocess.run([*COMMAND, *argv], capture_output=True, text=True, timeout=500)
    assert done.returncode == status, done.stderr
    return done.stdout or done.stderr
