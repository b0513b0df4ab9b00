# SPDX-License-Identifier: Apache-2.0
"""Errors of the gateway: 409 is a fault of the image, 502 to 504 are temporary."""

import http
from collections.abc import Mapping
from typing import Any

from acstor_common import errors


def error_body(status: http.HTTPStatus, message: str) -> dict[str, Any]:
    """Return the JSON body of an error."""
    return {"code": int(status), "title": status.phrase, "message": message}


class HttpError(errors.AcstorError):
    """Failure of a request; ``message`` has no URLs of stores (passwords)."""

    def __init__(
        self, status: http.HTTPStatus, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def __str__(self) -> str:
        return self.message


class FlattenAborted(HttpError):
    """A job stopped by ``party``: ``client``, ``base`` or ``glance``."""

    def __init__(self, status: http.HTTPStatus, message: str, party: str) -> None:
        super().__init__(status, message)
        self.party = party
