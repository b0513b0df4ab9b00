# SPDX-License-Identifier: Apache-2.0
"""What reads parts of the objects of one store, and how it fails.

glance_store has the options, the credentials and what a location means; most of its drivers read
whole objects alone, so the reading is ours.  The one rule: no error has a location in it, for some
stores put passwords there.
"""

import abc
import http
import re
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_glance.gateway import byte_range

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_MD5 = re.compile(r"[0-9a-f]{32}", re.ASCII)


class StoreFault(errors.AcstorError):
    """A store does not give the bytes; the status says who can do something.

    :param store: its name in ``enabled_backends``
    """

    status = http.HTTPStatus.CONFLICT
    fault = "not_read"
    """What it is called where it is counted."""

    def __init__(self, store: str, why: str) -> None:
        super().__init__(store, why)
        self.store, self.why = store, why

    def __str__(self) -> str:
        return f"store {self.store}: {self.why}"


class RangesUnsupported(StoreFault):
    """The gateway cannot read parts of what lies there."""


class ObjectMissing(StoreFault):
    """The store says that it has no such object."""

    fault = "absent"


class ContentMismatch(StoreFault):
    """What the store has is not what Glance's record describes."""

    fault = "other_bytes"


class StoreUnreachable(StoreFault):
    """The store does not answer, or not as it should."""

    status = http.HTTPStatus.BAD_GATEWAY
    fault = "unreachable"


class CredentialsRefused(StoreFault):
    """The store refuses the credentials of ``glance-api.conf``."""

    status = http.HTTPStatus.BAD_GATEWAY
    fault = "credentials"


class Part(NamedTuple):
    """A part of an object.

    :param size_bytes: of the whole object, as the store says
    :param md5: of the whole object in hexadecimal digits; empty if the store does not say it
    """

    data: bytes
    size_bytes: int
    md5: str = ""


class Reader(abc.ABC):
    """Reads parts of the objects of one store; may be called by many threads.

    :param name: of the store
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def read(self, location: Any, asked: byte_range.ByteRange) -> Part:
        """Read a part of an object.

        :param location: the driver's own ``StoreLocation``
        :raises StoreFault: it cannot be read
        """

    def of_answer(
        self, asked: byte_range.ByteRange, content_range: str, data: bytes, md5: str = ""
    ) -> Part:
        """Return what an answer over HTTP gives, if it is what was asked for.

        :param md5: what may be one
        :raises StoreUnreachable: it is not
        """
        match = _CONTENT_RANGE.fullmatch(content_range)
        wanted = (asked.offset, asked.offset + asked.length - 1)
        if match is None or (int(match[1]), int(match[2])) != wanted:
            got = content_range[:80]
            raise StoreUnreachable(self.name, f"asked for bytes {wanted}, it answers {got!r}")
        if len(data) != asked.length:
            raise StoreUnreachable(
                self.name, f"its answer ended after {len(data)} of {asked.length} bytes"
            )
        digits = md5.strip('"').lower()
        return Part(data, int(match[3]), digits if _MD5.fullmatch(digits) else "")

    def of_status(self, status: object, words: str) -> StoreFault:
        """Return the error for an answer over HTTP that is no success.

        :param words: of the store, or of its library
        """
        if status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.GONE):
            return ObjectMissing(self.name, "it has no such object")
        if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return ContentMismatch(self.name, "what it has is shorter than Glance's record says")
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            return CredentialsRefused(self.name, f"it refuses the credentials ({words})")
        return StoreUnreachable(self.name, words)
