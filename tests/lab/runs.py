# SPDX-License-Identifier: Apache-2.0
"""One run of the lab: all its objects carry its owner's name.

Objects are found by name or location, never by a record that could be lost.  The tag of a run
names the owning process (pid and start time).  Its namespaces are called ``acs<tag>-…``; its
processes are those inside them; its mounts are those beneath its folder.  So the next run can
remove the objects of a killed one, and no others.
"""

import contextlib
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from acstor_common import errors

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
CACHE_FOLDER = (CHECKOUT / ".cache" / "lab").resolve()
RUNS_FOLDER = CACHE_FOLDER / "runs"
NETNS_FOLDER = pathlib.Path("/run/netns")
KILL_DEADLINE_S = 10.0
PRIORITY = -15  # nice value
SHORTEST_PAUSE_S, LATE_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.25, 0.5
RECORD_SUFFIX = ".process"

_TAG = re.compile(r"(?P<pid>[0-9]+)t(?P<start>[0-9]+)n[0-9]+")
_run_numbers = itertools.count(1)


def start_ticks(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot, None if it has ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if _has_ended(fields) else int(fields[19])


def _has_ended(fields: Sequence[str]) -> bool:
    """Return whether a process is a zombie without threads that keep its sockets open.

    :param fields: of ``/proc/PID/stat``, from the state on
    """
    return fields[0] == "Z" and int(fields[17]) <= 1


def new_tag() -> str:
    """Return a unique tag: owner's pid, its start time, number of the run."""
    return f"{os.getpid()}t{start_ticks(os.getpid())}n{next(_run_numbers)}"


def is_orphan(tag: str) -> bool:
    """Return whether ``tag`` is one of the lab's tags and its owner is dead."""
    match = _TAG.fullmatch(tag)
    return match is not None and start_ticks(int(match["pid"])) != int(match["start"])


def record(pid: int, path: pathlib.Path) -> None:
    """Record at ``path`` that session leader ``pid`` belongs to that folder."""
    path.write_text(f"{pid} {start_ticks(pid)}")


def _recorded(path: pathlib.Path) -> tuple[int, int] | None:
    """Return pid and start in a record, after reaping a dead child."""
    try:
        pid, start = map(int, path.read_text().split())
    except (OSError, ValueError):
        return None  # there is no record, or a kill interrupted its writing
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return pid, start


def recorded_pid(path: pathlib.Path) -> int | None:
    """Return the recorded process's pid, None if it has ended."""
    found = _recorded(path)
    return found[0] if found and start_ticks(found[0]) == found[1] else None


def mark_of(path: pathlib.Path) -> str:
    """Return the name of the file system at /run of a record's processes.

    Only a recorded process with a mount namespace of its own has such a file system.
    """
    return f"acs-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"


def _belonging(path: pathlib.Path) -> list[int]:
    """Return the living processes of a record: in its session, or with its mark.

    The session leader may be dead.
    """
    recorded, mark = _recorded(path), f" {mark_of(path)} "
    session = recorded[0] if recorded and start_ticks(recorded[0]) in (recorded[1], None) else -1
    pids = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            process = pathlib.Path("/proc", entry)
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            is_ours = int(stat[3]) == session or mark in (process / "mountinfo").read_text()
            if is_ours and not _has_ended(stat):
                pids.append(int(entry))
    return pids


def kill_recorded(path: pathlib.Path, deadline_s: float = KILL_DEADLINE_S) -> None:
    """Kill a recorded process and all that belong to it; delete the record.

    :raises errors.Unusable: some of them survive
    """
    _kill_until_gone(lambda: _belonging(path), deadline_s)
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def started(
    argv: Sequence[str | pathlib.Path], record_path: pathlib.Path, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Run a recorded process for a block; kill it and its children at the end.

    :param options: further options of ``subprocess.Popen``
    """
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    record(process.pid, record_path)
    try:
        yield process
    finally:
        kill_recorded(record_path)


def end(process: subprocess.Popen[bytes], deadline_s: float) -> None:
    """Stop a child by SIGTERM; kill it after ``deadline_s``."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tool(argv: Sequence[str | pathlib.Path], stdin: str | None = None) -> str:
    """Run a command that must succeed and return its output.

    :raises errors.Unusable: it is not installed or it failed; has its output
    """
    words = [str(word) for word in argv]
    try:
        # In a session of its own, so that Ctrl-C on the terminal does not reach it.
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, check=True, start_new_session=True
        )
    except FileNotFoundError:
        raise errors.Unusable(words[0], "this command is not installed") from None
    except subprocess.CalledProcessError as failure:
        said = [text.strip()[-2000:] for text in (failure.stderr, failure.stdout)]
        why = "\n".join(filter(None, said))
        raise errors.Unusable(" ".join(words[:12]), f"exit {failure.returncode}: {why}") from None
    return done.stdout


def run_to_end(
    argv: Sequence[str | pathlib.Path], deadline_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command without input; stderr goes to stdout, any exit status is fine.

    :param options: further options of ``subprocess.run``
    :raises subprocess.TimeoutExpired: it took longer
    """
    options["stdin"], options["stdout"] = subprocess.DEVNULL, subprocess.PIPE
    options["stderr"] = subprocess.STDOUT
    return subprocess.run(argv, text=True, timeout=deadline_s, check=False, **options)


def namespaces(tag: str, netns_folder: pathlib.Path = NETNS_FOLDER) -> list[str]:
    """Return the names of the network namespaces of run ``tag``."""
    names = os.listdir(netns_folder) if netns_folder.is_dir() else []
    return sorted(name for name in names if name.startswith(f"acs{tag}-"))


def processes_inside(names: Sequence[str]) -> list[int]:
    """Return the processes in the network namespaces ``names``."""
    wanted = {(NETNS_FOLDER / name).stat().st_ino for name in names}
    pids = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it has just ended, or is a zombie
            if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino in wanted:
                pids.append(int(entry))
    return pids


def mounts_beneath(folder: pathlib.Path, process: str = "self", kind: str = "") -> list[str]:
    """Return a process's mount points at or below ``folder``, the deepest first.

    :param kind: prefix of their file system's type
    """
    found = []
    for line in pathlib.Path("/proc", process, "mountinfo").read_text().splitlines():
        if not line.partition(" - ")[2].startswith(kind):
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4])
        if pathlib.PurePath(point).is_relative_to(folder):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def kill_all(names: Sequence[str], deadline_s: float = KILL_DEADLINE_S) -> None:
    """Kill every process inside the namespaces ``names`` and wait for their end.

    :raises errors.Unusable: some of them survive
    """
    _kill_until_gone(lambda: processes_inside(names), deadline_s)


def _kill_until_gone(find: Callable[[], list[int]], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while pids := find():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise errors.Unusable(f"processes {pids}", "they do not die, not even by SIGKILL")
        time.sleep(0.02)


def erase(
    tag: str, runs_folder: pathlib.Path = RUNS_FOLDER, netns_folder: pathlib.Path = NETNS_FOLDER
) -> None:
    """Remove a run's processes, mounts, namespaces and folder."""
    folder = runs_folder / tag
    names = namespaces(tag, netns_folder)
    kill_all(names)
    for point in mounts_beneath(folder, kind="fuse"):  # without a server, any access would block
        tool(["umount", "--lazy", point])
    for record_path in folder.rglob(f"*{RECORD_SUFFIX}"):
        kill_recorded(record_path)
    for point in mounts_beneath(folder):
        tool(["umount", "--lazy", point])
    for name in names:
        tool(["ip", "netns", "delete", name])
    if not mounts_beneath(folder):
        shutil.rmtree(folder, ignore_errors=True)


def sweep(
    runs_folder: pathlib.Path = RUNS_FOLDER, netns_folder: pathlib.Path = NETNS_FOLDER
) -> list[str]:
    """Erase the runs with dead owners and return their tags."""
    tags = set(os.listdir(runs_folder)) if runs_folder.is_dir() else set()
    if netns_folder.is_dir():
        named = (re.match(r"acs([0-9tn]+)-", name) for name in os.listdir(netns_folder))
        tags.update(match[1] for match in named if match)
    orphans = sorted(tag for tag in tags if is_orphan(tag))
    for tag in orphans:
        erase(tag, runs_folder, netns_folder)
    return orphans


def wait_for(
    is_done: Callable[[], bool], deadline_s: float, what: str, why: Callable[[], str]
) -> None:
    """Poll ``is_done`` until it is true.

    :raises errors.Unusable: it was not in time; ``why`` returns the details
    """
    first = began = time.monotonic()
    while not is_done():
        waited_s = time.monotonic() - first
        if waited_s > deadline_s:
            raise errors.Unusable(what, f"not ready after {deadline_s:g} s: {why()[-2000:]}")
        pause(began, waited_s)
        began = time.monotonic()


def pause(began: float, waited_s: float = 0.0) -> None:
    """Sleep before the next poll, in proportion to the duration of the last one.

    :param began: start of the last poll, by the monotonic clock, in seconds; it has just ended
    :param waited_s: time since the first poll; the pause is at least 1/40 of it, up to a limit
    """
    took_s = time.monotonic() - began
    longer_s = min(waited_s / 40, LATE_PAUSE_S)
    time.sleep(min(max(SHORTEST_PAUSE_S, 8 * took_s, longer_s), LONGEST_PAUSE_S))


@contextlib.contextmanager
def on_failure(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo`` if the block does not end normally."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextlib.contextmanager
def prioritized() -> Iterator[None]:
    """Start processes of the block with priority over the tests that run beside this one."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block, so that clean-up is complete."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Handlers, not a signal mask: a library's thread would receive a signal that the main
    # thread blocks.
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: held.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for restored, handler in before.items():
            signal.signal(restored, handler)
        for number in held[:1]:
            signal.raise_signal(number)


def _end_by_sigterm(_number: int, _frame: types.FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


class Run:
    """Context manager: a tag and a folder; removes all objects of the run at its end.

    SIGTERM ends the block like an exception does (main thread only).
    """

    def __init__(self) -> None:
        self.tag = new_tag()
        self.folder = RUNS_FOLDER / self.tag

    def __enter__(self) -> "Run":
        """Erase dead runs and make the folder."""
        self._old_handler = None
        if threading.current_thread() is threading.main_thread():
            self._old_handler = signal.signal(signal.SIGTERM, _end_by_sigterm)
        with undisturbed():
            sweep()
            self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with undisturbed():
                erase(self.tag)
        finally:
            if self._old_handler is not None:
                signal.signal(signal.SIGTERM, self._old_handler)

    def namespace(self, name: str) -> str:
        """Return the full name of this run's namespace ``name``."""
        return f"acs{self.tag}-{name}"
