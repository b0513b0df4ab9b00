# SPDX-License-Identifier: Apache-2.0
import pathlib
import signal
import subprocess

import pytest

from tests.lab import forked_commands
from tests.lab import tuned


def begin(
    folder: pathlib.Path, constants: tuned.Constants | None = None
) -> tuple[forked_commands.ForkedCommand, pathlib.Path]:
    """Start an agent that fails without a configuration; return it and its output."""
    with forked_commands.enabled():
        server = forked_commands.server(forked_commands.AGENT)
    assert server is not None
    folder.mkdir()
    with (folder / "log").open("ab") as out:
        arguments = ["--config-file", str(folder / "none.conf")]
        return server.start(arguments, constants or {}, out), folder / "log"


def test_forks_have_separate_arguments_output_and_status(tmp_path: pathlib.Path) -> None:
    made = [begin(tmp_path / name) for name in ("one", "two")]
    for (fork, log), name in zip(made, ("one", "two"), strict=True):
        assert fork.wait(20.0) == 1 and fork.poll() == 1
        assert f"{name}/none.conf" in log.read_text()
        fork.send_signal(signal.SIGTERM)  # the pid may belong to no process


def test_changed_constants_apply_only_to_their_fork(tmp_path: pathlib.Path) -> None:
    fork, log = begin(tmp_path / "wrong", {"acstor_agent.settings.NO_SUCH_THING": 1.0})
    assert fork.wait(20.0) == 1
    assert "NO_SUCH_THING" in log.read_text()
    fork, log = begin(tmp_path / "right")
    assert fork.wait(20.0) == 1
    assert "NO_SUCH_THING" not in log.read_text()


def test_wait_for_a_fork_is_bounded(tmp_path: pathlib.Path) -> None:
    fork, _log = begin(tmp_path / "one")
    fork.send_signal(signal.SIGSTOP)
    if fork.poll() is None:
        with pytest.raises(subprocess.TimeoutExpired):
            fork.wait(0.1)
    fork.kill()
    assert fork.wait(20.0) in (1, -signal.SIGKILL)


def test_agent_with_another_environment_or_folder_is_executed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    begin(tmp_path / "one")[0].wait(20.0)
    with forked_commands.enabled(), monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", "")
        assert forked_commands.server(forked_commands.AGENT) is None
    monkeypatch.chdir(tmp_path)
    assert forked_commands.server(forked_commands.AGENT) is None


@pytest.mark.parametrize("is_forked", [True, False])
def test_output_and_errors_of_a_command_are_separate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, *, is_forked: bool
) -> None:
    if not is_forked:
        monkeypatch.setattr(forked_commands, "_is_enabled", False)
    assert (forked_commands.server(forked_commands.AGENT) is not None) == is_forked
    done = forked_commands.run(forked_commands.AGENT, ["--help"], {}, 20.0)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run the agent of this host." in done.stdout
    wrong = ["--config-file", tmp_path / "none.conf"]
    done = forked_commands.run(forked_commands.AGENT, wrong, {}, 20.0)
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.conf" in done.stderr
