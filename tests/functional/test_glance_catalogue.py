# SPDX-License-Identifier: Apache-2.0
"""A catalogue of existing images: prepared by a command with progress, and counted by reason.

Keystone and Glance are those of the lab, with some hundred images.

"""

import contextlib
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from concurrent import futures

import pytest

from acstor_common.image import artefacts
from acstor_glance.controller import image_scan
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import uploads

SERVED, UNFIT = 24, 20
"""Images to prepare, and images that are only counted: over one page in all."""
PAGES = {tuned.PAGE_IMAGES: UNFIT}
COMMAND = [sys.executable, "-W", "ignore", "-m", "acstor_glance.cmd.manage", "--config-file"]


@pytest.fixture
def options(glance: uploads.Images, tmp_path: pathlib.Path) -> acstor_glance.Listener:
    """Return the configuration of a listener that is never started."""
    made = acstor_glance.Listener("unused", glance.lab, tmp_path)
    made.configure()
    return made


def tool(folder: pathlib.Path, name: str, *argv: str) -> bytes:
    """Return the image that qemu-img makes of some arguments."""
    path = folder / name
    runs.tool(["qemu-img", "create", "-q", *argv[:-1], path, argv[-1]])
    return path.read_bytes()


def upload_many(glance: uploads.Images, number: int, data: bytes, **given: str) -> list[str]:
    with futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: glance.upload(data, **given), range(number)))


