# SPDX-License-Identifier: Apache-2.0
"""Limits of the bytes that a job makes, by the stored and the sent bytes."""

import http
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

from acstor_glance.gateway import http_errors
from acstor_glance.gateway.flatten import merge_plan
from acstor_glance.prepare import preparation_budget

_REMEDY = "upload the complete image, or as qcow2 instead of raw"


class FlattenLimits(NamedTuple):
    """Limits of the backing image's data, and of the resulting file."""

    base_bytes: int
    file_bytes: int

    @property
    def longest_s(self) -> float:
        """Time limit of the job."""
        return preparation_budget.SPARE_S + self.file_bytes / preparation_budget.SLOWEST_BYTES_S


def limits_for(
    base_file_bytes: int, base_disk_bytes: int, delta_bytes: int, ratio: int
) -> FlattenLimits:
    """Return the limits for a backing image and a delta.

    >>> limits_for(224 << 10, 2 << 40, 160, 64).file_bytes >> 20  # an empty file of a 2 TiB disk
    512

    :param ratio: decoded bytes per stored byte (``max_expansion_ratio``)
    """
    of_base = _decoded(base_file_bytes, ratio)
    return FlattenLimits(min(base_disk_bytes, of_base), of_base + _decoded(delta_bytes, ratio))


def _decoded(stored_bytes: int, ratio: int) -> int:
    return max(stored_bytes * ratio, preparation_budget.SPARE_BYTES)


def bounded_pieces(
    pieces: Iterable[merge_plan.DiskPiece], bounds: FlattenLimits
) -> Iterator[merge_plan.DiskPiece]:
    """Yield pieces of a disk; HttpError if the backing image exceeds its limit."""
    left = bounds.base_bytes
    for piece in pieces:
        if piece.extent is not None:
            left -= piece.length
            if left < 0:
                words = f"the base decodes to more than {bounds.base_bytes} bytes: {_REMEDY}"
                raise _too_large(words)
        yield piece


def check_file(file_bytes: int, bounds: FlattenLimits, quota_bytes: int | None) -> None:
    """Check the resulting file's length before the upload; raises HttpError."""
    if file_bytes > bounds.file_bytes:
        raise _too_large(
            f"the image would have {file_bytes} bytes, and its base and delta allow "
            f"{bounds.file_bytes}: {_REMEDY}"
        )
    if quota_bytes is not None and file_bytes > quota_bytes:
        raise _too_large(
            f"the image would have {file_bytes} bytes, and the project's quota leaves {quota_bytes}"
        )


def _too_large(words: str) -> http_errors.HttpError:
    return http_errors.HttpError(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
