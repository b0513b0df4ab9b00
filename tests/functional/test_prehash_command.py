# SPDX-License-Identifier: Apache-2.0
"""acstor-prehash from an operator's view: its output, and its exit status."""

import hashlib
import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import qcow2_files

IMAGE_ID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
COMMAND = [
    sys.executable,
    "-c",
    "from acstor_glance.cmd import prehash as p; raise SystemExit(p.main())",
]
GOLDEN = pathlib.Path(__file__).parents[1] / "data" / "chunk_map-v4.acmap"
HUGE_BYTES = 1 << 40


def run(*arguments: object, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / f"{IMAGE_ID}.raw"
    path.write_bytes(os.urandom(300_000) + bytes(300_000) + b"end")
    return path


def test_map_is_named_after_the_image_id(image: pathlib.Path) -> None:
    done = run(image.name, cwd=image.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{IMAGE_ID}.acmap: 10 chunks, 4 of them zero, in ")
    raw = image.with_suffix(".acmap").read_bytes()
    found = chunk_map.ChunkMap.parse(raw, "m", expected_image_id=ids.parse_image_id(IMAGE_ID))
    assert found.geometry == geometry.Geometry(600_003, 65536)


def test_golden_map_is_made_from_its_image(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(
        (b"acstor one\n" * 1490)[:16384] + bytes(16384) + (b"acstor two\n" * 91)[:1000]
    )
    options = ["--image-id", IMAGE_ID, "--chunk-size", "16K", "--os-hash", "compute", "--quiet"]
    done = run(image, "-o", "out", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out").read_bytes() == GOLDEN.read_bytes()


def test_json_summary_is_printed(image: pathlib.Path) -> None:
    value = hashlib.sha512(image.read_bytes()).hexdigest()
    done = run(
        image, "--json", "--quiet", "--os-hash", f"sha512:{value}", "--workers", 1, cwd=image.parent
    )
    summary = json.loads(done.stdout)
    assert summary.pop("seconds_s") > 0
    assert summary == {
        "image_id": IMAGE_ID,
        "map_path": str(image.with_suffix(".acmap")),
        "size_bytes": 600_003,
        "chunk_bytes": 65536,
        "chunks": 10,
        "zero_chunks": 4,
        "resumed_chunks": 0,
        "os_hash_algo": "sha512",
        "os_hash_value": value,
        "disk_format": "raw",
        "stored_bytes": 600_003,
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: IMAGE"),
        (
            ["disk.img"],
            "disk.img is not named <UUID>.raw or <UUID>.qcow2: pass the image's id with --image-id",
        ),
        (["x", "--image-id", "7"], "not an image id (a UUID is expected): '7'"),
        (["x", "--chunk-size", "63K"], "not a power of two from 16K to 4M: '63K'"),
        (["x", "--chunk-size", "8M"], "not a power of two from 16K to 4M: '8M'"),
        (["x", "--workers", "0"], "not a number from 1 to 1024: '0'"),
        (["x", "--os-hash", "sha512:77"], "not the hexadecimal digits of a sha512: '77'"),
        (["x", "--os-hash", "shake_128:"], "not the hexadecimal digits of a shake_128: ''"),
        (["x", "--os-hash", "what:77"], "not a hash algorithm: 'what'"),
        (
            ["x", "--base", "m", "--image-id", IMAGE_ID],
            "--base needs --scope-key-file: names without a scope do not depend on it",
        ),
    ],
)
def test_invalid_arguments_are_explained(
    tmp_path: pathlib.Path, arguments: list[str], complaint: str
) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(complaint)


def test_image_with_another_hash_gets_no_map(image: pathlib.Path) -> None:
    done = run(image, "--os-hash", f"sha512:{'00' * 64}", cwd=image.parent)
    assert done.returncode == 1
    assert "the sha512 of its data differs from that in Glance" in done.stderr
    assert not image.with_suffix(".acmap").exists()


def test_scoped_map_keys_new_chunks_and_keeps_names_of_the_base(image: pathlib.Path) -> None:
    folder = image.parent
    assert run(image, "-o", "base", "--quiet", cwd=folder).returncode == 0
    raw = bytearray(image.read_bytes())
    raw[65536] ^= 1
    image.write_bytes(raw)
    key_file = folder / "key"
    key_file.write_text("0123456789abcdef" * 4 + "\n")
    key_file.chmod(0o600)
    done = run(image, "--scope-key-file", key_file, "--base", "base", "--quiet", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    base = chunk_map.ChunkMap.parse((folder / "base").read_bytes(), "base")
    found = chunk_map.ChunkMap.parse(image.with_suffix(".acmap").read_bytes(), "m")
    assert [key.hex() for key in found.scope_keys] == ["0123456789abcdef" * 4]
    changed = [n for n in range(len(found)) if found.cid_of(n) != base.cid_of(n)]
    assert changed == [1] and ids.is_keyed(found.cid_of(1))
    assert found.content_of(1).matches_data(raw[65536 : 2 * 65536])


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("01" * 32, 0o640, "others can read this key"),
        ("01" * 31, 0o600, "it holds no valid key"),
        ("00" * 32, 0o600, "it holds no valid key"),
        ("", 0o600, "it holds no valid key"),
        (None, 0o600, "No such file"),
    ],
)
def test_invalid_scope_key_is_refused(
    image: pathlib.Path, text: str | None, mode: int, complaint: str
) -> None:
    key_file = image.parent / "key"
    if text is not None:
        key_file.write_text(text)
        key_file.chmod(mode)
    done = run(image, "--scope-key-file", key_file, cwd=image.parent)
    assert done.returncode == 1 and complaint in done.stderr
    assert not image.with_suffix(".acmap").exists()


def test_failure_prints_one_line_and_exits_with_1(tmp_path: pathlib.Path) -> None:
    done = run("nowhere", "--image-id", IMAGE_ID, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "acstor-prehash: nowhere: No such file or directory\n"


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="qemu-img is not installed")
@pytest.mark.parametrize("name", ["qcow2", "vmdk", "vhdx", "vdi", "qed"])
def test_images_of_other_formats_are_refused_as_raw(tmp_path: pathlib.Path, name: str) -> None:
    image = tmp_path / f"{IMAGE_ID}.raw"
    subprocess.run(["qemu-img", "create", "-q", "-f", name, image, "64M"], check=True)
    done = run(image, cwd=tmp_path)
    assert done.returncode == 1
    assert f"its format is {name}, but raw in Glance" in done.stderr
    assert not image.with_suffix(".acmap").exists()


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="qemu-img is not installed")
@pytest.mark.parametrize("options", [[], ["--format", "qcow2", "--image-id", IMAGE_ID]])
def test_qcow2_image_is_hashed_as_its_raw_disk(image: pathlib.Path, options: list[str]) -> None:
    os.truncate(image, 600_064)
    folder = image.parent
    assert run(image, "-o", "raw.acmap", "--quiet", cwd=folder).returncode == 0
    name = "converted.img" if options else f"{IMAGE_ID}.qcow2"
    qcow2 = folder / name
    subprocess.run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", image, qcow2], check=True
    )
    value = hashlib.sha512(qcow2.read_bytes()).hexdigest()
    done = run(
        name, "-o", "m", "--json", "--quiet", "--os-hash", f"sha512:{value}", *options, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    stored_bytes = qcow2.stat().st_size
    assert (summary["size_bytes"], summary["stored_bytes"]) == (600_064, stored_bytes)
    assert summary["disk_format"] == "qcow2"
    found = chunk_map.ChunkMap.parse((folder / "m").read_bytes(), "m")
    raw = chunk_map.ChunkMap.parse((folder / "raw.acmap").read_bytes(), "raw")
    assert [found.cid_of(n) for n in range(len(found))] == [raw.cid_of(n) for n in range(len(raw))]
    assert found.layout.stored.size_bytes == stored_bytes and found.layout.stored.entries > 0
    assert not raw.layout.stored.entries


def test_qcow2_image_with_a_backing_file_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    image = tmp_path / f"{IMAGE_ID}.qcow2"
    image.write_bytes(qcow2_files.File(backing_offset=200, backing_length=5).pack())
    done = run(image, cwd=tmp_path)
    assert done.returncode == 1
    assert "backing file" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [image]


def huge_image(folder: pathlib.Path) -> pathlib.Path:
    """Return a sparse image whose hash takes several seconds."""
    image = folder / f"{IMAGE_ID}.raw"
    with image.open("wb") as file:
        file.write(b"data")
        file.truncate(HUGE_BYTES)
    return image


def wait_for(condition: object, timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def test_progress_is_shown_on_a_terminal_and_kept_on_ctrl_c(tmp_path: pathlib.Path) -> None:
    image = huge_image(tmp_path)
    part = image.with_suffix(".acmap.part")
    terminal, command_side = pty.openpty()
    termios.tcsetwinsize(command_side, (24, 120))
    command = subprocess.Popen(
        [*COMMAND, str(image)], stderr=command_side, cwd=pathlib.Path(__file__).parents[2]
    )
    os.close(command_side)
    try:
        wait_for(lambda: part.exists() and part.stat().st_size > 100 * 36)
        command.send_signal(signal.SIGINT)
        assert command.wait(20) == 130
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        command.kill()
        command.wait()
        os.close(terminal)
    assert image.name in shown and "B/s" in shown
    assert shown.endswith("acstor-prehash: stopped; run again to continue\r\n")
    assert part.exists() and not image.with_suffix(".acmap").exists()


PEAK = """
import re
from acstor_glance.cmd import prehash as p
assert p.main() == 0
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
"""


def test_memory_does_not_grow_with_the_image(tmp_path: pathlib.Path) -> None:
    image = huge_image(tmp_path)
    os.truncate(image, HUGE_BYTES // 4)
    command = [sys.executable, "-c", PEAK, str(image), "--quiet"]
    root = pathlib.Path(__file__).parents[2]
    peak_kib = int(subprocess.run(command, cwd=root, capture_output=True, check=True).stdout)
    assert peak_kib * geometry.KIB < 100 * geometry.MIB
    assert image.with_suffix(".acmap").stat().st_size < 128 * geometry.KIB  # one block of zeros
