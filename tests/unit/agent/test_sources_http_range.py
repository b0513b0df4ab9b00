# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.sources.http_client import http_range
from acstor_common import errors

ASKED = http_range.RangeRequest("chunk 3", "http://h/x.raw", 100, 50)
GOOD = {"Content-Range": "bytes 100-149/1000", "Content-Length": "50"}


def test_range_header_names_the_last_byte():
    assert ASKED.header == "bytes=100-149"


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        (GOOD, 1000),
        (GOOD | {"Content-Range": "bytes 100-149/*"}, None),
        (GOOD | {"Content-Range": "bytes 100-149/150"}, 150),
        (GOOD | {"Content-Encoding": "identity"}, 1000),
        ({"Content-Range": "bytes 100-149/1000"}, 1000),
    ],
)
def test_exact_answer_gives_the_size(headers, size):
    assert http_range.check_range_response(ASKED, 206, headers) == size


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (200, "does not do range requests"),
        (404, "no such blob"),
        (410, "gone"),
        (416, "shorter than requested"),
        (401, "refuses our credentials"),
        (403, "refuses access"),
        (400, "answered 400"),
        (302, "answered 302"),
        (204, "answered 204"),
    ],
)
def test_permanent_status_is_missing_with_the_reason(status, reason):
    with pytest.raises(errors.ChunkMissing, match=rf"chunk 3 .* http://h/x.raw: .*{reason}") as no:
        http_range.check_range_response(ASKED, status, GOOD)
    may_be_there = status not in (404, 410, 416)
    assert isinstance(no.value, errors.ChunkRefused) is may_be_there
    assert type(copy.copy(no.value)) is type(no.value)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_transient_status_is_unreachable(status):
    with pytest.raises(errors.SourceUnreachable, match=str(status)):
        http_range.check_range_response(ASKED, status, GOOD)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes",
        "bytes 100-149",
        "bytes=100-149/1000",
        "items 100-149/1000",
        "bytes 100-149/1000, bytes 100-149/1000",
        "bytes 0-49/1000",
        "bytes 100-148/1000",
        "bytes 100-150/1000",
        "bytes 149-100/1000",
        "bytes 100-149/149",
        "bytes 100-149/" + "9" * 5000,
        "bytes \u0661\u0660\u0660-149/1000",
    ],
)
def test_mismatched_content_range_is_unreachable(text):
    with pytest.raises(errors.SourceUnreachable):
        http_range.check_range_response(ASKED, 206, GOOD | {"Content-Range": text})


def test_range_cut_at_the_end_of_the_blob_is_missing_with_its_size():
    with pytest.raises(errors.ChunkMissing, match="the blob ends at byte 120"):
        http_range.check_range_response(ASKED, 206, GOOD | {"Content-Range": "bytes 100-119/120"})


def test_encoded_blob_is_refused():
    with pytest.raises(errors.ChunkMissing, match="gzip"):
        http_range.check_range_response(ASKED, 206, GOOD | {"Content-Encoding": "gzip"})


@pytest.mark.parametrize("length", ["49", "51", "", "fifty", "050"])
def test_mismatched_content_length_is_unreachable(length):
    with pytest.raises(errors.SourceUnreachable, match="Content-Length"):
        http_range.check_range_response(ASKED, 206, GOOD | {"Content-Length": length})


@pytest.mark.parametrize(
    ("status", "headers", "is_empty"),
    [
        (416, {"Content-Range": "bytes */0"}, True),
        (200, {"Content-Length": "0"}, True),
        (416, {"Content-Range": "bytes */10"}, False),
        (416, {}, False),
        (200, {"Content-Length": "10"}, False),
        (206, GOOD, False),
        (404, {"Content-Length": "0"}, False),
    ],
)
def test_empty_blob_is_distinguished_from_a_refusal(status, headers, is_empty):
    assert http_range.is_empty_blob(status, headers) is is_empty


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({}, 0),
        ({"Retry-After": "2"}, 2),
        ({"Retry-After": "86400"}, 5),
        ({"Retry-After": "-3"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0),
        (
            {
                "Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT",
                "Date": "Fri, 31 Dec 1999 23:59:56 GMT",
            },
            3,
        ),
        (
            {
                "Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT",
                "Date": "Fri, 31 Dec 2099 23:59:56 GMT",
            },
            0,
        ),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59", "Date": "Fri, 31 Dec 1999 23:59:56 GMT"}, 0),
    ],
)
def test_retry_after_is_honoured_up_to_a_limit(headers, pause_s):
    assert http_range.retry_after_s(headers) == pause_s


@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(
            ["Content-Range", "Content-Length", "Content-Encoding", "Retry-After", "Date"]
        ),
        st.text(max_size=40)
        | st.from_regex(r"bytes \d{1,3}-\d{1,3}/(\d{1,4}|\*)", fullmatch=True)
        | st.just("50"),
    ),
)
def test_any_response_is_the_exact_range_or_unavailable(status, headers):
    assert 0 <= http_range.retry_after_s(headers) <= http_range.RETRY_AFTER_LIMIT_S
    try:
        http_range.check_range_response(ASKED, status, headers)
    except errors.ChunkUnavailable:
        return
    assert status == 206
    assert headers["Content-Range"].startswith("bytes 100-149/")


@pytest.mark.parametrize("status", [403, 404, 503])
def test_status_errors_can_be_copied(status):
    made = http_range.status_error(ASKED, status)
    copied = copy.copy(made)
    assert (str(copied), type(copied)) == (str(made), type(made))
    assert getattr(copied, "status", None) == getattr(made, "status", None)
