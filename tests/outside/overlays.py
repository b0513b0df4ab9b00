# SPDX-License-Identifier: Apache-2.0
"""acstor's deltas and flattened images of an overlay, compared with QEMU."""

import pathlib

from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_glance.prepare import image_file
from tests.fakes import changed_disks
from tests.outside import bounded

MAX_BYTES = 256 << 20
WRITES = ("write -P 77 0 1536", "write -z 4096 8192", "write -P 78 -q 24576 512")


def find_flatten_difference(image: pathlib.Path, folder: pathlib.Path) -> str:
    """Flatten QEMU's writes over an image; return a difference in QEMU's view of it.

    :param image: a qcow2 file that acstor serves
    """
    overlay, flat = folder / "overlay", folder / "flat"
    words: list[object] = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", image]
    done = bounded.run([*words, "-F", "qcow2", overlay], MAX_BYTES)
    if done.status:
        return f"QEMU makes no overlay: {done.said}"
    writes: list[object] = ["qemu-io", "-f", "qcow2", "-t", "unsafe"]
    for command in WRITES:
        writes += ["-c", command]
    bounded.run([*writes, overlay], MAX_BYTES)  # a short disk rejects some of them
    with image_file.open_image(overlay) as changed, image_file.open_image(image) as base:
        disk = qcow2.Qcow2(changed, may_have_backing=True)
        stream = changed_disks.stream_of(disk)
        changed_disks.write(flat, changed_disks.compose(stream, qcow2.Qcow2(base), "qcow2"))
    return _difference(_read(overlay, folder), _read(flat, folder))


def find_reader_difference(image: pathlib.Path, folder: pathlib.Path) -> str:
    """Return a difference to QEMU's view of an image that only the inspection refuses."""
    with image_file.open_image(image) as source:
        try:
            disk = qcow2.Qcow2(source, MAX_BYTES)
        except qcow2_header.Refused:
            return ""
        data = bytearray(disk.virtual_size)
        disk.read_into(memoryview(data), 0)
    return _difference(_read(image, folder), bytes(data))


def _read(image: pathlib.Path, folder: pathlib.Path, driver: str = "qcow2") -> bytes:
    raw = folder / "read"
    why = bounded.why_not_converted(image, driver, raw, MAX_BYTES)
    if why:
        raise RuntimeError(f"{image.name}: {why}")
    return raw.read_bytes()


def _difference(expected: bytes, got: bytes) -> str:
    if len(expected) != len(got):
        return f"{len(got)} bytes, and QEMU's have {len(expected)}"
    if expected == got:
        return ""
    at = next(at for at in range(len(expected)) if expected[at] != got[at])
    return f"byte {at} of the flat disk"
