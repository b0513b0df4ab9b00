# SPDX-License-Identifier: Apache-2.0
"""The export records every read, and a bad client harms only its own connection."""

import contextlib
import os
import pathlib
import random
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from acstor_glance.boot import nbd_recorder

DATA = random.Random(1).randbytes(100_000)
SIZE = 100_352  # whole sectors


class Client:
    """An NBD client that sends given bytes."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.link.settimeout(30)

    def take(self, length: int) -> bytes:
        return self.link.recv(length, socket.MSG_WAITALL)

    def greet(self) -> None:
        assert self.take(18) == b"NBDMAGICIHAVEOPT\0\3"
        self.link.sendall(struct.pack(">I", 3))

    def option(self, option: int, data: bytes = b"") -> None:
        self.link.sendall(struct.pack(">8sII", b"IHAVEOPT", option, len(data)) + data)

    def reply(self) -> tuple[int, int, bytes]:
        magic, option, kind, length = struct.unpack(">QIII", self.take(20))
        assert magic == 0x3E889045565A9
        return option, kind, self.take(length)

    def go(self) -> None:
        self.greet()
        self.option(7, struct.pack(">IH", 0, 0))
        assert self.reply() == (7, 3, struct.pack(">HQH", 0, SIZE, 3))
        assert self.reply() == (7, 1, b"")

    def request(self, command: int, offset: int, length: int, handle: int = 5) -> None:
        self.link.sendall(struct.pack(">IHHQQI", 0x25609513, 0, command, handle, offset, length))

    def read(self, offset: int, length: int) -> tuple[int, bytes]:
        """Return the error number and the bytes."""
        self.request(0, offset, length)
        magic, error, handle = struct.unpack(">IIQ", self.take(16))
        assert (magic, handle) == (0x67446698, 5)
        return error, b"" if error else self.take(length)


@pytest.fixture
def reads() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def client(tmp_path: pathlib.Path, reads: list[tuple[int, int]]) -> Iterator[Client]:
    with serving(tmp_path, reads) as made:
        yield made


class Disk:
    """The bytes of a file, followed by zeros."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file, length, offset).ljust(length, b"\0")


class serving:
    """Context manager: a client of an export of DATA."""

    def __init__(self, folder: pathlib.Path, reads: list[tuple[int, int]]) -> None:
        (folder / "image").write_bytes(DATA)
        self.image = os.open(folder / "image", os.O_RDONLY)
        note = lambda offset, length: reads.append((offset, length))  # noqa: E731
        self.export = nbd_recorder.NbdRecorder(Disk(self.image), SIZE, note)

    def __enter__(self) -> Client:
        self.export.__enter__()
        self.client = Client(self.export.client)
        return self.client

    def __exit__(self, *exc: object) -> None:
        self.client.link.close()
        self.export.__exit__(*exc)
        os.close(self.image)


def test_reads_are_answered_and_recorded_in_order(client, reads):
    client.go()
    assert client.read(512, 1024) == (0, DATA[512:1536])
    assert client.read(0, 512) == (0, DATA[:512])
    assert client.read(SIZE - 512, 512) == (0, DATA[SIZE - 512 :] + bytes(SIZE - len(DATA)))
    assert reads == [(512, 1024), (0, 512), (SIZE - 512, 512)]


def test_old_style_export_name_option_works(client):
    client.greet()
    client.option(1, b"")
    assert client.take(10) == struct.pack(">QH", SIZE, 3)
    assert client.read(0, 512) == (0, DATA[:512])


def test_unknown_options_are_declined(client):
    client.greet()
    client.option(8)  # structured replies
    assert client.reply() == (8, (1 << 31) + 1, b"")
    client.option(6, struct.pack(">IH", 0, 0))
    assert client.reply()[1] == 3 and client.reply() == (6, 1, b"")
    client.option(2)
    assert client.reply() == (2, 1, b"")
    assert client.link.recv(1) == b""


@pytest.mark.parametrize(
    ("offset", "length"),
    [(SIZE, 512), (SIZE - 512, 1024), (0, 0), (0, (32 << 20) + 1), (2**64 - 512, 1024)],
)
def test_out_of_range_read_is_refused_and_not_recorded(client, reads, offset, length):
    client.go()
    assert client.read(offset, length) == (22, b"")
    assert client.read(0, 512)[0] == 0
    assert reads == [(0, 512)]


def test_other_commands_are_refused_and_writes_end_the_connection(client, reads):
    client.go()
    client.request(3, 0, 0)  # flush
    assert struct.unpack(">IIQ", client.take(16)) == (0x67446698, 22, 5)
    client.request(1, 0, 512)
    assert client.link.recv(1) == b""
    assert reads == []


def test_disconnect_request_closes_the_connection(client):
    client.go()
    client.request(2, 0, 0)
    assert client.link.recv(1) == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=st.binary(max_size=80), after=st.sampled_from(["nothing", "greeting", "go"]))
def test_garbage_closes_the_connection_and_the_export_ends_in_time(tmp_path, raw, after):
    server = serving(tmp_path, [])
    with server as client, contextlib.suppress(ConnectionError):
        if after == "greeting":
            client.greet()
        elif after == "go":
            client.go()
        client.link.sendall(raw)
        client.link.shutdown(socket.SHUT_WR)
        while client.link.recv(4096):
            pass
    assert not server.export._thread.is_alive()


def test_unused_export_ends(tmp_path):
    (tmp_path / "image").write_bytes(DATA)
    with (tmp_path / "image").open("rb") as image:
        disk = Disk(image.fileno())
        with nbd_recorder.NbdRecorder(disk, SIZE, lambda *_: None) as export:
            pass
        assert not export._thread.is_alive()
