# SPDX-License-Identifier: Apache-2.0
"""Whether bytes that Glance calls raw are a disk that a guest can read as it is.

Glance accepts a qcow2 file under the name raw, and a hypervisor that guesses
formats would follow the files that its header names.  The one rule: such an image
is never served.
"""

import io

from oslo_utils.imageutils import format_inspector

from acstor_common import geometry

RAW_FORMATS = frozenset({"raw", "gpt", "iso"})
"""What oslo.utils may call an image that a guest can read as it is."""

INSPECTED_BYTES = 1 * geometry.MIB


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
    return f"its format is {' or '.join(sorted(foreign))}, but images are served raw"


def _formats_of(head: bytes) -> set[str]:
    """Return what an image that begins with ``head`` may be, in the words of Glance."""
    inspector = format_inspector.InspectWrapper(io.BytesIO(head))
    while inspector.formats is None and inspector.read(64 * geometry.KIB):
        pass
    inspector.close()
    return {str(found) for found in inspector.formats or ()}
