# SPDX-License-Identifier: Apache-2.0
"""Contents of the file that describes a restored disk."""

import json
import pathlib

import pytest

from acstor_agent.core.disks import restore_record
from acstor_common import errors

UUID = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a1"
FIELDS = {
    "checkpoint_id": f"{UUID}1",
    "instance_id": f"{UUID}2",
    "image_id": f"{UUID}3",
    "owner": "h1",
    "vault_disk": f"{UUID}4",
    "manifest_name": "01" * 32,
    "holders": [["h2", "10.0.0.2:7204"], ["h3", "10.0.0.3:7204"]],
    "key": "02" * 32,
}
RECORD = restore_record.restore_record_of(**FIELDS)


def test_packed_record_is_read_back():
    raw = restore_record.pack(RECORD)
    assert json.loads(raw) == {"version": 1, **FIELDS}
    assert restore_record.unpack(raw, "it") == RECORD
    assert RECORD.holders[1] == restore_record.CheckpointHolder("h3", "10.0.0.3:7204")


def test_disk_without_a_key_lacks_no_chunk():
    assert not RECORD.is_complete
    whole = restore_record.restore_record_of(**FIELDS | {"key": ""})
    assert whole.is_complete and restore_record.unpack(restore_record.pack(whole), "it") == whole


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"checkpoint_id": "/etc/passwd"},
        {"instance_id": "x"},
        {"owner": "../h1"},
        {"manifest_name": "01"},
        {"manifest_name": "x" * 64},
        {"key": "02" * 31},
        {"holders": [["h2", "example.org:80"]]},
        {"holders": [["", "10.0.0.2:7204"]]},
        {"holders": [["h2", "10.0.0.2:7204"]] * (restore_record.MAX_HOLDERS + 1)},
        {"more": 1},
    ],
)
def test_file_with_invalid_fields_is_refused(change):
    raw = json.dumps({"version": 1, **FIELDS} | change).encode()
    with pytest.raises(errors.FormatError, match="the file"):
        restore_record.unpack(raw, "the file")


@pytest.mark.parametrize("raw", [b"", b"{}", b"[" * 100_000, b"\xff" * 100, b'{"version":2}'])
def test_file_that_is_no_record_is_refused(raw):
    with pytest.raises(errors.FormatError, match="the file"):
        restore_record.unpack(raw, "the file")


def test_record_of_version_1_is_read():
    raw = (pathlib.Path(__file__).parents[3] / "data" / "recovery-v1.acrecovery").read_bytes()
    found = restore_record.unpack(raw, "the golden file")
    assert found.holders[1] == ("h3", "[fd00::3]:7205")
    assert (found.key, found.is_complete) == (b"\1" * 32, False)
    assert restore_record.pack(found) == raw


def test_request_with_invalid_fields_raises_a_value_error():
    with pytest.raises(ValueError, match="holders"):
        restore_record.restore_record_of(**FIELDS | {"holders": [["h2"]]})
