# SPDX-License-Identifier: Apache-2.0
"""What an HTTP answer to a range request means (RFC 9110, sections 14 and 15).

Nothing that a server says is believed: the answer must be 206 with exactly the
range that was asked for, as it is stored.  What asking again may change becomes
SourceUnreachable, the rest ChunkMissing, or ChunkRefused where the blob may be there all the
same.  No I/O here.
"""

import dataclasses
import email.utils
import re
import urllib.parse
from collections.abc import Iterable
from typing import Protocol

from acstor_common import errors
from acstor_common.model import addresses

RETRY_AFTER_LIMIT_S = 5.0
"""The longest pause that a server can impose with Retry-After."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
_LENGTH = re.compile(r"\d{1,19}", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)
_PASSING = frozenset({408, 425, 429, *range(500, 600)})
_CERTAIN = frozenset({404, 410, 416})
"""These say that the blob, or that part of it, is not there; other refusals say who must act."""
_REASONS = {
    200: "the server does not do range requests (it answered 200 instead of 206). Use a server "
    "that does",
    401: "the server refuses our credentials (401). Correct them in the section of this source",
    403: "the server refuses access (403). Let the user of this source read the file",
    404: "there is no such blob (404)",
    410: "the blob is gone (410)",
    416: "the blob is shorter than asked (416)",
}


@dataclasses.dataclass(frozen=True, slots=True)
class RangeRequest:
    """One range request.

    :param what: the range in words
    :param where: the URL without credentials
    """

    what: str
    where: str
    offset: int
    length: int

    @property
    def header(self) -> str:
        """Value of the Range header."""
        return f"bytes={self.offset}-{self.offset + self.length - 1}"

    def permanent_error(self, why: str) -> errors.ChunkMissing:
        """Return the error for what asking again does not change."""
        return errors.ChunkMissing(self.what, self.where, why)

    def transient_error(self, why: str) -> errors.SourceUnreachable:
        """Return the error for what may pass."""
        return errors.SourceUnreachable(self.what, self.where, why)


class RangeRefused(errors.ChunkMissing):
    """The server's clear no.

    :param status: of its answer
    """

    def __init__(self, asked: RangeRequest, status: int) -> None:
        why = _REASONS.get(status, f"the server answered {status}. Look into its log")
        super().__init__(asked.what, asked.where, why)
        self.args = (asked, status)  # what it is made of: each of those who asked gets a copy
        self.asked, self.status = asked, status


class Withheld(RangeRefused, errors.SourceRefused):
    """A clear no which does not say that the blob is not there."""


class Ended(errors.ChunkMissing):
    """The server gives what there is of the range, because the blob ends before it does.

    :param length: bytes of the answer's body, 0 if they are not to be read
    """

    def __init__(self, asked: RangeRequest, size_bytes: int, length: int) -> None:
        super().__init__(asked.what, asked.where, f"the blob ends at byte {size_bytes}")
        self.args = (asked, size_bytes, length)  # see Refused
        self.length = length


class Headers:
    """Headers of an answer, by name in whatever case; one that comes twice has both values.

    :param pairs: names in lower case, and values

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
    """What has headers: an answer, or a test's dictionary."""

    def get(self, name: str, default: str, /) -> str:
        """Return a header's value."""


def check_answer(asked: RangeRequest, status: int, headers: HasHeaders) -> int | None:
    """Return the blob's size in bytes, None if the server does not say it.

    :raises errors.ChunkUnavailable: the body that follows is not the range that was asked for
    """
    if status != 206:
        raise refusal(asked, status)
    _check_encoding(asked, headers)
    announced = headers.get("Content-Length", str(asked.length))
    size_bytes = _check_content_range(asked, headers.get("Content-Range", ""), announced)
    if announced != str(asked.length):
        raise asked.transient_error(f"Content-Length is {announced[:40]!r}, not {asked.length}")
    return size_bytes


def check_whole(asked: RangeRequest, status: int, headers: HasHeaders, size_bytes: int) -> None:
    """Check the head of an answer that is a whole blob of ``size_bytes``.

    :raises errors.ChunkUnavailable: the body that follows is not that
    """
    if status != 200:
        raise refusal(asked, status)
    _check_encoding(asked, headers)
    announced = headers.get("Content-Length", str(size_bytes))
    if announced != str(size_bytes):
        why = f"the blob is of {size_bytes} bytes, and the server announces {announced[:40]!r}"
        raise errors.ChunkRefused(asked.what, asked.where, why)


