# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from tests.lab import image_server

WHOLE = image_server.Request("10.0.0.1", "/a", 200, 100, "", "GET", 0.1)


def part(start: int, length: int, uri: str = "/a") -> image_server.Request:
    text = f"bytes {start}-{start + length - 1}/1000"
    return image_server.Request("10.0.0.1", uri, 206, length, text, "GET", 0.1)


@pytest.mark.parametrize(
    ("requests", "unique"),
    [
        ([], 0),
        ([WHOLE, WHOLE], 100),
        ([part(0, 10), part(20, 10)], 20),
        ([part(20, 10), part(0, 10), part(5, 20)], 30),
        ([part(0, 100), part(10, 10)], 100),
        ([part(0, 10), part(0, 10, "/b")], 20),
        ([dataclasses.replace(WHOLE, status=404)], 0),
    ],
)
def test_bytes_sent_twice_count_once(requests: list[image_server.Request], unique: int) -> None:
    assert image_server.unique_bytes(requests) == unique


def test_truncated_response_counts_its_sent_bytes() -> None:
    cut_off = dataclasses.replace(part(50, 100), body_bytes_sent=30)
    assert cut_off.span == (50, 80)
