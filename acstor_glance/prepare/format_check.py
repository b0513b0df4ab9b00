# SPDX-License-Identifier: Apache-2.0
"""Checks by oslo.utils, as Glance and Nova do, that an image has the format that Glance states.

A hypervisor that guesses formats would open the files that a qcow2 header names.
"""

import io
from typing import IO

from oslo_utils.imageutils import format_inspector

from acstor_common.formats import layout
from acstor_common.model import geometry

BACKING_FILE = "it has a backing file"
EXTERNAL_DATA = "it has an external data file"
_UNSAFE = {
    "backing_file": BACKING_FILE,
    "data_file": EXTERNAL_DATA,
    "unknown_features": "it has incompatible features that are not known",
}
RAW_FORMATS = frozenset({"raw", "gpt", "iso"})
"""Formats, as detected by oslo.utils, that a guest can read as raw."""

INSPECTED_BYTES = 1 * geometry.MIB


def parse_disk_format(name: str) -> layout.DiskFormat:
    """Return the format with Glance's name; all but qcow2 are read as raw."""
    is_qcow2 = name == layout.DiskFormat.QCOW2.glance_name
    return layout.DiskFormat.QCOW2 if is_qcow2 else layout.DiskFormat.RAW


def why_not_raw(head: bytes) -> str:
    """Return why an image is not raw, or unsafe by Glance's check; empty if neither.

    :param head: the first INSPECTED_BYTES of the image, or all of a smaller one
    """
    try:
        found = {str(inspector): inspector for inspector in _inspectors_of(head)}
        foreign = found.keys() - RAW_FORMATS
        # As in Glance, a bootable ISO may have an MBR that is no partition table.
        if not foreign and "iso" not in found:
            for inspector in found.values():
                inspector.safety_check()
    except format_inspector.SafetyCheckFailed as e:
        return f"its partition table is unsafe: {'; '.join(map(str, e.failures.values()))}"
    except Exception as e:  # oslo.utils raises any type: fuzzing found AttributeError
        return f"its format is unknown: the inspection raised {type(e).__name__}"
    if not foreign:
        return ""
    return f"its format is {' or '.join(sorted(foreign))}, but raw in Glance"


def why_not_qcow2(head: bytes) -> str:
    """Return why an image is no safe qcow2 by Glance's and Nova's check; empty if it is."""
    try:
        found = _inspectors_of(head)
        formats = {str(feature) for feature in found}
        if formats != {"qcow2"}:
            return f"its format is {' or '.join(sorted(formats))}, but qcow2 in Glance"
        found[0].safety_check()
    except format_inspector.SafetyCheckFailed as e:
        return "; ".join(_UNSAFE.get(name, str(why)) for name, why in e.failures.items())
    except Exception as e:  # as above
        return f"its format is unknown: the inspection raised {type(e).__name__}"
    return ""


def why_not_convertible(file: IO[bytes], disk_format: str) -> str:
    """Return why an image is unsafe to convert, else ""; reads ``file`` and closes it."""
    inspector = format_inspector.InspectWrapper(file)
    while inspector.read(geometry.MIB):
        pass
    try:
        inspector.close()
        found = list(inspector.formats or ())
        formats = {str(feature) for feature in found}
        if formats != {disk_format}:
            return f"its format is {' or '.join(sorted(formats))}, but {disk_format} in Glance"
        found[0].safety_check()
    except format_inspector.SafetyCheckFailed as e:
        return "; ".join(map(str, e.failures.values()))
    except Exception as e:  # as above
        return f"its format is unknown: the inspection raised {type(e).__name__}"
    return ""


def _inspectors_of(head: bytes) -> list[format_inspector.FileInspector]:
    inspector = format_inspector.InspectWrapper(io.BytesIO(head))
    while inspector.formats is None and inspector.read(64 * geometry.KIB):
        pass
    inspector.close()
    return list(inspector.formats or ())