def redirected(asked: RangeRequest, url: str, headers: HasHeaders, followed: int) -> str:
    """Return the URL that a redirect leads to.

    >>> asked = RangeRequest("a blob", "http://h/a", 0, 1)
    >>> redirected(asked, "http://h/a", {"Location": "//other/b?c"}, 0)
    'http://other/b?c'

    :param url: of the request that was answered so
    :param followed: redirects before this one
    :raises errors.SourceRefused: it is not followed
    """
    location = headers.get("Location", "")
    if not location:
        why = "it says not where to"
    elif followed >= MOST_REDIRECTS:
        why = f"{MOST_REDIRECTS} others led to it"
    else:
        try:
            target = urllib.parse.urljoin(url, location)
            if urllib.parse.urlsplit(target).scheme == urllib.parse.urlsplit(url).scheme:
                return target
            why = "it leads to a URL of another scheme"
        except ValueError:
            why = "it leads to what is no URL"
    raise _not_followed(asked, location, why)


def check_redirected(asked: RangeRequest, url: str, peer: str, first_peer: str) -> None:
    """Refuse a redirect to what only the agent's own host or link can reach.

    A web server in wrong hands would have agents ask services there, such as that of metadata.

    :param peer: the IP address that is asked by the redirect
    :param first_peer: that of the server that is configured, which may be such a one itself
    :raises errors.SourceRefused: it is not followed
    """
    kind = _kind_of(peer)
    if kind and kind != _kind_of(first_peer):
        raise _not_followed(asked, url, f"it leads to a {kind} address")


def _kind_of(peer: str) -> str:
    return "loopback" if addresses.is_loopback(peer) else addresses.why_unreachable(peer)


def _not_followed(asked: RangeRequest, location: str, why: str) -> errors.SourceRefused:
    shown = location.partition("?")[0][:200]  # what follows may be a signature
    why = (
        f"the server redirects to {shown!r}, which is not followed: {why}. Set the url of this "
        "source to where the files are"
    )
    return errors.SourceRefused(asked.what, asked.where, why)


def check_head(asked: RangeRequest, status: int, headers: HasHeaders) -> int:
    """Return the blob's size in bytes that the answer to a HEAD request tells.

    >>> check_head(RangeRequest("a blob", "http://h/a", 0, 0), 200, {"Content-Length": "10"})
    10

    :raises errors.ChunkUnavailable: it tells none
    """
    if status != 200:
        raise refusal(asked, status)
    _check_encoding(asked, headers)
    announced = headers.get("Content-Length", "")
    if not _LENGTH.fullmatch(announced):
        why = (
            "the server says how long the blob is neither in Content-Range nor to HEAD. Use a "
            "server that does"
        )
        raise errors.SourceRefused(asked.what, asked.where, why)
    return int(announced)


def is_of_empty_blob(status: int, headers: HasHeaders) -> bool:
    """Say whether this is how a server answers a range request for a blob of 0 bytes.

    >>> is_of_empty_blob(416, {"Content-Range": "bytes */0"})  # RFC 9110
    True
    >>> is_of_empty_blob(200, {"Content-Length": "0"})  # nginx
    True
    """
    if status == 416:
        return headers.get("Content-Range", "") == "bytes */0"
    return status == 200 and headers.get("Content-Length", "") == "0"


def pause_s(headers: HasHeaders) -> float:
    """Return for how long the server wants no requests, RETRY_AFTER_LIMIT_S at most.

    >>> pause_s({"Retry-After": "3"}), pause_s({"Retry-After": "86400"}), pause_s({})
    (3.0, 5.0, 0.0)
    """
    after = headers.get("Retry-After", "")
    if not after:
        return 0.0
    if _SECONDS.fullmatch(after):
        return min(float(after), RETRY_AFTER_LIMIT_S)
    try:
        # A date counts from the server's own clock, so that ours does not matter.
        stop, now = (email.utils.parsedate_to_datetime(d) for d in (after, headers.get("Date", "")))
        return min(max(0.0, (stop - now).total_seconds()), RETRY_AFTER_LIMIT_S)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def refusal(asked: RangeRequest, status: int) -> errors.ChunkUnavailable:
    """Return the error for an answer that is no success."""
    if status in _PASSING:
        return asked.transient_error(f"the server answered {status}")
    return (RangeRefused if status in _CERTAIN else Withheld)(asked, status)


def _check_encoding(asked: RangeRequest, headers: HasHeaders) -> None:
    coding = headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        why = (
            f"the server encodes the blob ({coding[:40]!r}) though asked not to. Switch that off "
            "for these files"
        )
        raise errors.SourceRefused(asked.what, asked.where, why)


def _check_content_range(asked: RangeRequest, text: str, announced: str) -> int | None:
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise asked.transient_error(f"the answer's Content-Range makes no sense: {text[:80]!r}")
    first, last = int(match[1]), int(match[2])
    size_bytes = None if match[3] == "*" else int(match[3])
    asked_last = asked.offset + asked.length - 1
    if first == asked.offset and last + 1 == size_bytes and last < asked_last:
        length = size_bytes - first
        raise Ended(asked, size_bytes, length if announced == str(length) else 0)
    if (first, last) != (asked.offset, asked_last) or (
        size_bytes is not None and size_bytes <= last
    ):
        raise asked.transient_error(f"asked for {asked.header}, the answer is {text!r}")
    return size_bytes
