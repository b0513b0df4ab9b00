# SPDX-License-Identifier: Apache-2.0
"""Checks HTTP responses to range requests (RFC 9110, 14 and 15), without I/O.

The response must be 206 with exactly the requested range, unencoded. Transient failures become
SourceUnreachable, others ChunkMissing, or ChunkRefused if the blob may exist.
"""

import dataclasses
import email.utils
import re
import urllib.parse
from collections.abc import Iterable
from typing import Protocol

from acstor_common import errors
from acstor_common.model import addresses

RETRY_AFTER_LIMIT_S = 5.0  # the longest pause that Retry-After can impose
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 5

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
_LENGTH = re.compile(r"\d{1,19}", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)
_PASSING = frozenset({408, 425, 429, *range(500, 600)})
_CERTAIN = frozenset({404, 410, 416})
"""The blob or the range does not exist; other refusals need an operator."""
_REASONS = {
    200: "the server does not do range requests (it answered 200 instead of 206). Use a server "
    "that does",
    401: "the server refuses our credentials (401). Correct them in the section of this source",
    403: "the server refuses access (403). Let the user of this source read the file",
    404: "there is no such blob (404)",
    410: "the blob is gone (410)",
    416: "the blob is shorter than requested (416)",
}


@dataclasses.dataclass(frozen=True, slots=True)
class RangeRequest:
    """One range request."""

    what: str  # the range in words
    where: str  # the URL without credentials
    offset: int
    length: int

    @property
    def header(self) -> str:
        """Value of the Range header."""
        return f"bytes={self.offset}-{self.offset + self.length - 1}"

    def transient_error(self, why: str) -> errors.SourceUnreachable:
        """Return the error for a transient failure."""
        return errors.SourceUnreachable(self.what, self.where, why)


class RangeRefused(errors.ChunkMissing):
    """The server's definite refusal, with its status."""

    def __init__(self, range_request: RangeRequest, status: int) -> None:
        why = _REASONS.get(status, f"the server answered {status}. See its log")
        super().__init__(range_request.what, range_request.where, why)
        self.args = (range_request, status)  # constructor arguments, for copies
        self.range_request, self.status = range_request, status


class AccessRefused(RangeRefused, errors.SourceRefused):
    """A refusal that does not mean that the blob is missing."""


class RangeTruncated(errors.ChunkMissing):
    """The blob ends within the requested range."""

    def __init__(self, range_request: RangeRequest, size_bytes: int, length: int) -> None:
        super().__init__(
            range_request.what, range_request.where, f"the blob ends at byte {size_bytes}"
        )
        self.args = (range_request, size_bytes, length)  # see RangeRefused
        self.length = length  # of the body; 0: do not read it


class Headers:
    """Headers of a response by case-insensitive name; repeated ones are joined.

    >>> Headers([(b"etag", b"a"), (b"etag", b"b")]).get("ETag")
    'a, b'
    """

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw: dict[bytes, bytes] = {}
        for name, value in pairs:
            before = self._raw.get(name)
            self._raw[name] = value if before is None else b"%s, %s" % (before, value)

    def get(self, name: str, default: str = "", /) -> str:
        """Return a header's value."""
        value = self._raw.get(name.lower().encode("latin-1"))
        return default if value is None else value.decode("latin-1")


class HasHeaders(Protocol):
    """Has headers: a response, or a test's dictionary."""

    def get(self, name: str, default: str, /) -> str:
        """Return a header's value."""


def check_range_response(
    range_request: RangeRequest, status: int, headers: HasHeaders
) -> int | None:
    """Return the blob's size in bytes, None if not stated, or raise ChunkUnavailable."""
    if status != 206:
        raise status_error(range_request, status)
    _check_encoding(range_request, headers)
    announced = headers.get("Content-Length", str(range_request.length))
    size_bytes = _check_content_range(range_request, headers.get("Content-Range", ""), announced)
    if announced != str(range_request.length):
        raise range_request.transient_error(
            f"Content-Length is {announced[:40]!r}, not {range_request.length}"
        )
    return size_bytes


def check_full_response(
    range_request: RangeRequest, status: int, headers: HasHeaders, size_bytes: int
) -> None:
    """Raise ChunkUnavailable if a response is not a whole blob of ``size_bytes``."""
    if status != 200:
        raise status_error(range_request, status)
    _check_encoding(range_request, headers)
    announced = headers.get("Content-Length", str(size_bytes))
    if announced != str(size_bytes):
        why = f"the blob has {size_bytes} bytes, but the server announces {announced[:40]!r}"
        raise errors.ChunkRefused(range_request.what, range_request.where, why)


