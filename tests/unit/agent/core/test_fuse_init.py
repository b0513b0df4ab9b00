# SPDX-License-Identifier: Apache-2.0
"""Replies of libfuse to FUSE_INIT, with changed fields."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_agent.core.mount import fuse_init

REQUEST = struct.pack("<IIQQIIII", 104, 26, 2, 0, 0, 0, 0, 0) + struct.pack(
    "<IIIII44x", 7, 45, 131072, 0x73FFFFFB, 0x1FF
)
"""As Linux 6.18 sends it."""
FIELDS = (7, 31, 131072, 0x4040B039, 32768, 24576, 1 << 20, 1, 256, 0, 0)
MINOR, READ_AHEAD, FLAGS, BACKGROUND, LONGEST, PAGES, MORE = 1, 2, 3, 4, 6, 8, 10


def reply(**changes):
    """Return the reply of libfuse 3.14 with changes of the fields named."""
    names = {"minor": MINOR, "read_ahead": READ_AHEAD, "flags": FLAGS, "background": BACKGROUND}
    names |= {"longest": LONGEST, "pages": PAGES, "more": MORE, "major": 0}
    fields = list(FIELDS)
    for name, value in changes.items():
        fields[names[name]] = value
    return struct.pack("<IiQ", 80, 0, 2) + struct.pack("<IIIIHHIIHHI28x", *fields)


def test_equal_replies_have_no_differences():
    assert fuse_init.differences(reply(), reply()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"flags": FIELDS[FLAGS] & ~0x8}, "without the flags 0x8"),
        ({"flags": FIELDS[FLAGS] | 0x40}, "with the additional flags 0x40"),
        ({"more": 4}, f"with the additional flags {4 << 32:#x}"),
        ({"longest": 131072}, "writes of 131072 bytes instead of 1048576"),
        ({"major": 8}, "protocol 8 instead of 7"),
    ],
)
def test_relevant_difference_is_described(change, words):
    assert fuse_init.differences(reply(), reply(**change)) == [words]


@pytest.mark.parametrize(
    "change",
    [{"minor": 40}, {"read_ahead": 0}, {"background": 12}, {"pages": 64}, {"longest": 2 << 20}],
)
def test_irrelevant_difference_is_ignored(change):
    assert fuse_init.differences(reply(), reply(**change)) == []


def test_extended_flags_count_only_with_init_ext():
    without = FIELDS[FLAGS] & ~(1 << 30)
    reported, made = reply(flags=without), reply(flags=without, more=4)
    assert fuse_init.differences(reported, made) == []


def test_refused_and_damaged_replies_are_distinguished():
    refusal = struct.pack("<IiQ", 16, -71, 2)
    assert "rejects" in fuse_init.differences(reply(), refusal)[0]
    assert "rejects" in fuse_init.differences(reply(), b"")[0]
    assert "damaged" in fuse_init.differences(reply()[:-1], reply())[0]


def test_repeated_offer_is_limited_to_the_agreed_flags():
    reported = reply(flags=FIELDS[FLAGS] & ~0x8, more=0x101)
    cut = fuse_init.offer_again(REQUEST, reported)
    _, _, read_ahead, flags, more = struct.unpack_from("<IIIII", cut, 40)
    assert (read_ahead, flags, more) == (131072, FIELDS[FLAGS] & ~0x8 & 0x73FFFFFB, 0x101)
    assert (len(cut), cut[:52]) == (len(REQUEST), REQUEST[:52])


def test_offer_of_an_older_kernel_has_no_extended_flags():
    older = struct.pack("<I", 56) + REQUEST[4:56]
    assert len(fuse_init.offer_again(older, reply())) == 56


def test_with_background_changes_only_the_background_fields():
    changed = fuse_init.with_background(reply(background=0), 1000)
    assert struct.unpack_from("<HH", changed, 32) == (1000, 750)
    assert changed[:32] + changed[36:] == reply()[:32] + reply()[36:]


def test_with_longest_changes_only_the_message_size():
    longest = fuse_init.with_longest(reply(), 128 * 1024)
    assert longest == reply(longest=128 * 1024, pages=32)


@pytest.mark.parametrize("is_offered", [False, True])
def test_lookups_are_parallel_if_the_kernel_offers_it(is_offered):
    flag = 1 << 18
    offer = fuse_init.offer_again(REQUEST, reply(flags=FIELDS[FLAGS] | is_offered * flag))
    agreed = fuse_init.with_parallel_lookups(reply(), offer)
    assert agreed == reply(flags=FIELDS[FLAGS] | is_offered * flag)
    assert fuse_init.differences(agreed, reply()) == []


@given(st.binary(max_size=120))
def test_random_bytes_raise_no_error(data):
    assert fuse_init.differences(data, data) in ([], fuse_init.differences(b"", b""))
    assert len(fuse_init.offer_again(REQUEST, data)) == len(REQUEST)
    assert not fuse_init.is_request(data) or data[4] == 26


def test_init_request_is_recognized():
    assert fuse_init.is_request(REQUEST)
    assert not fuse_init.is_request(REQUEST[:55])
    assert not fuse_init.is_request(REQUEST[:4] + b"\x0f" + REQUEST[5:])


@pytest.mark.parametrize(
    ("flags", "more", "can"),
    [
        (1 << 30, 1 << 7, True),
        (1 << 30, 0xFFFFFF7F, False),
        (0, 1 << 7, False),
        (1 << 30, None, False),
    ],
)
def test_resend_support_is_read_from_the_offer(flags, more, can):
    rest = b"" if more is None else struct.pack("<I", more)
    offer = bytes(40) + struct.pack("<IIII", 7, 40, 0, flags) + rest
    assert fuse_init.can_resend(offer) is can
