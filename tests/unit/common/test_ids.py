# SPDX-License-Identifier: Apache-2.0
import blake3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acstor_common.model import ids

KEY, OTHER = ids.ScopeKey(b"k" * 32), ids.ScopeKey(b"o" * 32)


@given(st.binary(max_size=200))
def test_cid_is_blake3_with_the_last_bit_marking_keyed_ones(data):
    digest, keyed = blake3.blake3(data).digest(), blake3.blake3(data, key=KEY).digest()
    assert (
        ids.cid_of(data) == ids.cid_of(memoryview(data)) == digest[:31] + bytes([digest[31] & ~1])
    )
    assert ids.cid_of(data, KEY) == keyed[:31] + bytes([keyed[31] | 1])
    assert not ids.is_keyed(ids.cid_of(data)) and ids.is_keyed(ids.cid_of(data, KEY))


@given(st.binary(max_size=200))
def test_content_matches_with_its_scope_key(data):
    plain, keyed = ids.cid_of(data), ids.cid_of(data, KEY)
    assert ids.Content(plain).matches_data(data) and ids.Content(plain, (KEY,)).matches_data(data)
    assert ids.Content(keyed, (OTHER, KEY)).matches_data(data)
    assert not ids.Content(keyed).matches_data(data) and not ids.Content(
        keyed, (OTHER,)
    ).matches_data(data)
    for content in (ids.Content(plain), ids.Content(keyed, (KEY,))):
        assert not content.matches_data(data + b"x")


def test_cid_with_a_flipped_last_bit_matches_nothing():
    turned = ids.Cid(ids.cid_of(b"a")[:31] + bytes([ids.cid_of(b"a")[31] ^ 1]))
    assert not ids.Content(turned).matches_data(b"a")
    assert not ids.Content(turned, (KEY,)).matches_data(b"a")


@given(st.binary(min_size=32, max_size=32))
def test_oid_is_the_first_64_bits_of_the_cid(raw):
    assert ids.oid_of(ids.Cid(raw)).to_bytes(8, "big") == raw[:8]


def test_contents_may_share_an_oid_and_have_their_own_cid():
    one, other = ids.Cid(bytes(8) + b"1" * 24), ids.Cid(bytes(8) + b"2" * 24)
    assert ids.oid_of(one) == ids.oid_of(other) and one != other


@given(st.uuids())
def test_image_id_round_trips_as_16_bytes(uuid):
    image_id = ids.parse_image_id(str(uuid).upper())
    assert image_id == str(uuid)
    assert ids.image_id_from_bytes(ids.image_id_bytes(image_id)) == image_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7d2c1f9e5d6b4a5c9c611e1b5b1f0a11",
        "{7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11}",
        "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a1g",
        "7d2c1f9e5d6b-4a5c-9c61-1e1b-5b1f0a11",
        "../" * 12,
    ],
)
def test_text_that_is_no_dashed_uuid_is_no_image_id(text):
    with pytest.raises(ValueError, match="not an image id"):
        ids.parse_image_id(text)


@pytest.mark.parametrize("text", ["h1", "compute-3.rack_2.example", "7", "a" * 255])
def test_valid_host_id_is_accepted_unchanged(text):
    assert ids.parse_host_id(text) == text


@pytest.mark.parametrize("text", ["", ".h1", "-h1", "h 1", "h1\n", "h/1", "hé", "a" * 256])
def test_invalid_host_id_is_refused(text):
    with pytest.raises(ValueError, match="not a host id"):
        ids.parse_host_id(text)