def redirect_target(
    range_request: RangeRequest, url: str, headers: HasHeaders, followed: int
) -> str:
    """Return the URL that a redirect leads to.

    >>> request = RangeRequest("a blob", "http://h/a", 0, 1)
    >>> redirect_target(request, "http://h/a", {"Location": "//other/b?c"}, 0)
    'http://other/b?c'

    :param followed: redirects before this one
    :raises errors.SourceRefused: it is not followed
    """
    location = headers.get("Location", "")
    if not location:
        why = "it has no Location"
    elif followed >= MAX_REDIRECTS:
        why = f"it follows {MAX_REDIRECTS} others"
    else:
        try:
            target = urllib.parse.urljoin(url, location)
            if urllib.parse.urlsplit(target).scheme == urllib.parse.urlsplit(url).scheme:
                return target
            why = "it leads to a URL of another scheme"
        except ValueError:
            why = "it leads to an invalid URL"
    raise _not_followed(range_request, location, why)


def check_redirect_target(
    range_request: RangeRequest, url: str, peer: str, first_peer: str
) -> None:
    """Raise SourceRefused for a redirect to addresses that only this host or its link can reach.

    A compromised server could make agents request internal services, such as metadata.
    ``first_peer``, the configured server, may be internal itself.
    """
    kind = _kind_of(peer)
    if kind and kind != _kind_of(first_peer):
        raise _not_followed(range_request, url, f"it leads to a {kind} address")


def _kind_of(peer: str) -> str:
    return "loopback" if addresses.is_loopback(peer) else addresses.why_unreachable(peer)


def _not_followed(range_request: RangeRequest, location: str, why: str) -> errors.SourceRefused:
    shown = location.partition("?")[0][:200]  # the query may be a signature
    why = (
        f"the server redirects to {shown!r}, which is not followed: {why}. Set the url of this "
        "source to where the files are"
    )
    return errors.SourceRefused(range_request.what, range_request.where, why)


def check_head_response(range_request: RangeRequest, status: int, headers: HasHeaders) -> int:
    """Return the blob's size in bytes from the response to HEAD, or raise ChunkUnavailable.

    >>> request = RangeRequest("a blob", "http://h/a", 0, 0)
    >>> check_head_response(request, 200, {"Content-Length": "10"})
    10
    """
    if status != 200:
        raise status_error(range_request, status)
    _check_encoding(range_request, headers)
    announced = headers.get("Content-Length", "")
    if not _LENGTH.fullmatch(announced):
        why = (
            "the server reports the size of the blob neither in Content-Range nor to HEAD. Use a "
            "server that does"
        )
        raise errors.SourceRefused(range_request.what, range_request.where, why)
    return int(announced)


def is_empty_blob(status: int, headers: HasHeaders) -> bool:
    """Return whether this is the response to a range request for an empty blob.

    >>> is_empty_blob(416, {"Content-Range": "bytes */0"})  # RFC 9110
    True
    >>> is_empty_blob(200, {"Content-Length": "0"})  # nginx
    True
    """
    if status == 416:
        return headers.get("Content-Range", "") == "bytes */0"
    return status == 200 and headers.get("Content-Length", "") == "0"


def retry_after_s(headers: HasHeaders) -> float:
    """Return the seconds that the server asks to wait, RETRY_AFTER_LIMIT_S at most.

    >>> retry_after_s({"Retry-After": "3"}), retry_after_s({"Retry-After": "86400"})
    (3.0, 5.0)
    """
    after = headers.get("Retry-After", "")
    if not after:
        return 0.0
    if _SECONDS.fullmatch(after):
        return min(float(after), RETRY_AFTER_LIMIT_S)
    try:
        # A date counts from the server's clock.
        stop, now = (email.utils.parsedate_to_datetime(d) for d in (after, headers.get("Date", "")))
        return min(max(0.0, (stop - now).total_seconds()), RETRY_AFTER_LIMIT_S)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def status_error(range_request: RangeRequest, status: int) -> errors.ChunkUnavailable:
    """Return the error for a response without success."""
    if status in _PASSING:
        return range_request.transient_error(f"the server answered {status}")
    return (RangeRefused if status in _CERTAIN else AccessRefused)(range_request, status)


def _check_encoding(range_request: RangeRequest, headers: HasHeaders) -> None:
    coding = headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        why = (
            f"the server encodes the blob ({coding[:40]!r}) though asked not to. Disable that "
            "for these files"
        )
        raise errors.SourceRefused(range_request.what, range_request.where, why)


def _check_content_range(range_request: RangeRequest, text: str, announced: str) -> int | None:
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise range_request.transient_error(f"the answer's Content-Range is invalid: {text[:80]!r}")
    first, last = int(match[1]), int(match[2])
    size_bytes = None if match[3] == "*" else int(match[3])
    asked_last = range_request.offset + range_request.length - 1
    if first == range_request.offset and last + 1 == size_bytes and last < asked_last:
        length = size_bytes - first
        raise RangeTruncated(range_request, size_bytes, length if announced == str(length) else 0)
    if (first, last) != (range_request.offset, asked_last) or (
        size_bytes is not None and size_bytes <= last
    ):
        raise range_request.transient_error(
            f"asked for {range_request.header}, the answer is {text!r}"
        )
    return size_bytes
