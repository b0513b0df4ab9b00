# SPDX-License-Identifier: Apache-2.0
"""An agent in a mount namespace of its own, as in a container, with its mount kept by a holder.

Holder, agent, mount and guests are real.  The mount reaches the guests' namespace as it does from a
container: its folder is a shared mount (``rshared``).

"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from acstor_agent.process import fd_holder
from acstor_common import errors
from tests.fakes import guest_readers
from tests.fakes import hosts
from tests.fakes import managed_agent
from tests.lab import agents
from tests.lab import local
from tests.lab import runs

pytestmark = [hosts.needs_fuse, hosts.needs_take_over]

DEADLINE_S = 60.0
NOBODY = 65534


class Contained:
    """An agent that starts in a namespace of its own, and its holder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.images = local.ImageFolder(folder / "source")
        self.image_id = self.images.add(local.random_bytes(8 << 20))
        self.truth = self.images.path(self.image_id)
        self.mirror = folder / "mirror" / "images" / f"{self.image_id}.raw"
        self.state_dir = folder / "state"
        changes = {
            "source_file": {"folder": self.images.folder},
            "acstor_agent": {"stop_with_guests": "refuse"},
        }
        self._config_file = hosts.configure(folder, changes)
        self.holder = self.agent = None

    def start_holder(self):
        argv = [sys.executable, "-m", "acstor_agent.cmd.holder", self.state_dir]
        with (self.folder / "holder.log").open("ab") as out:
            self.holder = subprocess.Popen(argv, stderr=out, cwd=guest_readers.ROOT)
        hosts.wait_until(lambda: self.ask(fd_holder.TAKE) is not None, "a holder", DEADLINE_S)

    def end_holder(self):
        self.holder.kill()
        self.holder.wait(DEADLINE_S)

    def ask(self, word, fds=()):
        """Return the holder's response and the number of received descriptors."""
        answer = fd_holder._ask(self.state_dir / fd_holder.SOCKET, word, fds)
        if answer is None:
            return None
        for fd in answer[1]:
            os.close(fd)
        return answer[0], len(answer[1])

    def start(self):
        argv = ["unshare", "--mount", "--propagation=unchanged", agents.BIN / "acstor-agent"]
        before = self.served()
        with (self.folder / "log").open("ab") as out:
            self.agent = subprocess.Popen(
                [*argv, "--config-file", self._config_file],
                stdout=out, stderr=out, env={**os.environ, "NOTIFY_SOCKET": ""},
            )  # fmt: skip
        hosts.wait_until(lambda: self.served() > before, "an agent", DEADLINE_S)

    def served(self):
        with contextlib.suppress(FileNotFoundError):
            return self.log().count(" serves ")
        return 0

    def end(self, number):
        """Stop the container; SIGKILL ends all its processes."""
        self.agent.send_signal(number)
        return self.agent.wait(DEADLINE_S)

    def log(self):
        return (self.folder / "log").read_text()

    @contextlib.contextmanager
    def reading(self):
        def end_all():
            self.end_holder()
            self.agent.kill()

        with managed_agent.reading(self.truth, self.mirror, end_all) as readers:
            yield readers

    def clean_up(self):
        for process in (self.holder, self.agent):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(DEADLINE_S)
        unmount(self.folder)


def unmount(folder):
    for point in reversed(hosts.mounts(folder.parent)):
        with contextlib.suppress(errors.Unusable):  # it ended with its agent
            runs.tool(["umount", "--lazy", point])
    assert hosts.mounts(folder.parent) == []


@pytest.fixture
def contained(tmp_path):
    folder = tmp_path / "host"
    folder.mkdir()
    runs.tool(["mount", "--bind", folder, folder])
    made = None
    try:
        runs.tool(["mount", "--make-shared", folder])
        made = Contained(folder)
        made.start_holder()
        yield made
    finally:
        if made is None:
            unmount(folder)
        else:
            made.clean_up()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_guests_see_no_error_when_the_container_is_replaced(contained, number):
    contained.start()
    with contained.reading() as readers:
        contained.end(number)
        time.sleep(0.5)  # no agent serves
        contained.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert tally.reads > 0
    assert contained.log().count("taking over the mount") == 1
    assert contained.end(signal.SIGTERM) == 0
    assert contained.ask(fd_holder.TAKE) == (fd_holder.NOTHING, 0)
    assert str(contained.folder / "mirror") not in hosts.mounts(contained.folder)


