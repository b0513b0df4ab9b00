# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import subprocess
import sys
import types

import pytest

from acstor_common import errors
from tests.lab import runs


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_tags_are_unique_and_the_own_one_is_no_orphan() -> None:
    first, second = runs.new_tag(), runs.new_tag()
    assert first != second
    assert not runs.is_orphan(first)


def test_tag_of_a_dead_process_is_an_orphan() -> None:
    assert runs.is_orphan(f"{dead_pid()}t1n1")


def test_tag_of_a_reused_pid_is_an_orphan() -> None:
    start = runs.start_ticks(os.getpid())
    assert start is not None
    assert runs.is_orphan(f"{os.getpid()}t{start + 1}n1")


def test_process_is_alive_while_a_thread_outlives_the_main_one(tmp_path: pathlib.Path) -> None:
    """Its state is that of a zombie, and its sockets still accept connections."""
    code = """if True:
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        print(flush=True)
        ctypes.CDLL(None).syscall(60, 0)  # exit of the main thread alone
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        record = tmp_path / f"it{runs.RECORD_SUFFIX}"
        runs.record(process.pid, record)
        assert process.stdout is not None and process.stdout.readline()
        stat = pathlib.Path(f"/proc/{process.pid}/stat")
        runs.wait_for(lambda: ") Z " in stat.read_text(), 10.0, "a dead main thread", str)
        assert runs.recorded_pid(record) == process.pid
        runs.kill_recorded(record)
        assert runs.start_ticks(process.pid) is None


@pytest.mark.parametrize("name", ["", "h1", "12", "12t", "12t3", "x12t3n1", "12t3n1-h1", "guest"])
def test_foreign_name_is_never_an_orphan(name: str) -> None:
    assert not runs.is_orphan(name)


def test_failed_command_is_named_with_its_output() -> None:
    with pytest.raises(errors.Unusable, match=r"sh -c.*exit 3: no luck"):
        runs.tool(["sh", "-c", "echo no luck >&2; exit 3"])


def test_missing_command_is_named() -> None:
    with pytest.raises(errors.Unusable, match="acstor-no-such-command"):
        runs.tool(["acstor-no-such-command"])


def test_timed_out_wait_gives_the_reason() -> None:
    with pytest.raises(errors.Unusable, match=r"the thing: not ready after 0\.1 s: it sleeps"):
        runs.wait_for(lambda: False, 0.1, "the thing", lambda: "it sleeps")


def test_long_wait_polls_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(pauses_s), sleep=pauses_s.append)
    monkeypatch.setattr(runs, "time", clock)
    runs.wait_for(lambda: sum(pauses_s) > 100, 200, "the thing", str)
    assert pauses_s == sorted(pauses_s)
    assert (pauses_s[0], pauses_s[-1]) == (runs.SHORTEST_PAUSE_S, runs.LATE_PAUSE_S)


def test_signal_is_delayed_until_the_end_of_the_clean_up() -> None:
    order = []
    with pytest.raises(KeyboardInterrupt):
        with runs.undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            order.append("cleaned up")
        order.append("never reached")
    assert order == ["cleaned up"]


def test_only_folders_of_dead_runs_are_removed(tmp_path: pathlib.Path) -> None:
    orphan, own, foreign = f"{dead_pid()}t1n1", runs.new_tag(), "notes"
    for name in (orphan, own, foreign):
        (tmp_path / name).mkdir()
    assert runs.sweep(tmp_path, tmp_path / "none") == [orphan]
    assert sorted(os.listdir(tmp_path)) == sorted([own, foreign])
