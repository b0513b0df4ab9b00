# SPDX-License-Identifier: Apache-2.0
"""What is answered instead of bytes.

The status says who can do something.  With 409 it is whoever looks after this one image or the
stores' configuration: asking again does not help, and other images are not concerned.  With 502,
503 and 504 it is a store or Glance, which may answer later.
"""

import http
from collections.abc import Mapping
from typing import Any

from acstor_common import errors


def error_body(status: http.HTTPStatus, message: str) -> dict[str, Any]:
    """Return what a client is told of an error."""
    return {"code": int(status), "title": status.phrase, "message": message}


class HttpError(errors.AcstorError):
    """The range is not given.

    :param status: of the answer, 400 or more
    :param message: names no URL of a store: there may be a password in it
    :param headers: of the answer
    """

    def __init__(
        self, status: http.HTTPStatus, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def __str__(self) -> str:
        return self.message


class FlattenAborted(HttpError):
    """A composition ended before its image was whole.

    :param who: ended it: ``client``, ``base`` or ``glance``
    """

    def __init__(self, status: http.HTTPStatus, message: str, who: str) -> None:
        super().__init__(status, message)
        self.who = who
