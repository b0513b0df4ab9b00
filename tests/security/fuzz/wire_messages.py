# SPDX-License-Identifier: Apache-2.0
"""Targets of sockets and the bus: frames, control lines, tables, samples, HTTP."""

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from acstor_agent.sources.http_client import http_endpoint
from acstor_agent.sources.http_client import http_range
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import control_wire
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_common.wire import trace_message
from acstor_common.wire.peer import peer_receiver
from acstor_common.wire.peer import peer_wire
from tests.fakes import announced
from tests.security.fuzz import formats
from tests.security.fuzz.target import Target

CID = ids.cid_of(b"a chunk")
PROOF = peer_wire.proof_of(CID, ids.HostId("host-1"), ids.HostId("host-2"))
HELLO = peer_wire.Hello(ids.HostId("host-1"), peer_wire.ConnectionClass.BULK, 1)
ACCEPTS = peer_wire.FROM_CLIENT | peer_wire.FROM_SERVER


def _received(data: bytes, split: random.Random) -> list[Any]:
    to = peer_receiver.Receiver("peer-1", ACCEPTS)
    messages: list[Any] = []
    while data:
        space = to.get_buffers()[0]
        assert space.nbytes and to.wanted_bytes >= 1
        length = min(len(data), len(space), split.choice((1, 7, 100, 9000)))
        space[:length] = data[:length]
        messages += to.bytes_received(length)
        data = data[length:]
    return messages


def _parse_frames(data: bytes) -> list[Any]:
    to = peer_receiver.Receiver("peer-1", ACCEPTS)
    return to.feed_bytes(data)


def _check_frames(taken: list[Any], data: bytes) -> None:
    assert _received(data, random.Random(len(data))) == taken  # under every split by the network
    written = b"".join(bytes(part) for message in taken for part in peer_wire.encode(message))
    assert _parse_frames(written) == taken


def _frame_seeds() -> list[bytes]:
    mode, priority = peer_wire.Mode.HOME, peer_wire.Priority.PREFETCH
    request = peer_wire.ChunkRequest(1, formats.IMAGE, 65536, 65536, PROOF, mode, priority, 100)
    messages: list[peer_wire.Message] = [
        peer_wire.Get((request,)),
        peer_wire.Get((request, *(request._replace(request_id=n, offset=n) for n in range(2, 5)))),
        peer_wire.Chunk(1, b"bytes"),
        peer_wire.Refuse(1, peer_wire.RefuseCode.MISSING),
        peer_wire.Cancel((1,)),
        peer_wire.Cancel((1, 2**32 - 1)),
        peer_wire.RaisePriority((7, 2**32 - 1)),
        peer_wire.Ping(7),
        peer_wire.Pong(7),
        peer_wire.Advertise(announced.alone(1, 2, 3)),
        peer_wire.Gone(announced.alone(1 << 63)),
        peer_wire.EvictionHint(announced.alone(5)),
        peer_wire.Refer(1, (ids.HostId("h1"), ids.HostId("h2"))),
    ]
    hello = b"".join(map(bytes, peer_wire.encode(HELLO)))
    frames = [b"".join(map(bytes, peer_wire.encode(message))) for message in messages]
    run = peer_wire.encode_chunks([peer_wire.Chunk(n, bytes([n]) * 9 * n) for n in range(1, 9)])
    frames.append(b"".join(map(bytes, run)))
    unknown = b"AC\x03\xc8" + (5).to_bytes(4, "big") + b"later"
    return [hello, hello + frames[4] + unknown, hello + b"".join(frames)] + [
        hello + frame for frame in frames
    ]


PEER_FRAMES = Target(
    "peer_frames", _parse_frames, (errors.RemoteProtocolError,), _frame_seeds, _check_frames
)


