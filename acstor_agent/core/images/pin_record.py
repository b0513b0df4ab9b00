# SPDX-License-Identifier: Apache-2.0
"""Which images this host has promised to keep whole, and the file that remembers it.

The one rule: promises are in the order in which they were made; what was promised first is kept.
"""

from collections.abc import Iterable

import msgspec

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.wire import control_wire

VERSION = 1


FillMode = control_wire.FillMode


class ImagePin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One image that is kept whole.

    What is as usual is not written: an agent that is older than a field reads all of the file
    that does without it.

    :param since_s: when it was promised, wall clock; only shown
    :param is_asked: an operator wants it kept, whether it is used or not
    :param is_for_others: only instances of other hosts use it, and this host keeps its share of it
    :param leased_until_s: until when others have asked for it, wall clock: of use after a restart
    :param deadline_s: of a hydrate, in seconds from the request; 0: as fast as possible
    :param due_at_s: the same deadline by the wall clock
    """

    image_id: str
    since_s: float
    is_asked: bool = False
    mode: FillMode = FillMode.NORMAL
    is_for_others: bool = False
    leased_until_s: float = 0.0
    deadline_s: control_wire.Deadline = 0.0
    due_at_s: float = 0.0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    images: list[ImagePin]


_decoder: msgspec.json.Decoder[_File] = msgspec.json.Decoder(_File)


def encode(promises: Iterable[ImagePin]) -> bytes:
    """Return the file of promises."""
    return msgspec.json.format(msgspec.json.encode(_File(VERSION, list(promises))), indent=1)


def decode(raw: bytes, what: str) -> dict[ids.ImageId, ImagePin]:
    """Return the promises of a file, in their order.

    :raises errors.FormatError: it is no such file
    """
    try:
        file = _decoder.decode(raw)
        if file.version != VERSION:
            raise errors.FormatError(what, 0, f"version {file.version} is unknown")
        return {ids.parse_image_id(one.image_id): one for one in file.images}
    except (ValueError, msgspec.DecodeError, RecursionError) as e:
        raise errors.FormatError(what, 0, f"not a pin file: {e}") from e
