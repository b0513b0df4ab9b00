# SPDX-License-Identifier: Apache-2.0
"""Fails the nth file system call under a folder, for n = 1, 2, 3 ... until none is left.

This is how SQLite tests I/O errors. The calls are those of the module ``os``; within the block,
``open`` is that of ``_pyio``, which calls them, too. Not reached: calls of C libraries, page
faults of memory maps, ``close`` and locks.
"""

import _pyio
import builtins
import contextlib
import enum
import errno
import glob
import io
import itertools
import os
import pathlib
import pickle
import shutil
import signal
import threading
import traceback
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import Self

import pytest

READS = {"read", "pread", "preadv", "readv"}
WRITES = {"write", "pwrite", "pwritev", "writev"}
COPIES = {"sendfile", "copy_file_range"}
_BY_DESCRIPTOR = READS | WRITES | {"fsync", "fdatasync", "ftruncate", "fchmod", "posix_fallocate"}
_BY_TWO_PATHS = {"rename", "replace", "link", "symlink"}
_REMOVES = {"unlink", "remove", "rmdir"}
_LOOKS = {"stat", "lstat", "scandir", "listdir", "statvfs", "readlink"}
_BY_PATH = {"open", "mkdir", "truncate", "chmod", "utime"} | _REMOVES | _LOOKS
_ALLOCATES = WRITES | COPIES | _BY_TWO_PATHS | {"posix_fallocate", "mkdir"}
_CHANGES = _ALLOCATES | _REMOVES | {"ftruncate", "truncate", "chmod", "fchmod", "utime"}
_WORD_BYTES = 64  # a kill tears no shorter record: the kernel copies whole pages
_KILLED = -signal.SIGKILL

forks = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)
"""Of tests that fork: the other threads are trio's idle workers, which trio forgets in a child."""
marks = [forks, pytest.mark.usefixtures("unsynced"), pytest.mark.allow_log("")]
"""Of tests of failed calls: any of them may be logged."""


class Fault(enum.StrEnum):
    """What happens in a call."""

    EIO = "EIO"
    EIO_SINCE = "EIO since"  # in all later calls, too: the disk is gone
    ENOSPC = "ENOSPC"
    ENOSPC_SINCE = "ENOSPC since"  # the disk is full
    SHORT = "short"  # half of the bytes are read or written
    KILL_BEFORE = "killed before"
    KILL_HALF = "killed half-way"  # of a write
    KILL_AFTER = "killed after"

    @property
    def is_lasting(self) -> bool:
        """Whether all later calls fail, too."""
        return self in (Fault.EIO_SINCE, Fault.ENOSPC_SINCE)

    def can_hit(self, name: str, flags: int) -> bool:
        """Return whether a call can end so; ``flags`` are those of ``open``."""
        creates = bool(flags & os.O_CREAT)
        if self in (Fault.EIO, Fault.EIO_SINCE):
            return True
        if self in (Fault.ENOSPC, Fault.ENOSPC_SINCE):
            return name in _ALLOCATES or creates
        if self is Fault.SHORT:
            return name in READS | WRITES | COPIES
        if self is Fault.KILL_HALF:
            return name in WRITES
        return name in _CHANGES or creates or bool(flags & os.O_TRUNC)


ERRORS = (Fault.EIO, Fault.EIO_SINCE, Fault.ENOSPC, Fault.ENOSPC_SINCE, Fault.SHORT)
KILLS = (Fault.KILL_BEFORE, Fault.KILL_HALF, Fault.KILL_AFTER)