def _check_ring(taken: hash_ring.Ring, data: bytes) -> None:
    again = hash_ring.decode(hash_ring.encode(taken), "again")
    assert (again.epoch, again.hosts) == (taken.epoch, taken.hosts)
    assert (again.threshold, again.outer_threshold) == (taken.threshold, taken.outer_threshold)
    assert again.policies == taken.policies
    assert again.owners_of(CID, 3) == taken.owners_of(CID, 3)


def _ring_seeds() -> list[bytes]:
    hosts = [{"host": f"h{n}", "address": f"10.0.0.{n}:7201", "vnodes": 3} for n in (1, 2)]
    located = [{**host, "location": f"pod1/rack{n}"} for n, host in enumerate(hosts)]
    packed = [{**host, "vnodes": {host["host"]: "0-2,7"}} for host in located]
    tables = [
        {"version": 1, "epoch": 1, "hosts": hosts},
        {"version": 2, "epoch": 2, "hosts": located, "threshold": 1, "outer_threshold": 2},
        {"version": 3, "epoch": 3, "hosts": packed, "threshold": 2},
        {"version": 1, "epoch": 0, "hosts": []},
        {
            "version": 1,
            "epoch": 4,
            "hosts": located,
            "threshold": 1,
            "outer_threshold": 9,
            "places": {"pod1": {"share": 50}, "pod1/rack1": {"share": 5, "outer_threshold": 0}},
        },
    ]
    return [json.dumps(table).encode() for table in tables]


RING = Target(
    "ring",
    lambda data: hash_ring.decode(data, "fuzz"),
    (errors.RingFormatError,),
    _ring_seeds,
    _check_ring,
    max_bytes=1500,
    time_limit_s=10.0,  # a table may encode MAX_POINTS points in few bytes
    floor_bytes=600 << 20,
)


class NotJson(Exception):
    """The bus itself refuses anything but JSON."""


