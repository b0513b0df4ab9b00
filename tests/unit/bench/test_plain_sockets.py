# SPDX-License-Identifier: Apache-2.0
"""The baseline of an exchange moves and verifies all bytes, and reports its cost."""

import os
import pathlib
import socket
import struct

import pytest

from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import plain_sockets

SPANS = 5
CHUNK = geometry.DEFAULT_CHUNK_BYTES


@pytest.fixture
def image(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(SPANS * plain_sockets.SPAN_BYTES))
    return path


def cids_of(image: pathlib.Path) -> list[ids.Cid]:
    data = image.read_bytes()
    return [ids.cid_of(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]


@pytest.mark.parametrize("senders", [1, 2, SPANS + 2])
def test_image_is_moved_completely_from_any_number_of_senders(
    senders: int, image: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    cost = plain_sockets.move(image, tmp_path / "stored", cids_of(image), senders)
    assert (tmp_path / "stored").read_bytes() == image.read_bytes()
    assert cost.length == SPANS * plain_sockets.SPAN_BYTES
    assert len(cost.senders_s) == senders
    assert cost.took_s > 0 and cost.reader_s > 0


def test_image_is_moved_repeatedly_and_warm_up_does_not_count(
    image: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    stored, cids = tmp_path / "stored", cids_of(image)
    cost = plain_sockets.move(image, stored, cids, 2, unmeasured=1, repeats=3)
    assert cost.length == 3 * SPANS * plain_sockets.SPAN_BYTES


def test_wrong_bytes_are_detected(image: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cids = cids_of(image)
    cids[17] = cids[16]
    with pytest.raises(ValueError, match="chunk 17 does not match its CID"):
        plain_sockets.move(image, tmp_path / "stored", cids)


def test_end_of_a_sender_raises_an_error(image: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cids = cids_of(image)
    os.truncate(image, 2 * plain_sockets.SPAN_BYTES)
    with pytest.raises(ConnectionError, match="has ended"):
        plain_sockets.move(image, tmp_path / "stored", cids)


def test_failure_of_the_helper_process_raises_an_error() -> None:
    def fail(pipe: socket.socket) -> None:
        raise RuntimeError("as it should")

    with plain_sockets.beside(fail) as pipe, pytest.raises(ConnectionError):
        plain_sockets.receive_number(pipe)


def test_helper_process_sends_numbers_and_ends_with_the_block() -> None:
    def answer(pipe: socket.socket) -> None:
        plain_sockets.send_number(pipe, os.getpid())
        struct.unpack("d", pipe.recv(8, socket.MSG_WAITALL))  # endless

    with plain_sockets.beside(answer) as pipe:
        pid = int(plain_sockets.receive_number(pipe))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cost_is_the_processor_time_of_all_ends_per_gigabyte() -> None:
    cost = plain_sockets.Cost(2_000_000_000, 4.0, 1.0, (0.5, 0.25))
    assert cost.by_end == [0.5, 0.25, 0.125]
    assert cost.cpu_s_per_gb == 0.875
    assert cost.gb_per_s == 0.5
