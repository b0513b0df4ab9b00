# SPDX-License-Identifier: Apache-2.0
"""QEMU's sample images, each in its own disk format of Glance and as raw."""

import bz2
import pathlib
import tempfile
from collections.abc import Iterator

from acstor_glance.prepare import conversion
from tests.outside import judge

FORMATS = {
    **{suffix: suffix for suffix in conversion.DRIVERS},
    "img": "vhd",  # afl5.img, by iotest 135
}
"""Disk formats of Glance that acstor converts, by suffix."""
MAX_BYTES = 256 << 20


def judge_samples(iotests: pathlib.Path) -> Iterator[judge.Row]:
    """Judge all sample images."""
    for packed in sorted((iotests / "sample_images").glob("*.bz2")):
        with tempfile.TemporaryDirectory(prefix="acstor-samples-") as work:
            image = pathlib.Path(work) / packed.stem
            image.write_bytes(bz2.BZ2Decompressor().decompress(packed.read_bytes(), MAX_BYTES))
            disk_format = FORMATS.get(image.suffix.removeprefix("."))
            if disk_format:
                yield judge.judge_image(
                    f"{image.name} as {disk_format}",
                    image,
                    conversion.DRIVERS[disk_format],
                    judge.prepare_converted(disk_format),
                )
            yield judge.judge_image(f"{image.name} as raw", image, "raw", judge.prepare_raw)
            yield judge.judge_image(f"{image.name} as qcow2", image, "qcow2", judge.prepare_qcow2)
