# SPDX-License-Identifier: Apache-2.0
"""Glance's inspection of uploads, and images that acstor accepts against it.

It follows ``ImageProxy.set_data`` in Glance's ``glance/location.py``, with its default options.
oslo.utils has the inspectors.
"""

import io
import pathlib
from typing import IO

from oslo_utils.imageutils import format_inspector

from acstor_glance.prepare import conversion
from acstor_glance.prepare import format_check

DISK_FORMATS = ("raw", "qcow2", *conversion.DRIVERS)
"""Disk formats of Glance whose images acstor serves or converts."""
_READ_BYTES = 1 << 20


def is_refused_by_glance(file: IO[bytes], disk_format: str) -> bool:
    """Return whether Glance refuses an upload; ``file`` is read to its end and closed."""
    wrapper = format_inspector.InspectWrapper(file)
    try:
        while wrapper.read(_READ_BYTES):
            pass
        wrapper.close()
        found = {str(inspector): inspector for inspector in wrapper.formats or ()}
        inspector = found["iso"] if found.keys() == {"iso", "gpt"} else wrapper.format
        if disk_format not in (str(inspector), "raw"):
            return True
        inspector.safety_check()  # type: ignore[union-attr]
    except Exception:  # Glance refuses an image if its inspection fails
        return True
    return False


def why_refused_by_acstor(path: pathlib.Path, disk_format: str) -> str:
    """Return why acstor's inspection refuses an image, "" if it accepts it."""
    with path.open("rb") as file:
        if disk_format in conversion.DRIVERS:
            return format_check.why_not_convertible(file, disk_format)
        head = file.read(format_check.INSPECTED_BYTES)
    if disk_format == "qcow2":
        return format_check.why_not_qcow2(head)
    return format_check.why_not_raw(head)


def find_milder(path: pathlib.Path) -> tuple[list[str], int]:
    """Return the disk formats that only Glance refuses, and the number it refuses."""
    refused = [name for name in DISK_FORMATS if is_refused_by_glance(path.open("rb"), name)]
    return [name for name in refused if not why_refused_by_acstor(path, name)], len(refused)


def is_head_refused(head: bytes, disk_format: str) -> bool:
    """Return whether Glance refuses these bytes."""
    return is_refused_by_glance(io.BytesIO(head), disk_format)
