# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest

from acstor_agent.core.images import pin_record
from acstor_common import errors

ONE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
TWO = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


def test_pins_round_trip_in_order():
    made = [
        pin_record.ImagePin(TWO, 5.0, is_operator_pin=True, mode=pin_record.FillMode.PAUSED),
        pin_record.ImagePin(ONE, 6.0),
    ]
    read = pin_record.decode(pin_record.encode(made), "file")
    assert list(read.values()) == made and list(read) == [TWO, ONE]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b'{"version": 2, "images": []}',
        b'{"version": 1}',
        b'{"version": 1, "images": [{"image_id": "x", "since_s": 1}]}',
        b'{"version": 1, "images": [{"image_id": "%s"}]}' % ONE.encode(),
        b'{"version": 1, "images": [], "more": 1}',
        b"[" * 100_000,
    ],
)
def test_invalid_pin_file_is_refused(raw):
    with pytest.raises(errors.FormatError, match="file"):
        pin_record.decode(raw, "file")


def test_default_values_are_not_written():
    [written] = msgspec.json.decode(pin_record.encode([pin_record.ImagePin(ONE, 5.0)]))["images"]
    assert written == {"image_id": ONE, "since_s": 5.0}
