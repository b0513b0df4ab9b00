# SPDX-License-Identifier: Apache-2.0
"""Lists of names: packed, ascending and validated."""

import hypothesis
import pytest
from hypothesis import strategies

from acstor_checkpoint.vault_protocol import object_names
from tests.fakes import packed_names

NAMES = strategies.sets(strategies.binary(min_size=32, max_size=32), max_size=40)


@hypothesis.given(NAMES, NAMES)
def test_name_list_round_trips(inside: set[bytes], others: set[bytes]) -> None:
    found = object_names.NameList(packed_names.pack_names(inside))
    assert list(found) == sorted(inside) and len(found) == len(inside)
    assert all((name in found) == (name in inside) for name in inside | others)
    for first in range(256):
        assert found.names_with_first_byte(first) == {name for name in inside if name[0] == first}


@hypothesis.given(strategies.binary(max_size=200))
def test_random_bytes_are_a_valid_list_or_refused(raw: bytes) -> None:
    try:
        found = object_names.NameList(raw)
    except ValueError:
        return
    assert packed_names.pack_names(found) == raw


def test_unordered_duplicate_or_partial_names_are_refused() -> None:
    one, two = bytes([1] * 32), bytes([2] * 32)
    for raw in (two + one, one + one, one[:31], one + b"x"):
        with pytest.raises(ValueError, match="names"):
            object_names.NameList(raw)
    assert "text" not in object_names.NameList(one)
    assert object_names.NameList(one + two)[0:2] == [one, two]


@hypothesis.given(strategies.text(max_size=80))
def test_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        object_names.parse_name(text)


def test_only_lowercase_hex_names_are_accepted() -> None:
    name = bytes(range(200, 232))
    assert object_names.parse_name(name.hex()) == name
    for other in (name.hex().upper(), f" {name.hex()}", name.hex()[:-2] + "  "):
        with pytest.raises(ValueError, match="not a name"):
            object_names.parse_name(other)


@pytest.mark.parametrize("length", [0, 28, (4 << 20) + 33, 1 << 32])
def test_impossible_sealed_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=str(length)):
        object_names.check_length(length)
