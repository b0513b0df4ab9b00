# SPDX-License-Identifier: Apache-2.0
"""Pre-hashing killed or failing at every step: the map is valid or absent, progress is kept."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.fakes import failing_calls

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
CHUNK = 16384
SIZES = prehash.BufferSizes(record=4 * CHUNK)
OPTIONS: dict[str, Any] = {"chunk_bytes": CHUNK, "workers": 1, "sizes": SIZES}
COMMAND = [
    sys.executable,
    "-c",
    "from acstor_glance.cmd import prehash as p; raise SystemExit(p.main())",
]


def run_killed_at(step: int, image: pathlib.Path, map_path: pathlib.Path) -> int:
    """Pre-hash in a child that kills itself at its ``step``-th step; return its exit status.

    A step is every event audited by the interpreter (open, rename, remove, locks ...) and each
    report of progress.

    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = 0

    def count(*event: object) -> None:
        nonlocal seen
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        prehash.prehash(image, map_path, IMAGE_ID, progress=count, **OPTIONS)
        os._exit(0)
    finally:
        os._exit(1)


def check(map_path: pathlib.Path, image: pathlib.Path) -> None:
    data = image.read_bytes()
    found = chunk_map.ChunkMap.parse(map_path.read_bytes(), "m", expected_image_id=IMAGE_ID)
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    assert [found.cid_of(chunk_no) for chunk_no in range(len(found))] == [
        ids.cid_of(chunk) if any(chunk) else ids.ZERO_CID for chunk in chunks
    ]


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "image.raw"
    path.write_bytes(random.Random(5).randbytes(20 * CHUNK) + bytes(3 * CHUNK) + b"end")
    return path


def test_kill_at_any_step_leaves_a_valid_map_or_none(image: pathlib.Path) -> None:
    map_path = image.with_suffix(".acmap")
    for step in range(1, 1000):
        for path in image.parent.glob("image.acmap*"):
            path.unlink()
        ended = run_killed_at(step, image, map_path)
        if map_path.exists():
            check(map_path, image)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        prehash.prehash(image, map_path, IMAGE_ID, **OPTIONS)
        check(map_path, image)
        assert sorted(path.name for path in image.parent.iterdir()) == ["image.acmap", "image.raw"]
    assert step > 15


def test_failed_call_leaves_a_valid_map_or_none(image: pathlib.Path, tmp_path_factory: Any) -> None:
    data = image.read_bytes()
    for calls in failing_calls.each_call(tmp_path_factory.mktemp("calls"), least=60):
        copied = calls.folder / image.name
        copied.write_bytes(data)
        map_path = copied.with_suffix(".acmap")
        with calls:
            try:
                prehash.prehash(copied, map_path, IMAGE_ID, **OPTIONS)
            except (errors.Unusable, OSError):
                assert calls.hit
        if map_path.exists():
            check(map_path, copied)
        prehash.prehash(copied, map_path, IMAGE_ID, **OPTIONS)
        check(map_path, copied)
        assert {path.name for path in calls.folder.iterdir()} == {"image.acmap", "image.raw"}


@pytest.mark.parametrize("seed", range(6))
def test_prehash_completes_despite_repeated_kills(image: pathlib.Path, seed: int) -> None:
    map_path = image.with_suffix(".acmap")
    dice = random.Random(seed)
    ends = [run_killed_at(dice.randint(1, 20), image, map_path)]
    while ends[-1] != 0:
        ends.append(run_killed_at(dice.randint(1, 20), image, map_path))
        assert len(ends) < 200
    check(map_path, image)


def test_killed_command_resumes_its_work(tmp_path: pathlib.Path) -> None:
    image = tmp_path / f"{IMAGE_ID}.raw"
    with image.open("wb") as file:
        for gibibyte in range(0, 256, 16):
            file.seek(gibibyte << 30)
            file.write(b"data of %d" % gibibyte)
        file.truncate(256 << 30)
    part = image.with_suffix(".acmap.part")
    for kill_bytes in (50 * RECORD_OF_ZEROS, 1000 * RECORD_OF_ZEROS):
        kill_when_longer(part, kill_bytes, [*COMMAND, str(image), "--quiet"])
        assert not image.with_suffix(".acmap").exists()
    done = subprocess.run(
        [*COMMAND, str(image), "--json"], capture_output=True, check=True, timeout=60
    )
    summary = json.loads(done.stdout)
    assert summary["resumed_chunks"] * 65536 > 500 * prehash.BUFFER_SIZES.record
    assert summary["chunks"] - summary["zero_chunks"] == 16
    raw = image.with_suffix(".acmap").read_bytes()
    found = chunk_map.ChunkMap.parse(raw, "m", expected_stored_bytes=256 << 30)
    assert found.cid_of(3 * (16 << 30) // 65536) == ids.cid_of(b"data of 48".ljust(65536, b"\0"))


RECORD_OF_ZEROS = 36
"""Bytes of a run's record in the log."""


def kill_when_longer(path: pathlib.Path, length_bytes: int, command: list[str]) -> None:
    process = subprocess.Popen(command)
    try:
        deadline_s = time.monotonic() + 30
        while not path.exists() or path.stat().st_size < length_bytes:
            assert process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
