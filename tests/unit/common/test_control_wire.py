# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import typing

import pytest

from acstor_common import errors
from acstor_common.wire import control_wire

IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
KEPT = pathlib.Path(__file__).parents[2] / "data" / "control-wire.json"
"""Messages of earlier versions.  Lines are added to the file and never changed."""


@pytest.mark.parametrize(
    "request_",
    [
        control_wire.Status(),
        control_wire.AttachImage(IMAGE),
        control_wire.DetachImage(IMAGE),
        control_wire.PreSeed(IMAGE),
        control_wire.SetFillMode(IMAGE, control_wire.FillMode.URGENT, 90.0),
        control_wire.Zeros(IMAGE),
        control_wire.GetRing(),
        control_wire.CountFallback(control_wire.Fallback.DISK_FORMAT, 2),
    ],
)
def test_request_round_trips(request_):
    line = control_wire.encode(request_)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert control_wire.decode_request(line) == request_


def test_ring_is_passed_through_unchanged():
    line = b'{"op":"set-ring","ring":{"version":1, "epoch":3}}\n'
    assert bytes(control_wire.decode_request(line).ring) == b'{"version":1, "epoch":3}'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello\n",
        b"{}",
        b'{"op":"reboot"}',
        b'{"op":"attach-image"}',
        b'{"op":"attach-image","image_id":7}',
        b'{"op":"status","more":1}',
        b'{"op":"count-fallback","reason":"the weather"}',
        b'{"op":"count-fallback","reason":"disk-format","times":0}',
        b'{"op":"set-fill-mode","image_id":"x","mode":"paused","deadline_s":5}',
        b'{"op":"set-fill-mode","image_id":"x","mode":"urgent","deadline_s":-1}',
        b'{"op":"set-fill-mode","image_id":"x","mode":"urgent","deadline_s":1e9}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_malformed_request_is_refused(line):
    with pytest.raises(errors.RemoteProtocolError):
        control_wire.decode_request(line)


def test_reply_round_trips():
    for reply in (
        control_wire.Done({"a": [1]}),
        control_wire.Failed("ChunkMissing", "no"),
        control_wire.Progress(1, 2),
    ):
        assert control_wire.decode_reply(control_wire.encode(reply)) == reply


def kept(what):
    return json.loads(KEPT.read_text())[what]


@pytest.mark.parametrize("line", kept("requests"))
def test_requests_of_earlier_versions_round_trip(line):
    request = control_wire.decode_request(line.encode())
    assert json.loads(control_wire.encode(request)) == json.loads(line)


@pytest.mark.parametrize("line", kept("replies"))
def test_replies_of_other_versions_are_decoded(line):
    said = json.loads(line)
    reply = control_wire.decode_reply(json.dumps({**said, "since": "the next version"}).encode())
    answered = json.loads(control_wire.encode(reply))
    assert {name: answered[name] for name in said} == said


def test_every_request_has_a_recorded_message():
    tags = {request.__struct_config__.tag for request in typing.get_args(control_wire.AnyRequest)}
    assert tags == {json.loads(line)["op"] for line in kept("requests")}


def test_default_fields_are_not_sent():
    assert json.loads(control_wire.encode(control_wire.AttachImage(IMAGE))) == {
        "op": "attach-image", "image_id": IMAGE
    }  # fmt: skip
