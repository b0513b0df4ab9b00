# SPDX-License-Identifier: Apache-2.0
"""Whether the bytes of an image are of the format that Glance calls them.

Glance accepts a qcow2 file under the name raw, and a hypervisor that guesses
formats would follow the files that its header names.  Such an image is never
served.

oslo.utils decides, as it does in Glance and Nova.
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
"""What oslo.utils finds unsafe, in words for operators."""
RAW_FORMATS = frozenset({"raw", "gpt", "iso"})
"""What oslo.utils may call an image that a guest can read as it is."""

INSPECTED_BYTES = 1 * geometry.MIB


def format_named(name: str) -> layout.DiskFormat:
    """Return the format that Glance calls ``name``; what is not read as qcow2 is read as raw.

    >>> format_named("qcow2").name, format_named("raw").name
    ('QCOW2', 'RAW')
    """
    is_qcow2 = name == layout.DiskFormat.QCOW2.glance_name
    return layout.DiskFormat.QCOW2 if is_qcow2 else layout.DiskFormat.RAW


def why_not_raw(head: bytes) -> str:
    """Say why an image that begins with ``head`` is not raw; empty if it is.

    :param head: the first INSPECTED_BYTES of the image, or all of a smaller one
    """
    try:
        foreign = _formats_of(head) - RAW_FORMATS
    except Exception as e:  # the library has no family of errors: fuzzing it found AttributeError
        return f"its format cannot be told: inspecting it ended in {type(e).__name__}"
    if not foreign:
        return ""
    return f"its format is {' or '.join(sorted(foreign))}, but Glance says raw"


def why_not_qcow2(head: bytes) -> str:
    """Say why an image that begins with ``head`` is not a safe qcow2 file; empty if it is.

    Glance checks an upload in the same way, and Nova a download before it converts it.  So nothing
    is served that they would refuse: of oslo.utils 10.2 these are also files with subclusters
    (extended L2 entries), a feature that it does not know.

    :param head: the first INSPECTED_BYTES of the image, or all of a smaller one
    """
    try:
        found = _inspectors_of(head)
        formats = {str(one) for one in found}
        if formats != {"qcow2"}:
            return f"its format is {' or '.join(sorted(formats))}, but Glance says qcow2"
        found[0].safety_check()
    except format_inspector.SafetyCheckFailed as e:
        return "; ".join(_UNSAFE.get(name, str(why)) for name, why in e.failures.items())
    except Exception as e:  # as above
        return f"its format cannot be told: inspecting it ended in {type(e).__name__}"
    return ""


def why_not_convertible(file: IO[bytes], disk_format: str) -> str:
    """Say why an image is not safe to convert from a format; empty if it is.

    :param file: all of it is read, for the ends of some formats count as well, and closed
    :param disk_format: as Glance calls it
    :raises OSError: it cannot be read
    """
    inspector = format_inspector.InspectWrapper(file)
    while inspector.read(geometry.MIB):
        pass
    try:
        inspector.close()
        found = list(inspector.formats or ())
        formats = {str(one) for one in found}
        if formats != {disk_format}:
            return f"its format is {' or '.join(sorted(formats))}, but Glance says {disk_format}"
        found[0].safety_check()
    except format_inspector.SafetyCheckFailed as e:
        return "; ".join(map(str, e.failures.values()))
    except Exception as e:  # as above
        return f"its format cannot be told: inspecting it ended in {type(e).__name__}"
    return ""


def _formats_of(head: bytes) -> set[str]:
    """Return what an image that begins with ``head`` may be, in the words of Glance."""
    return {str(found) for found in _inspectors_of(head)}


def _inspectors_of(head: bytes) -> list[format_inspector.FileInspector]:
    inspector = format_inspector.InspectWrapper(io.BytesIO(head))
    while inspector.formats is None and inspector.read(64 * geometry.KIB):
        pass
    inspector.close()
    return list(inspector.formats or ())
