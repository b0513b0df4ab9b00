# SPDX-License-Identifier: Apache-2.0
"""The status page: static files without data; the browser asks the API."""

import functools
import pathlib
from collections.abc import Callable

import flask

FOLDER = pathlib.Path(__file__).with_name("page")
MIME_TYPES = {
    "/status": ("status.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/status.js": ("status.js", "text/javascript"),
}
"""File and type by path; all other paths of the page are relative to these."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text of the API becomes markup
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers without frame-ancestors
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # after an upgrade, files of two versions do not mix
}


def views() -> dict[str, Callable[[], flask.Response]]:
    """Return a view for each path, with its file in memory."""
    return {
        path: functools.partial(_serve, (FOLDER / name).read_bytes(), mime_type)
        for path, (name, mime_type) in MIME_TYPES.items()
    }


def _serve(content: bytes, mime_type: str) -> flask.Response:
    return flask.Response(content, headers=HEADERS, content_type=f"{mime_type}; charset=utf-8")
