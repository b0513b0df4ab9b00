# SPDX-License-Identifier: Apache-2.0
"""Sealed boxes: only the service can read them, and changes are detected."""

import pytest

from acstor_common import errors
from acstor_common.identity import sealed_box
from acstor_common.identity import signing

SECRET = signing.new_key()
PUBLIC = sealed_box.public_key(SECRET)
BOX = sealed_box.encrypt(PUBLIC, b"a key", b"h1")


def test_service_decrypts_the_box_and_the_box_hides_its_content() -> None:
    assert sealed_box.decrypt(SECRET, BOX, b"h1") == b"a key"
    assert b"a key" not in BOX and BOX != sealed_box.encrypt(PUBLIC, b"a key", b"h1")
    assert len(BOX) == len(b"a key") + 48


@pytest.mark.parametrize("at", range(0, len(BOX), 4))
def test_altered_box_is_refused(at: int) -> None:
    altered = bytearray(BOX)
    altered[at] ^= 1
    with pytest.raises(errors.NotAuthenticated):
        sealed_box.decrypt(SECRET, bytes(altered), b"h1")


def test_box_for_another_key_or_sender_is_refused() -> None:
    for secret, box, said in (
        (signing.new_key(), BOX, b"h1"),
        (SECRET, BOX, b"h2"),
        (SECRET, BOX[:-1], b"h1"),
        (SECRET, b"", b"h1"),
        (SECRET, bytes(64), b"h1"),
    ):
        with pytest.raises(errors.NotAuthenticated):
            sealed_box.decrypt(secret, box, said)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32)])
def test_invalid_public_key_is_refused(public: bytes) -> None:
    with pytest.raises(errors.NotAuthenticated):
        sealed_box.encrypt(public, b"a key", b"h1")
