# SPDX-License-Identifier: Apache-2.0
"""Scratch files: limits per file, in total and by free space."""

import contextlib
import pathlib
import threading
from collections.abc import Callable

import pytest

from acstor_checkpoint.capture import scratch_files
from acstor_common import errors
from tests.fakes import manual_clock
from tests.lab import runs

KIB = 1 << 10


@pytest.fixture
def file_of(tmp_path: pathlib.Path) -> Callable[[str, int], pathlib.Path]:
    def made(name: str, size_bytes: int) -> pathlib.Path:
        path = tmp_path / name
        path.write_bytes(b"x" * size_bytes)
        return path

    return made


def test_capture_stops_reading_before_its_file_reaches_the_limit(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    it = scratch_files.ScratchFiles(tmp_path, 800 * KIB)
    with it.watch_file(file_of("a", 200 * KIB), lambda: None) as watched:
        it.end_oversized()
        assert not watched.should_stop
        file_of("a", 204 * KIB)
        it.end_oversized()
        assert watched.should_stop and not watched.end_reason


@pytest.mark.expect_log("the capture is aborted")
@pytest.mark.parametrize("how", ["one file", "all files", "file system"])
def test_oversized_scratch_file_ends_its_capture(
    tmp_path: pathlib.Path,
    file_of: Callable[[str, int], pathlib.Path],
    how: str,
) -> None:
    limit = {"one file": 400, "all files": 640, "file system": 1 << 20}[how] * KIB
    spare = 1 << 62 if how == "file system" else scratch_files.SPARE_BYTES
    it = scratch_files.ScratchFiles(tmp_path, limit, spare_bytes=spare)
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        for name in ("b", "c"):
            file = file_of(name, {"one file": 40, "all files": 300, "file system": 100}[how] * KIB)
            stack.enter_context(it.watch_file(file, lambda: pytest.fail("it is not the largest")))
        stack.enter_context(pytest.raises(scratch_files.ScratchFull, match=r"at most|are free"))
        with it.watch_file(file_of("a", 304 * KIB), ended.set):
            it.end_oversized()
            assert ended.wait(5.0)
            raise errors.Unusable("export", "connection closed")


@pytest.mark.expect_log("the capture is aborted")
def test_hanging_end_does_not_delay_other_captures(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    """libvirt may hang; other files are still limited."""
    it, hangs, stop = (
        scratch_files.ScratchFiles(tmp_path, 800 * KIB),
        threading.Event(),
        threading.Event(),
    )
    ended = list[int]()
    loop = threading.Thread(target=it.run, args=(stop,))
    with it.watch_file(file_of("a", 404 * KIB), hangs.wait):
        loop.start()
        with it.watch_file(file_of("b", 404 * KIB), lambda: ended.append(1)):
            runs.wait_for(lambda: ended, 10.0, "the end", str)
    stop.set()
    hangs.set()
    loop.join(10.0)
    assert not loop.is_alive()


def test_other_failures_are_raised_unchanged(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    it = scratch_files.ScratchFiles(tmp_path, 800 * KIB)
    with pytest.raises(errors.Unusable, match="connection closed"):
        with it.watch_file(tmp_path / "none", lambda: None):
            it.end_oversized()
            raise errors.Unusable("export", "connection closed")


@pytest.mark.expect_log("the capture is aborted")
@pytest.mark.parametrize("how", ["all files", "file system"])
def test_one_capture_is_ended_until_its_space_is_freed(
    tmp_path: pathlib.Path,
    file_of: Callable[[str, int], pathlib.Path],
    how: str,
) -> None:
    """The file counts while it exists; another capture is ended only if it stays."""
    spare = 1 << 62 if how == "file system" else scratch_files.SPARE_BYTES
    clock, limit = manual_clock.ManualClock(1000.0), {"all files": 640, "file system": 1 << 20}[how]
    it = scratch_files.ScratchFiles(tmp_path, limit * KIB, clock, spare)
    with contextlib.ExitStack() as stack:
        files = {name: file_of(name, size * KIB) for name, size in [("a", 304), ("b", 300)]}
        files["c"] = file_of("c", 200 * KIB)
        a, b, c = (stack.enter_context(it.watch_file(one, lambda: None)) for one in files.values())
        for _ in range(10):
            it.end_oversized()
            clock.now_s += 0.9
        assert a.end_reason and not b.end_reason and not c.end_reason
        clock.now_s += 1.1
        it.end_oversized()
        assert b.end_reason and not c.end_reason


@pytest.mark.expect_log("the capture is aborted")
def test_failed_end_is_retried_by_one_thread_at_a_time(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    clock = manual_clock.ManualClock(1000.0)
    answers, asked = threading.Event(), list[threading.Thread]()

    def end() -> None:
        asked.append(threading.current_thread())
        answers.wait(30.0)

    it = scratch_files.ScratchFiles(tmp_path, 800 * KIB, clock)
    with it.watch_file(file_of("a", 404 * KIB), end):
        for _ in range(5):
            it.end_oversized()
            clock.now_s += scratch_files.RETRY_S
        runs.wait_for(lambda: asked, 10.0, "the end", str)
        assert len(asked) == 1
        answers.set()
        asked[0].join(10.0)
        it.end_oversized()
        it.end_oversized()
        runs.wait_for(lambda: len(asked) == 2, 10.0, "the second end", str)
        asked[1].join(10.0)
        it.end_oversized()
    assert len(asked) == 2
