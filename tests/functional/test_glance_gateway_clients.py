# SPDX-License-Identifier: Apache-2.0
"""The gateway's range responses as curl, requests and nginx interpret RFC 9110."""

import pathlib
import subprocess
from collections.abc import Iterator
from email import message
from email import parser
from typing import NamedTuple

import pytest
import requests

from acstor_common.model import ids
from tests.lab import local
from tests.lab import nginx
from tests.lab.openstack import image_stores

DATA, LARGE = image_stores.DATA, image_stores.LARGE
SIZE = len(DATA)
SLICED = """\
  proxy_cache_path {folder}/cache keys_zone=slices:1m;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      slice 256k;
      proxy_cache slices;
      proxy_cache_key $uri$slice_range;
      proxy_cache_valid 200 206 1h;
      proxy_ignore_headers Cache-Control;
      proxy_http_version 1.1;
      proxy_set_header Range $slice_range;
      proxy_pass {gateway};
    }}
  }}
"""


class Answer(NamedTuple):
    status: int
    headers: message.Message
    body: bytes


class Curl:
    def __init__(self, folder: pathlib.Path, token: str) -> None:
        self._folder, self._token = folder, token

    def get(self, url: str, *options: str) -> Answer:
        head, body = self._folder / "head", self._folder / "body"
        body.unlink(missing_ok=True)
        words = ["curl", "--silent", "--show-error", "--max-time", "60", "-D", head, "-o", body]
        words += ["-H", f"X-Auth-Token: {self._token}", *options, url]
        subprocess.run(words, check=True, timeout=90)
        first, _, rest = head.read_text().partition("\n")
        got = b"" if "-I" in options or not body.exists() else body.read_bytes()
        return Answer(int(first.split()[1]), parser.HeaderParser().parsestr(rest), got)


@pytest.fixture(scope="module")
def image_id(all_stores: image_stores.Place) -> ids.ImageId:
    return all_stores.upload("fs")


@pytest.fixture
def url(place: image_stores.Place, image_id: ids.ImageId) -> str:
    return f"{place.gateway.url}/v1/images/{image_id}/file"


@pytest.fixture
def curl(place: image_stores.Place, tmp_path: pathlib.Path) -> Curl:
    return Curl(tmp_path, place.token("acstor"))


@pytest.mark.parametrize(
    ("given", "first", "stop"),
    [
        ("bytes=0-99", 0, 100),
        ("bytes=1000-", 1000, SIZE),
        ("bytes=-100", SIZE - 100, SIZE),
        (f"bytes={SIZE - 1}-{SIZE + 9}", SIZE - 1, SIZE),
        (f"bytes=-{SIZE + 9}", 0, SIZE),
        (f"bytes=5-{'9' * 30}", 5, SIZE),
    ],
)
def test_one_range_is_206(curl, url, given, first, stop):
    answer = curl.get(url, "-H", f"Range: {given}")
    assert (answer.status, answer.body) == (206, DATA[first:stop])
    assert answer.headers["Content-Range"] == f"bytes {first}-{stop - 1}/{SIZE}"
    assert answer.headers["Content-Length"] == str(stop - first)


@pytest.mark.parametrize("given", [None, "items=0-5", "bytes=0-1,5-6"])
def test_request_without_a_single_range_returns_the_whole_image(curl, url, given):
    answer = curl.get(url, *(["-H", f"Range: {given}"] if given else []))
    assert (answer.status, answer.body) == (200, DATA)
    assert answer.headers["Content-Range"] is None and answer.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize("given", [f"bytes={SIZE}-", "bytes=9-5", "bytes=-0"])
def test_unsatisfiable_range_is_416(curl, url, given):
    answer = curl.get(url, "-H", f"Range: {given}")
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{SIZE}")


@pytest.mark.parametrize("given", ["bytes=a-b", "bytes=-", "bytes=1"])
def test_malformed_range_is_400(curl, url, given):
    assert curl.get(url, "-H", f"Range: {given}").status == 400


def test_etag_decides_on_range_and_conditional_requests(curl, url):
    etag = curl.get(url, "-I").headers["ETag"]
    assert etag.startswith('"')
    for validator, status in (
        (etag, 206),
        ('"other"', 200),
        (f"W/{etag}", 200),
        ("Sun, 29 Nov 2026 00:00:00 GMT", 200),
    ):
        answer = curl.get(url, "-r", "0-99", "-H", f"If-Range: {validator}")
        assert (answer.status, answer.headers["ETag"]) == (status, etag)
        assert answer.body == (DATA[:100] if status == 206 else DATA)
    same = curl.get(url, "-H", f"If-None-Match: {etag}")
    assert (same.status, same.body) == (304, b"")
    other = curl.get(url, "-r", "0-9", "-H", 'If-Match: "other"')
    assert (other.status, other.body) == (412, b"")


def test_head_has_the_headers_of_get(curl, url):
    head, get = curl.get(url, "-I"), curl.get(url)
    assert (head.status, head.headers["Content-Length"]) == (200, str(SIZE))
    for name in ("ETag", "Accept-Ranges", "Content-Type", "Content-Length"):
        assert head.headers[name] == get.headers[name]


def test_partial_download_is_resumed(place, url, tmp_path):
    (tmp_path / "part").write_bytes(DATA[:70_001])
    header = f"X-Auth-Token: {place.token('acstor')}"
    words = ["curl", "-sS", "--max-time", "60", "-C", "-", "-H", header]
    subprocess.run([*words, "-o", tmp_path / "part", url], check=True, timeout=90)
    assert (tmp_path / "part").read_bytes() == DATA


def test_requests_reads_an_image_in_pieces(place, url):
    with requests.Session() as session:
        session.headers["X-Auth-Token"] = place.token("acstor")
        size = int(session.head(url, timeout=30).headers["Content-Length"])
        found = b""
        for at in range(0, size, 100_003):
            wanted = {"Range": f"bytes={at}-{at + 100_002}", "Accept-Encoding": "gzip, br"}
            found += session.get(url, headers=wanted, timeout=30).content
    assert found == DATA


@pytest.fixture
def sliced(place: image_stores.Place, tmp_path: pathlib.Path) -> Iterator[str]:
    """Return the URL of an nginx that caches slices of the gateway's responses."""
    folder, port = tmp_path / "nginx", local.unused_port()
    http = SLICED.format(folder=folder, port=port, gateway=place.gateway.url)
    with nginx.Nginx(folder, http, port):
        yield f"http://127.0.0.1:{port}"


def test_nginx_caches_slices_and_serves_any_range(place, curl, sliced):
    url = f"{sliced}/v1/images/{place.upload('fs', LARGE)}/file"
    for _ in range(2):  # first from the gateway, then from the cache
        assert curl.get(url).body == LARGE
        for first, stop in ((0, 1), (262_143, 262_145), (5_000_000, len(LARGE))):
            answer = curl.get(url, "-r", f"{first}-{stop - 1}")
            assert (answer.status, answer.body) == (206, LARGE[first:stop])
    place.gateway.stop()
    assert curl.get(url, "-r", "1000000-1999999").body == LARGE[1_000_000:2_000_000]
