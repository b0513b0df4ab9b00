# SPDX-License-Identifier: Apache-2.0
"""Log lines for a reader that does not read, has gone, or has no space."""

import logging
import os
import time
from collections.abc import Iterator
from typing import IO

import pytest

from acstor_common.service import log_stream

LINE = "x" * 99 + "\n"
LINES = 4000
BOUND_S = 20.0  # for all of them; each could otherwise wait for ever


@pytest.fixture
def pipe() -> Iterator[tuple[IO[str], IO[str]]]:
    """Return the ends of a pipe, the one to read first."""
    read, write = os.pipe()
    with open(read, encoding="utf-8") as reader, open(write, "w", encoding="utf-8") as writer:
        os.set_blocking(read, False)
        yield reader, writer


@pytest.fixture
def handler() -> Iterator[logging.StreamHandler[IO[str]]]:
    """Return a handler of the root logger; it ends with the test."""
    made: logging.StreamHandler[IO[str]] = logging.StreamHandler()
    logging.getLogger().addHandler(made)
    yield made
    logging.getLogger().removeHandler(made)


def test_lines_that_nobody_reads_are_lost_without_waiting_and_counted(pipe) -> None:
    reader, writer = pipe
    stream = log_stream.LossyStream(writer)
    began_s = time.monotonic()
    for _ in range(LINES):
        stream.write(LINE)
    assert time.monotonic() - began_s < BOUND_S
    kept = reader.read().count(LINE)
    stream.write("later\n")
    assert reader.read() == log_stream.LOST.format(LINES - kept) + "later\n"
    stream.write("again\n")
    assert reader.read() == "again\n"


def test_line_longer_than_a_pipe_takes_at_once_is_written_completely(pipe) -> None:
    reader, writer = pipe
    log_stream.LossyStream(writer).write("ä" * 9000 + "\n")
    assert reader.read() == "ä" * 9000 + "\n"


def test_reader_that_has_gone_and_a_full_disk_raise_no_error(pipe) -> None:
    reader, writer = pipe
    reader.close()
    log_stream.LossyStream(writer).write(LINE)
    with open("/dev/full", "w", encoding="utf-8") as full:
        stream = log_stream.LossyStream(full)
        stream.write(LINE)
    stream.write(LINE)  # after its stream was closed


def test_handlers_of_the_root_logger_do_not_wait(pipe, handler) -> None:
    reader, writer = pipe
    handler.setStream(writer)
    log_stream.install()
    for number in range(LINES):
        logging.getLogger("of_a_test").error("%d %s", number, LINE)
    assert reader.read().startswith(f"0 {LINE}")
