# SPDX-License-Identifier: Apache-2.0
"""Scratch files have bounds: each, all together, and of the file system."""

import contextlib
import pathlib
import threading
from collections.abc import Callable

import pytest

from acstor_checkpoint import scratch
from acstor_common import errors
from tests.lab import runs

KIB = 1 << 10


@pytest.fixture
def file_of(tmp_path: pathlib.Path) -> Callable[[str, int], pathlib.Path]:
    def made(name: str, size_bytes: int) -> pathlib.Path:
        path = tmp_path / name
        path.write_bytes(b"x" * size_bytes)
        return path

    return made


def test_reading_stops_before_the_bound_of_a_file(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    it = scratch.Scratch(tmp_path, 800 * KIB)
    with it.watched(file_of("a", 200 * KIB), lambda: None) as watched:
        it.look()
        assert not watched.is_late
        file_of("a", 204 * KIB)
        it.look()
        assert watched.is_late and not watched.why


@pytest.mark.expect_log("the capture is ended")
@pytest.mark.parametrize("how", ["one file", "all files", "file system"])
def test_what_is_too_large_is_ended_and_the_capture_is_told(
    tmp_path: pathlib.Path,
    file_of: Callable[[str, int], pathlib.Path],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    limit = {"one file": 400, "all files": 640, "file system": 1 << 20}[how] * KIB
    if how == "file system":
        monkeypatch.setattr(scratch, "SPARE_BYTES", 1 << 62)
    it, ended = scratch.Scratch(tmp_path, limit), threading.Event()
    with contextlib.ExitStack() as stack:
        for name in ("b", "c"):
            file = file_of(name, {"one file": 40, "all files": 300, "file system": 100}[how] * KIB)
            stack.enter_context(it.watched(file, lambda: pytest.fail("it is not the largest")))
        stack.enter_context(pytest.raises(scratch.Full, match=r"at most|are free"))
        with it.watched(file_of("a", 304 * KIB), ended.set):
            it.look()
            assert ended.wait(5.0)
            raise errors.Unusable("export", "it went away")


@pytest.mark.expect_log("the capture is ended")
def test_capture_that_cannot_be_ended_keeps_nobody(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    """libvirt may not answer; another file has its bound nevertheless."""
    it, hangs, stop = scratch.Scratch(tmp_path, 800 * KIB), threading.Event(), threading.Event()
    ended = list[int]()
    loop = threading.Thread(target=it.run, args=(stop,))
    with it.watched(file_of("a", 404 * KIB), hangs.wait):
        loop.start()
        with it.watched(file_of("b", 404 * KIB), lambda: ended.append(1)):
            runs.wait_for(lambda: ended, 10.0, "the end", str)
    stop.set()
    hangs.set()
    loop.join(10.0)
    assert not loop.is_alive()


def test_other_failures_are_what_they_are(
    tmp_path: pathlib.Path, file_of: Callable[[str, int], pathlib.Path]
) -> None:
    it = scratch.Scratch(tmp_path, 800 * KIB)
    with pytest.raises(errors.Unusable, match="it went away"):
        with it.watched(tmp_path / "none", lambda: None):
            it.look()
            raise errors.Unusable("export", "it went away")