def compressed(folder: pathlib.Path) -> bytes:
    """Return a compressed qcow2 image of a few chunks."""
    raw, packed = folder / "raw", folder / "packed"
    raw.write_bytes(uploads.some_bytes(chunks=8))
    runs.tool(["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, packed])
    return packed.read_bytes()


@contextlib.contextmanager
def on_a_terminal(conf: pathlib.Path, *words: str) -> Iterator[tuple[subprocess.Popen, list[str]]]:
    """Run the command on a terminal; yield it and its growing output."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 120))
    shown: list[str] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(ours, 1 << 16):
                shown.append(data.decode(errors="replace"))

    process = subprocess.Popen([*COMMAND, conf, *words], stdout=its, stderr=its)
    os.close(its)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield process, shown
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(ours)


@pytest.mark.nightly
def test_catalogue_preparation_shows_progress_and_resumes_after_a_stop(
    glance: uploads.Images, options: acstor_glance.Listener, tmp_path: pathlib.Path
) -> None:
    every = set(upload_many(glance, SERVED // 2, uploads.some_bytes(chunks=8)))
    packed = compressed(tmp_path)
    every |= set(upload_many(glance, SERVED // 2, packed, disk_format="qcow2"))
    with on_a_terminal(options.conf_file, "prepare") as (process, shown):
        runs.wait_for(
            lambda: "".join(shown).count("outcome prepared") >= SERVED // 4,
            3 * uploads.DEADLINE_S,
            "a part of the catalogue",
            lambda: "".join(shown),
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(uploads.DEADLINE_S) == 130
        said = "".join(shown)
    assert re.search(rf"images: +\d+%\|.*\| \d+/{SERVED} \[", said), said
    assert "stopped; completed work is kept" in said
    done = {one["acstor_image_id"] for one in glance.artefacts()}
    rows = uploads.manage(options, "prepare")
    assert {row["outcome"] for row in rows} == {"prepared"}
    rest = {row["image"] for row in rows}
    # An image published at the moment of the signal may not have been marked ready.
    assert rest | done == every and len(rest & done) <= 1
    assert len(rest) <= SERVED - SERVED // 4
    assert uploads.manage(options, "prepare") == []
    assert uploads.manage(options, "verify", sorted(every)[0])[0]["fault"] == ""
    counted = uploads.counted(options)
    assert {name: row["images"] for name, row in counted.items()} == {"served": SERVED}


def test_check_counts_all_images_by_the_reason_they_are_not_served(
    glance: uploads.Images, options: acstor_glance.Listener, tmp_path: pathlib.Path
) -> None:
    data, packed = uploads.some_bytes(chunks=8), compressed(tmp_path)
    base = tmp_path / "base"
    runs.tool(["qemu-img", "create", "-q", "-f", "raw", base, "1M"])
    backed = ["-f", "qcow2", "-F", "raw", "-b", str(base), "1M"]
    served = [
        glance.upload(data),
        glance.upload(packed, disk_format="qcow2"),
        glance.upload(data),
        glance.upload(data),
    ]
    glance.patch(served[2], visibility="community")
    glance.patch(served[3], os_hidden=True)
    differs, renamed = glance.upload(data), glance.upload(data)
    linked = glance.upload_unseen(packed, tool(tmp_path, "backed", *backed), disk_format="qcow2")
    misnamed = glance.upload(packed)
    uploads.manage(options, "prepare")
    glance.lab.mariadb.execute(
        f"UPDATE images SET os_hash_value = '{'0' * 128}' WHERE id = '{differs}'", database="glance"
    )
    glance.patch(glance.record(renamed)[artefacts.Kind.CHUNK_MAP.pointer], name="zzz")
    fresh = glance.upload(data)
    copied = glance.upload(data)
    glance.patch(copied, acstor_chunk_map=glance.record(served[0])["acstor_chunk_map"])
    disk = tool(tmp_path, "disk.vmdk", "-f", "vmdk", "1M")
    foreign = upload_many(glance, UNFIT, disk, disk_format="vmdk")
    expected = {
        "served": {*served, renamed},
        "record-differs": {differs},
        "refused:backing-file": {linked},
        "refused:format": {misnamed},
        "not-mapped": {fresh, copied},
        "disk-format:vmdk": set(foreign),
        "disk-format:vdi": {
            glance.upload(tool(tmp_path, "disk.vdi", "-f", "vdi", "1M"), disk_format="vdi")
        },
        "container-format:ova": {glance.upload(data, container_format="ova")},
        "not-active:queued": {glance.create().id},
    }
    rows = uploads.counted(options, PAGES)
    assert {name: row["images"] for name, row in rows.items()} == {
        name: len(images) for name, images in expected.items()
    }
    assert list(rows) == sorted(rows, key=lambda name: -rows[name]["images"])
    for name, row in rows.items():
        if name != "served":
            assert set(row["examples"]) <= expected[name]
            assert len(row["examples"]) == min(image_scan.MAX_EXAMPLES, len(expected[name]))
            assert row["message"]
    assert "for other bytes" in rows["record-differs"]["message"]
    # It cannot be repaired: Glance's hash is that of other data.
    uploads.manage(options, "prepare", differs, status=3)
    failed = uploads.counted(options, PAGES)["failed"]
    assert failed["examples"] == [differs]
    assert "the sha512 of its data differs" in failed["message"]


def test_count_shows_progress_and_reports_an_unreachable_glance(
    glance: uploads.Images, options: acstor_glance.Listener
) -> None:
    upload_many(glance, 3, uploads.some_bytes(chunks=8))
    with on_a_terminal(options.conf_file, "check") as (process, shown):
        process.wait(uploads.DEADLINE_S)
        runs.wait_for(
            lambda: "not-mapped" in "".join(shown), 10, "the counts", lambda: "".join(shown)
        )
    said = "".join(shown)
    assert re.search(r"images: +\d+ images \[", said), said
    assert re.search(r"reason not-mapped +images 3 +examples ", said), said
    away = acstor_glance.Listener(
        "away", glance.lab, options.conf_file.parent, endpoint_override="http://127.0.0.1:9"
    )
    away.configure()
    done = subprocess.run(
        [*COMMAND, away.conf_file, "check"],
        capture_output=True,
        text=True,
        timeout=uploads.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("acstor-glance-manage: list of images: ")
    assert "Traceback" not in done.stderr


def test_images_missing_in_the_store_are_counted_as_store_away(
    glance: uploads.Images, options: acstor_glance.Listener
) -> None:
    data = uploads.some_bytes(chunks=8)
    first, second = glance.upload(data), glance.upload(data)
    uploads.manage(options, "prepare")
    for image_id in (first, second):
        (glance.lab.glance.images / image_id).rename(glance.lab.glance.images / f"{image_id}.lost")
    [away] = uploads.counted(options).values()
    assert (away["reason"].partition(":")[0], away["images"]) == ("store-away", 2)
    assert "Glance answers 204" in away["message"]
    for path in glance.lab.glance.images.glob("*.lost"):
        path.rename(path.with_suffix(""))
    assert [row["images"] for row in uploads.counted(options).values()] == [2]
    assert "served" in uploads.counted(options)
