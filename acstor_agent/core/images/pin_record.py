# SPDX-License-Identifier: Apache-2.0
"""The pin file: images to keep fully cached, oldest first: those stay if capacity is short."""

from collections.abc import Iterable

import msgspec

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire import control_wire

VERSION = 1


FillMode = control_wire.FillMode


class ImagePin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One pinned image; fields with defaults are not written, for agents that do not know them."""

    image_id: str
    since_s: float  # time of the pin, wall clock; informational
    is_operator_pin: bool = False  # pinned by an operator, whether it is used or not
    mode: FillMode = FillMode.NORMAL
    is_replica: bool = False  # only other hosts use it; this host keeps its share
    leased_until_s: float = 0.0  # end of other hosts' leases, wall clock, to survive a restart
    deadline_s: control_wire.Deadline = 0.0  # seconds from the request; 0: as fast as possible
    due_at_s: float = 0.0  # the same deadline, wall clock


class _PinFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    images: list[ImagePin]


_decoder: msgspec.json.Decoder[_PinFile] = msgspec.json.Decoder(_PinFile)


def encode(pins: Iterable[ImagePin]) -> bytes:
    """Return the bytes of the pin file."""
    return msgspec.json.format(msgspec.json.encode(_PinFile(VERSION, list(pins))), indent=1)


def decode(raw: bytes, what: str) -> dict[ids.ImageId, ImagePin]:
    """Return the pins of a file, in their order, or raise FormatError if it is not a pin file."""
    try:
        file = _decoder.decode(raw)
        if file.version != VERSION:
            raise errors.FormatError(what, 0, f"version {file.version} is unknown")
        return {ids.parse_image_id(record.image_id): record for record in file.images}
    except (ValueError, msgspec.DecodeError, RecursionError) as e:
        raise errors.FormatError(what, 0, f"not a pin file: {e}") from e
