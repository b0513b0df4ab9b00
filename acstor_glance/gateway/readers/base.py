# SPDX-License-Identifier: Apache-2.0
"""Base of range readers, and their errors, which contain no location (passwords)."""

import abc
import dataclasses
import http
import re
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_glance.gateway import byte_range

_CONTENT_RANGE = re.compile(r"(?i:bytes) (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_MD5 = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclasses.dataclass(eq=False)
class StoreFault(errors.AcstorError):
    """A failed read of a store, with the HTTP status for the client."""

    status = http.HTTPStatus.CONFLICT
    fault = "not_read"
    store: str
    why: str
    text = "store {store}: {why}"


class RangesUnsupported(StoreFault):
    """The object cannot be read in ranges."""


class ObjectMissing(StoreFault):
    """The store has no such object."""

    fault = "absent"


class ContentMismatch(StoreFault):
    """The object differs from Glance's record."""

    fault = "other_bytes"


class StoreUnreachable(StoreFault):
    """The store does not answer, or wrongly."""

    status = http.HTTPStatus.BAD_GATEWAY
    fault = "unreachable"


class CredentialsRefused(StoreFault):
    """The store refuses the credentials in ``glance-api.conf``."""

    status = http.HTTPStatus.BAD_GATEWAY
    fault = "credentials"


class ObjectRange(NamedTuple):
    """A range of an object; size and MD5 (hexadecimal or empty) are the object's."""

    data: bytes
    size_bytes: int
    md5: str = ""


class Reader(abc.ABC):
    """Reads ranges of the objects of one store; thread-safe."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def read(self, location: Any, requested: byte_range.ByteRange) -> ObjectRange:
        """Read a range of the object at a ``StoreLocation``; raises StoreFault."""

    def parse_response(
        self, requested: byte_range.ByteRange, content_range: str, data: bytes, md5: str = ""
    ) -> ObjectRange:
        """Return the range from an HTTP answer; StoreUnreachable if it is another."""
        match = _CONTENT_RANGE.fullmatch(content_range.strip())
        wanted = (requested.offset, requested.offset + requested.length - 1)
        if match is None or (int(match[1]), int(match[2])) != wanted:
            got = content_range[:80]
            raise StoreUnreachable(self.name, f"bytes {wanted} were requested, it returned {got!r}")
        if len(data) != requested.length:
            raise StoreUnreachable(
                self.name, f"its answer ended after {len(data)} of {requested.length} bytes"
            )
        digits = md5.strip('"').lower()
        return ObjectRange(data, int(match[3]), digits if _MD5.fullmatch(digits) else "")

    def status_error(self, status: object, words: str) -> StoreFault:
        """Return the error for an unsuccessful HTTP answer."""
        if status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.GONE):
            return ObjectMissing(self.name, "it has no such object")
        if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return ContentMismatch(self.name, "its object is shorter than in Glance's record")
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            return CredentialsRefused(self.name, f"it refuses the credentials ({words})")
        return StoreUnreachable(self.name, words)
