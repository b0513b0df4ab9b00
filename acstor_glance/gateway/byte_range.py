# SPDX-License-Identifier: Apache-2.0
"""Parses the Range header (RFC 9110, section 14): one bounded range. No I/O."""

import http
import re
from typing import NamedTuple

from acstor_glance.gateway import http_errors

_UNIT = "bytes"
_RANGE = re.compile(r"\s*(\d{0,99})-(\d{0,99})\s*", re.ASCII)


class ByteRange(NamedTuple):
    """A range of bytes of an image."""

    offset: int
    length: int

    def content_range(self, size_bytes: int) -> str:
        """Return the value of the Content-Range header."""
        return f"bytes {self.offset}-{self.offset + self.length - 1}/{size_bytes}"


def is_ignored(header: str) -> bool:
    """Return whether a Range header means the whole image: no unit of ours, or several ranges.

    >>> is_ignored(""), is_ignored("items=0-9"), is_ignored("bytes=0-1,3-4"), is_ignored("bytes=9")
    (True, True, True, False)
    """
    unit, separator, ranges = header.partition("=")
    return not separator or unit.strip().lower() != _UNIT or "," in ranges


def parse(header: str, size_bytes: int, max_bytes: int) -> ByteRange:
    """Parse a Range header, and clip its end to the image of ``size_bytes``; ignored: all of it.

    >>> parse("bytes=0-9", 4096, 100), parse("bytes=4090-9999", 4096, 100)
    (ByteRange(offset=0, length=10), ByteRange(offset=4090, length=6))
    >>> parse("bytes=4000-", 4096, 100), parse("bytes=-10", 4096, 100)
    (ByteRange(offset=4000, length=96), ByteRange(offset=4086, length=10))

    :raises http_errors.HttpError: it is malformed, outside the image, or too long
    """
    ranges = "0-" if is_ignored(header) else header.partition("=")[2]
    match = _RANGE.fullmatch(ranges)
    if match is None or not (match[1] or match[2]):
        raise http_errors.HttpError(
            http.HTTPStatus.BAD_REQUEST, "specify a range, such as Range: bytes=0-1048575"
        )
    if match[1]:
        first = int(match[1])
        last = int(match[2]) if match[2] else size_bytes - 1
    else:
        first, last = max(0, size_bytes - int(match[2])), size_bytes - 1
    last = min(last, size_bytes - 1)
    if last < first:
        raise http_errors.HttpError(
            http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            f"the image has {size_bytes} bytes",
            {"Content-Range": f"bytes */{size_bytes}"},
        )
    if last - first >= max_bytes:
        raise http_errors.HttpError(
            http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"request {max_bytes} bytes at most",
        )
    return ByteRange(first, last - first + 1)