def on_the_bus(data: bytes) -> Any:
    """Return the output of oslo.messaging: it reads JSON with Python's own reader."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise NotJson from e


def _same_again(read: Callable[[Any], Any]) -> Callable[[Any, bytes], None]:
    def check(taken: Any, _data: bytes) -> None:
        written = json.dumps(msgspec.to_builtins(taken), allow_nan=False)
        assert read(json.loads(written)) == taken

    return check


def _of_the_bus(name: str, read: Callable[[Any], Any], examples: list[msgspec.Struct]) -> Target:
    return Target(
        name,
        lambda data: read(on_the_bus(data)),
        (NotJson, errors.RemoteProtocolError),
        lambda: [msgspec.json.encode(example) for example in examples],
        _same_again(read),
    )


def _decoder(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda payload: decision_messages.decode(payload, kind)


TASK_EXAMPLE = decision_messages.ImageTask(
    request=1, kind=decision_messages.TaskKind.PRE_SEED, image_id=formats.IMAGE
)
PROGRESS = decision_messages.TaskProgress(
    request=1,
    kind=decision_messages.TaskKind.FLATTEN,
    state=decision_messages.TaskState.FAILED,
    why="no",
)
HELD = decision_messages.HeldImage(
    size_bytes=10,
    cached_bytes=5,
    missing_bytes=1,
    boot_image="used",
    boot_set_bytes=3,
    boot_set_cached_bytes=2,
    fill=fill_progress.FillStatus(
        state=fill_progress.FillState.FILLING,
        is_used=True,
        total_bytes=5,
        remaining_bytes=1,
        remaining_s=0.5,
    ),
    task=PROGRESS,
)
SAMPLE_EXAMPLE = decision_messages.Sample(
    host="h1",
    address="10.0.0.1:7201",
    location="pod1/rack1",
    session=1,
    started_s=1.5,
    number=1,
    sent_s=10.0,
    interval_s=5.0,
    link_bytes_s=1000,
    total=decision_messages.TrafficBytes(1, 2),
    sketch=(1, 2),
    peers={"h2": decision_messages.TrafficBytes(3, 4)},
    images={formats.IMAGE: HELD},
)
TRACE_EXAMPLE = trace_message.BootTrace(
    host="h1", image_id=formats.IMAGE, size_bytes=1 << 20, chunk_bytes=65536, trace=(0, 3, 1)
)
WANTED = decision_messages.ImageWanted(formats.IMAGE, True)

SAMPLE = _of_the_bus("sample", _decoder(decision_messages.Sample), [SAMPLE_EXAMPLE])
TASK = _of_the_bus("image_task", _decoder(decision_messages.ImageTask), [TASK_EXAMPLE])
IMAGE_WANTED = _of_the_bus("image_wanted", _decoder(decision_messages.ImageWanted), [WANTED])
BOOT_TRACE = _of_the_bus("boot_trace", _decoder(trace_message.BootTrace), [TRACE_EXAMPLE])


def _line_target(name: str, read: Callable[[bytes], Any], examples: list[Any]) -> Target:
    def check(taken: Any, _data: bytes) -> None:
        assert read(control_wire.encode(taken)) == taken

    return Target(
        name,
        read,
        (errors.RemoteProtocolError,),
        lambda: [control_wire.encode(example) for example in examples],
        check,
    )


CONTROL_REQUEST = _line_target(
    "control_request",
    control_wire.decode_request,
    [
        control_wire.Status(),
        control_wire.AttachImage(formats.IMAGE, 4096),
        control_wire.MakeDisk(formats.DISK, formats.IMAGE, 1 << 20),
        control_wire.CountFallback(control_wire.Fallback.DISK_FORMAT, 3),
        control_wire.SetRing(msgspec.Raw(b'{"version":1,"epoch":1,"hosts":[]}')),
        control_wire.SetDiskPolicy("none"),
    ],
)
CONTROL_REPLY = _line_target(
    "control_reply",
    control_wire.decode_reply,
    [
        control_wire.Done({"images": {}}),
        control_wire.Failed("NotRaw", "it is qcow2"),
        control_wire.Progress(1, 2),
    ],
)

ASKED = http_range.RangeRequest("an image, bytes 100-199", "http://192.0.2.1/image", 100, 100)


def _parse_answer(data: bytes) -> int | None:
    status, *lines = data.decode("latin-1").split("\n")
    headers = dict(line.partition(": ")[::2] for line in lines)
    number = int(status) if status.isascii() and status.isdecimal() and len(status) < 5 else 0
    assert 0.0 <= http_range.retry_after_s(headers) <= http_range.RETRY_AFTER_LIMIT_S
    http_range.is_empty_blob(number, headers)
    if number in http_range.REDIRECTS:
        led_to = http_range.redirect_target(ASKED, ASKED.where, headers, 0)
        with contextlib.suppress(ValueError):
            server, target = http_endpoint.endpoint_of(led_to)
            assert not server.is_tls and target.isascii() and not target.startswith("\r\n")
        return None
    if number == 200:
        assert http_range.check_head_response(ASKED, number, headers) >= 0
        return None
    return http_range.check_range_response(ASKED, number, headers)


def _check_answer(taken: int | None, _data: bytes) -> None:
    assert taken is None or taken >= ASKED.offset + ASKED.length


HTTP_ANSWER = Target(
    "http_answer",
    _parse_answer,
    (errors.ChunkUnavailable,),
    lambda: [
        b"206\nContent-Range: bytes 100-199/4096\nContent-Length: 100",
        b"206\nContent-Range: bytes 100-149/150",
        b"416\nContent-Range: bytes */0",
        b"503\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT\nDate: Fri, 31 Dec 1999 23:59:50 GMT",
        b"429\nRetry-After: 120",
        b"302\nLocation: ../other/image?token=a%2Fb",
        b"200\nContent-Length: 4096",
    ],
    _check_answer,
)

ALL = (
    PEER_FRAMES,
    RING,
    SAMPLE,
    TASK,
    IMAGE_WANTED,
    BOOT_TRACE,
    CONTROL_REQUEST,
    CONTROL_REPLY,
    HTTP_ANSWER,
)
