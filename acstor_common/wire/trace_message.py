# SPDX-License-Identifier: Apache-2.0
"""Message with a boot trace, from an agent to listeners that prepare images; names are stable."""

from typing import Annotated

import msgspec

from acstor_common.image import boot_trace
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.model import text_constraints

TOPIC = "acstor-glance"
BOOT_TRACED = "boot_traced"
MAX_CHUNKS = 16384  # chunks in one message: 1 GiB of 64 KiB chunks

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class BootTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks that one guest read while it booted, in order of first touch; signed by ``host``."""

    host: Annotated[str, msgspec.Meta(max_length=255)]
    image_id: Annotated[str, msgspec.Meta(max_length=36)]
    size_bytes: _Count
    chunk_bytes: _Count
    trace: Annotated[tuple[_Count, ...], msgspec.Meta(min_length=1, max_length=MAX_CHUNKS)]
    recorded_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    profile: text_constraints.OptionalHex32 = ""

    @property
    def profile_key(self) -> ids.ProfileKey:
        """The key of the guest's profile, whose hex is ``profile``."""
        return ids.ProfileKey(bytes.fromhex(self.profile))

    def __post_init__(self) -> None:
        ids.parse_host_id(self.host)
        ids.parse_image_id(self.image_id)
        cut = geometry.Geometry(self.size_bytes, self.chunk_bytes)
        if why := boot_trace.why_invalid(self.trace, cut.chunk_count):
            raise ValueError(f"no boot trace: {why}")
