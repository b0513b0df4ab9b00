# SPDX-License-Identifier: Apache-2.0
"""QEMU's iotests: runs each as QEMU does, and judges each image that it makes.

It runs only shell scripts without virtual machine, NBD server and injected faults, whose images
are those of qemu-img and qemu-io.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from acstor_glance.prepare import conversion
from tests.outside import capture
from tests.outside import judge

DEADLINE_S = 600  # of an iotest, which takes 5 s on an idle machine
TOOLS = ("qemu-img", "qemu-io", "qemu-nbd", "qemu-storage-daemon", "qemu-system-x86_64")
CAPTURED = ("qemu-img", "qemu-io")
FORMATS = {"qcow2": "qcow2", **{driver: name for name, driver in conversion.DRIVERS.items()}}
"""Disk formats of Glance, by QEMU's names; acstor converts all but qcow2."""
_SUPPORTED, _UNSUPPORTED = "^_supported_fmt", "^_unsupported_fmt"
_MACHINES = re.compile(
    r"common\.qemu|_launch_qemu|run_qemu|QEMU_NBD|qemu-nbd|_nbd_server|QSD|\$QEMU |\$QEMU_PROG"
    r"|blkdebug"
)
_VARIABLES = {
    "qemu-img": "QEMU_IMG_PROG",
    "qemu-io": "QEMU_IO_PROG",
    "qemu-nbd": "QEMU_NBD_PROG",
    "qemu-storage-daemon": "QSD_PROG",
    "qemu-system-x86_64": "QEMU_PROG",
}


class Result(NamedTuple):
    """An iotest: its status in QEMU (``pass``, ``fail``, ``not run``), and its images."""

    name: str
    status: str
    rows: list[judge.Row]


def choose_tests(iotests: pathlib.Path, image_format: str) -> tuple[list[str], int]:
    """Return the iotests' names that run here for a format, and the number of all."""
    every = sorted(path for path in iotests.glob("[0-9][0-9][0-9]") if path.is_file())
    chosen = []
    for path in every:
        text = path.read_text(errors="replace")
        is_shell = "bash" in text.partition("\n")[0]
        is_for = _names(_SUPPORTED, text) & {image_format, "generic"}
        is_not_for = image_format in _names(_UNSUPPORTED, text)
        if is_shell and is_for and not is_not_for and not _MACHINES.search(text):
            chosen.append(path.name)
    return chosen, len(every)


def _names(command: str, text: str) -> set[str]:
    found = re.search(rf"{command}\b(.*)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def run_test(iotests: pathlib.Path, name: str, image_format: str, kept: pathlib.Path) -> Result:
    """Run an iotest and judge its images; copy those with a fault to ``kept``."""
    disk_format = FORMATS[image_format]
    prepare = (
        judge.prepare_qcow2 if disk_format == "qcow2" else judge.prepare_converted(disk_format)
    )
    with tempfile.TemporaryDirectory(prefix="acstor-io-") as work:
        folder = pathlib.Path(work)
        into, tools = folder / "images", folder / "tools"
        into.mkdir()
        tools.mkdir()
        for tool in CAPTURED:
            shutil.copyfile(capture.__file__, tools / tool)
            script = f'#!/bin/sh\nexec "{sys.executable}" -IS "{tools / tool}" "$@"\n'
            (tools / f"run-{tool}").write_text(script)
            (tools / f"run-{tool}").chmod(0o755)
        status = _run(iotests, [f"-{image_format}", name], folder)
        images = sorted(into.glob("*.*"), key=lambda path: path.stat().st_mtime_ns)
        rows = [
            judge.judge_image(f"{name}, {image_format} {number}", image, image_format, prepare)
            for number, image in enumerate(images)
        ]
        for row, image in zip(rows, images, strict=True):
            if row.verdict.is_fault:
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(image, kept / f"iotest-{name}-{image.name}")
        if (into / "too-large").exists():
            rows.append(judge.Row(f"{name}, others", "large files", "", judge.Verdict.NOT_COMPARED))
    return Result(name, status, rows)


def _run(iotests: pathlib.Path, words: list[str], folder: pathlib.Path) -> str:
    """Run QEMU's runner of iotests; return the status."""
    tools = folder / "tools"
    programs = {_VARIABLES[tool]: str(capture.TOOLS / tool) for tool in TOOLS}
    programs |= {_VARIABLES[tool]: str(tools / f"run-{tool}") for tool in CAPTURED}
    environment = {
        "PATH": os.environ["PATH"],
        "TEST_DIR": str(folder / "t"),
        "SOCK_DIR": str(folder / "s"),
        "CAPTURE_INTO": str(folder / "images"),
        **programs,
    }
    process = subprocess.Popen(
        [sys.executable, "check", *words],
        cwd=iotests,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        said = "no end"
    finally:
        _end_group(process)
    found = re.search(
        rf"^{words[-1]} .*?\b(pass|fail|not run)\b", said.replace("\r", "\n"), re.MULTILINE
    )
    return found[1] if found else "no end"


def _end_group(process: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()