def test_new_holder_receives_the_mount_while_the_agent_runs(contained):
    contained.start()
    with contained.reading() as readers:
        contained.end_holder()
        hosts.wait_until(lambda: "the holder does not keep" in contained.log(), "it", DEADLINE_S)
        contained.start_holder()
        hosts.wait_until(
            lambda: contained.ask(fd_holder.TAKE) == (fd_holder.KEPT, 2), "the mount", DEADLINE_S
        )
        contained.end(signal.SIGKILL)
        contained.start()
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert contained.log().count("taking over the mount") == 1


def test_worker_older_than_its_holder_ends_with_its_supervisor(contained):
    """Otherwise it would serve beside the next one, or lock its folders."""
    contained.end_holder()
    contained.start()
    pid = contained.agent.pid
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    worker = pathlib.Path("/proc") / children[-1]
    contained.start_holder()
    keeps = "the holder keeps the mount"
    hosts.wait_until(lambda: keeps in contained.log(), "the mount", DEADLINE_S)
    time.sleep(0.5)  # the worker is informed just now
    assert worker.exists()
    contained.end(signal.SIGKILL)
    hosts.wait_until(lambda: not worker.exists(), "the worker's end", DEADLINE_S)
    contained.start()
    assert contained.log().count("taking over the mount") == 1


def test_agent_without_its_holder_keeps_the_mount_of_its_guests(contained):
    contained.start()
    with contained.reading() as readers:
        contained.end_holder()
        contained.agent.send_signal(signal.SIGTERM)
        refused = "is in use; the agent keeps running"
        hosts.wait_until(lambda: refused in contained.log(), "a refusal", DEADLINE_S)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])
    assert contained.agent.poll() is None


def test_hung_holder_does_not_affect_guests(contained):
    contained.start()
    with contained.reading() as readers:
        with hosts.frozen(contained.holder.pid):
            said = "the holder does not keep"
            hosts.wait_until(lambda: said in contained.log(), "it", DEADLINE_S)
        tally = readers.stop()
    assert (tally.errors, tally.wrong) == ([], [])


# The holder alone


def test_second_holder_is_refused(contained):
    with pytest.raises(errors.Unusable, match="another holder listens on it"):
        fd_holder.FdHolder(contained.state_dir).__enter__()


def test_second_holder_is_refused_while_the_first_one_is_stopped(contained):
    path = contained.state_dir / fd_holder.SOCKET
    before = path.stat().st_ino
    with hosts.frozen(contained.holder.pid):
        with pytest.raises(errors.Unusable, match="another holder listens on it"):
            fd_holder.FdHolder(contained.state_dir).__enter__()
        assert path.stat().st_ino == before


def test_silent_or_malformed_clients_are_disconnected(contained):
    path = str(contained.state_dir / fd_holder.SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(path)
        began_s = time.monotonic()
        hosts.wait_until(lambda: contained.ask(fd_holder.TAKE) is not None, "its turn", DEADLINE_S)
        assert time.monotonic() - began_s < DEADLINE_S
    with open("/dev/null", "rb") as file:
        assert contained.ask(fd_holder.PUT, [file.fileno()]) == (fd_holder.REFUSED, 0)
        assert contained.ask(b"what?", [file.fileno()]) == (fd_holder.REFUSED, 0)
    assert contained.ask(fd_holder.TAKE) == (fd_holder.NOTHING, 0)
    held = pathlib.Path(f"/proc/{contained.holder.pid}/fd")
    assert "/dev/null" not in [os.readlink(fd) for fd in held.iterdir() if int(fd.name) > 2]


def test_clients_of_other_users_are_refused(contained):
    """The folder's mode keeps them out already; this is the second line of defence."""
    contained.state_dir.chmod(0o711)
    (contained.state_dir / fd_holder.SOCKET).chmod(0o666)
    ask = (
        "import os, pathlib, sys; from acstor_agent.process import fd_holder; "
        f"os.chdir({str(contained.state_dir)!r}); os.setuid({NOBODY}); "
        "print(fd_holder._ask(pathlib.Path(fd_holder.SOCKET), fd_holder.TAKE, ()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=guest_readers.ROOT,
        capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stdout == "None\n"
    log = contained.folder / "holder.log"
    refused = f"of user {NOBODY} is refused"
    hosts.wait_until(lambda: refused in log.read_text(), "its log", DEADLINE_S)
