# SPDX-License-Identifier: Apache-2.0
"""The status page's files: served without a token, with a strict content security policy."""

import re

import pytest

from acstor_decision.api import app
from acstor_decision.api import status_page
from tests.unit.decision.api import conftest

PATHS = list(status_page.MIME_TYPES)


def policy(answer) -> dict[str, str]:
    parts = answer.headers["Content-Security-Policy"].split("; ")
    return {name: words for name, _, words in (part.partition(" ") for part in parts)}


@pytest.mark.parametrize("path", PATHS)
def test_page_files_are_served_with_strict_headers(path, client):
    answer = client.get(path, headers=conftest.TENANT)
    name, mime_type = status_page.MIME_TYPES[path]
    assert answer.status_code == 200
    assert answer.data == (status_page.FOLDER / name).read_bytes()
    assert answer.headers["Content-Type"] == f"{mime_type}; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"


def test_page_policy_allows_only_own_files_and_no_markup_from_text(client):
    found = policy(client.get("/status"))
    assert found["default-src"] == found["base-uri"] == found["form-action"] == "'none'"
    assert found["frame-ancestors"] == found["trusted-types"] == "'none'"
    assert found["require-trusted-types-for"] == "'script'"
    own = {name for name, words in found.items() if words == "'self'"}
    assert own == {"script-src", "style-src", "connect-src"}
    assert "unsafe" not in str(found)


@pytest.mark.parametrize("path", PATHS)
def test_head_request_returns_only_the_headers(path, client):
    answer, whole = client.head(path), client.get(path)
    assert (answer.status_code, answer.data) == (200, b"")
    assert answer.headers["Content-Length"] == str(len(whole.data))
    assert policy(answer) == policy(whole)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_page_refuses_other_methods(method, client):
    for path in PATHS:
        assert client.open(path, method=method).status_code == 405


@pytest.mark.parametrize(
    "path", ["/status/", "/status/x", "/status.py", "/page/status.html", "/status.js/../app.py"]
)
def test_no_other_file_is_served(path, client):
    assert client.get(path).status_code == 404


def test_only_page_files_versions_and_health_need_no_token():
    assert app.OPEN_PATHS == {"/", "/healthz", *PATHS}


def test_page_uses_no_external_resources_and_no_markup_from_text():
    names = [name for name, _ in status_page.MIME_TYPES.values()]
    files = {name: (status_page.FOLDER / name).read_text() for name in names}
    for name, text in files.items():
        addresses = set(re.findall(r"\w+://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, name
        assert not re.search(r"@import|url\(|innerHTML|outerHTML|insertAdjacent|eval\(", text), name
    assert not re.search(r"\son\w+=|style=|<script>|<style", files["status.html"])
    assert set(re.findall(r'(?:src|href)="([^"]+)"', files["status.html"])) == {
        "status.css",
        "status.js",
    }
    assert not re.search(r"localStorage|sessionStorage|document\.cookie", files["status.js"])


def test_api_responses_forbid_content_sniffing(client):
    assert client.get("/v1/hosts").headers["X-Content-Type-Options"] == "nosniff"