class FailingCalls:
    """Fails one call within the block; all threads count.

    :param inside: beginning of the paths of files whose calls count; "": those in ``folder``
    """

    def __init__(self, folder: pathlib.Path, fault: Fault, nth: int, inside: str = "") -> None:
        self.folder, self.fault = folder, fault
        self.hit = ""  # the name of the first call that failed; "": none
        self._inside = inside or os.path.realpath(folder) + "/"
        self._nth, self._count = nth, 0
        self._lock = threading.Lock()
        self._patches = contextlib.ExitStack()
        self._readlink = os.readlink

    def __enter__(self) -> Self:
        for name in _BY_DESCRIPTOR | COPIES | _BY_TWO_PATHS | _BY_PATH:
            self._patch(os, name, self._failing(name, getattr(os, name)))
        for module in (builtins, io):
            self._patch(module, "open", _pyio.open)
        globber = getattr(glob, "_StringGlobber", None)
        if "scandir" in vars(globber or object):  # in Python 3.13, with a reference of its own
            self._patch(globber, "scandir", staticmethod(os.scandir))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _patch(self, module: Any, name: str, new: object) -> None:
        self._patches.callback(setattr, module, name, vars(module)[name])
        setattr(module, name, new)

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            flags = args[1] if name == "open" else 0
            if not self.fault.can_hit(name, flags) or not self._is_inside(name, args, kwargs):
                return real(*args, **kwargs)
            if not self._is_due(name):
                return real(*args, **kwargs)
            return self._fail(name, real, args, kwargs)

        return call

    def _is_due(self, name: str) -> bool:
        with self._lock:
            self._count += 1
            if self._count == self._nth:
                self.hit = name
                print(f"{self.fault} at call {self._nth}: {name}")  # shown if the test fails
            return self._count == self._nth or (self.fault.is_lasting and bool(self.hit))

    def _is_inside(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        of = args[: 2 if name in _BY_TWO_PATHS | COPIES else 1] or (".",)
        at = kwargs.get("dir_fd") or kwargs.get("src_dir_fd")
        return any((self._path(one, at) + "/").startswith(self._inside) for one in of)

    def _path(self, file: Any, dir_fd: int | None) -> str:
        if isinstance(file, int):
            return self._readlink(f"/proc/self/fd/{file}")
        base = "" if dir_fd is None else self._readlink(f"/proc/self/fd/{dir_fd}")
        return os.path.abspath(os.path.join(base, os.fsdecode(file)))

    def _fail(
        self, name: str, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.fault is Fault.SHORT:
            return real(*_shortened(name, args, 1), **kwargs)
        if self.fault in KILLS:
            if self.fault is Fault.KILL_HALF:
                real(*_shortened(name, args, _WORD_BYTES), **kwargs)
            elif self.fault is Fault.KILL_AFTER:
                with contextlib.suppress(OSError):
                    real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.EIO if self.fault in (Fault.EIO, Fault.EIO_SINCE) else errno.ENOSPC
        raise OSError(number, os.strerror(number), None if isinstance(args[0], int) else args[0])


def _shortened(name: str, args: tuple[Any, ...], unit: int) -> tuple[Any, ...]:
    """Return the arguments of a call for half of the bytes, at least one unit if there is one."""
    if name in COPIES:
        at = 3 if name == "sendfile" else 2
        return (*args[:at], max(1, args[at] // 2), *args[at + 1 :])
    fd, data, *rest = args
    if isinstance(data, int):
        return (fd, max(1, data // 2), *rest)
    if name in ("write", "pwrite"):
        return (fd, memoryview(data).cast("B")[: _half(len(data), unit)], *rest)
    views = [memoryview(piece).cast("B") for piece in data]
    left, some = _half(sum(map(len, views)), unit), []
    for view in views:
        some.append(view[:left])
        left -= len(some[-1])
    return (fd, some, *rest)


def _half(length: int, unit: int) -> int:
    return max(length // 2 // unit * unit, min(length, unit) if unit == 1 else 0)


def each_call(
    folder: pathlib.Path, least: int, faults: Iterable[Fault] = ERRORS, inside: str = ""
) -> Iterator[FailingCalls]:
    """Yield the failure of each call, each for an empty folder, until a block ends without one.

    :param least: calls that fail, in all; fewer are an error, because something hid them
    :param inside: see :class:`FailingCalls`
    """
    hits: dict[str, int] = {}
    for fault in faults:
        for nth in itertools.count(1):
            at = folder / f"{fault.name.lower()}-{nth}"
            at.mkdir()
            calls = FailingCalls(at, fault, nth, inside)
            yield calls
            assert not open_files(at), f"{fault} {nth} ({calls.hit}): {open_files(at)} are open"
            shutil.rmtree(at)
            if not calls.hit:
                break
            hits[fault] = nth
    print(f"failed calls: {hits}, {sum(hits.values())} in all")
    assert sum(hits.values()) >= least, hits


def each_kill(
    folder: pathlib.Path,
    least: int,
    work: Callable[[pathlib.Path, Callable[[Any], None]], None],
    faults: Iterable[Fault] = KILLS,
    prepare: Callable[[pathlib.Path], None] = lambda at: None,
    inside: str = "",
) -> Iterator[tuple[pathlib.Path, list[Any], bool]]:
    """Run ``work`` in children that are killed in each call that changes a file.

    Yield for each its folder, what it passed to the second argument of ``work``, and whether it
    was killed; the last one was not.

    :param prepare: fills the folder beforehand
    """

    def parts() -> Iterator[tuple[pathlib.Path, list[Any], bool]]:
        for calls in each_call(folder, least, faults, inside):
            prepare(calls.folder)
            reported, is_killed = _run_in_child(calls, work)
            calls.hit = "a call" if is_killed else ""
            print(f"{calls.fault}: {calls.folder.name}")
            yield calls.folder, reported, is_killed

    return parts()


def _run_in_child(
    calls: FailingCalls, work: Callable[[pathlib.Path, Callable[[Any], None]], None]
) -> tuple[list[Any], bool]:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.close(reading)
            with calls:
                work(calls.folder, lambda one: _send(writing, one))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        reported = list(_received(pipe))
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, _KILLED), f"{calls.fault}: the child failed; its output says why"
    return reported, ended == _KILLED


def _send(pipe: int, one: object) -> None:
    os.write(pipe, pickle.dumps(one))


def _received(pipe: io.BufferedReader) -> Iterator[Any]:
    while pipe.peek(1):
        yield pickle.load(pipe)


def open_files(folder: pathlib.Path) -> list[str]:
    """Return the files in ``folder`` that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the list itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(f"{os.path.realpath(folder)}/")]
