# SPDX-License-Identifier: Apache-2.0
import pathlib
import socket
import subprocess
import threading

import pytest

from acstor_common import errors
from tests.lab import console
from tests.lab import guest
from tests.lab import guest_files
from tests.lab import guest_image

MARKER = b"[    9.5] " + guest_files.MARKER.encode() + b" uptime_s=9.57 reads=868 read_sectors=100 "


def seen(text: bytes, now_s: float = 7.0) -> guest.Milestones:
    milestones = guest.Milestones()
    milestones.read(text, now_s)
    return milestones


def test_guest_counts_as_booted_only_with_prompt_and_marker() -> None:
    prompt = b"Linux version 6.1\r\nlab-guest login: "
    assert not seen(prompt).is_booted
    assert not seen(MARKER + b"writes=1\r\n").is_booted
    assert seen(MARKER + b"writes=1\r\n" + prompt).is_booted


def test_marker_contains_the_reads_of_the_guest() -> None:
    milestones = seen(MARKER + b"writes=1\r\n")
    assert (milestones.read_requests, milestones.read_bytes) == (868, 51200)


def test_incomplete_marker_is_ignored() -> None:
    assert seen(MARKER).marker_s is None


def test_milestone_keeps_the_time_of_its_first_occurrence() -> None:
    milestones = seen(b"Linux version 6.1", now_s=3.0)
    milestones.read(b"Linux version 6.1", 4.0)
    assert milestones.first_line_s == 3.0


def test_only_root_loses_its_password() -> None:
    shadow = "root:*:1:0:99999:7:::\nrooty:*:1:0:99999:7:::\nbin:*:1::::::\n"
    changed = guest_files.without_root_password(shadow)
    assert changed == "root::1:0:99999:7:::\nrooty:*:1:0:99999:7:::\nbin:*:1::::::\n"


def test_changed_recipe_gives_another_image_key() -> None:
    recipe = guest_image.Recipe("bookworm", "linux-image-cloud-amd64")
    other = guest_image.Recipe("bookworm", "linux-image-cloud-amd64", size_bytes=2**30)
    assert recipe.key == guest_image.Recipe("bookworm", "linux-image-cloud-amd64").key
    assert recipe.key != other.key


def fake_guest(link: socket.socket, answers: list[bytes]) -> threading.Thread:
    """Play a guest that sends one of ``answers`` for each received line."""

    def play() -> None:
        with link, link.makefile("rb") as lines:
            for answer, line in zip(answers, lines, strict=False):
                nonce = line.split(b"BE''GIN")[-1][:8]
                link.sendall(line + answer.replace(b"NONCE", nonce))

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    return thread


def talk(answers: list[bytes], command: str) -> str:
    ours, theirs = socket.socketpair()
    with ours:
        thread = fake_guest(theirs, answers)
        line = console.Console(ours, deadline_s=2.0)
        line.log_in()
        try:
            return line.run(command)
        finally:
            ours.close()
            thread.join(2.0)


def test_command_runs_after_log_in_and_its_echo_is_removed() -> None:
    answers = [b"lab-guest login: ", b"welcome\r\n# ", b"BEGINNONCE\r\n42\r\nENDNONCE=0\r\n# "]
    assert talk(answers, "echo 42") == "42\n"


def test_failed_command_in_the_guest_is_an_error() -> None:
    with pytest.raises(errors.Unusable, match="in the guest: false"):
        talk([b"# ", b"BEGINNONCE\r\nENDNONCE=1\r\n# "], "false")


def test_error_of_a_silent_guest_has_its_output() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"kernel panic")
        with pytest.raises(errors.Unusable, match="kernel panic"):
            console.Console(ours, deadline_s=0.2).log_in()


def test_socket_with_a_long_path_is_connected(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        server.bind("monitor.sock")
        server.listen(1)
        with console.connected(folder / "monitor.sock") as link:
            link.sendall(b"hello")
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(5) == b"hello"


def test_build_logs_its_progress(tmp_path) -> None:
    said: list[str] = []
    go_on = tmp_path / "go-on"

    def say(words: str) -> None:
        said.append(words)
        if words.endswith("unpacking"):
            go_on.touch()

    script = f"echo retrieving; echo unpacking; until [ -e {go_on} ]; do sleep 0.05; done"
    guest_image._command(tmp_path, say, ["sh", "-c", script], room=(), say_every_s=0.1)
    assert said[-1].endswith("unpacking")


def test_hung_build_is_killed(tmp_path) -> None:
    soon = {"room": (), "deadline_s": 0.3, "say_every_s": 0.1}
    with pytest.raises(subprocess.TimeoutExpired):
        guest_image._command(tmp_path, lambda _: None, ["sleep", "600"], **soon)
