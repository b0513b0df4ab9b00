# SPDX-License-Identifier: Apache-2.0
"""acstor's commands as forks of processes with preloaded imports.

The imports take three times the CPU time of the rest of a daemon's start.  A fork shares only the
modules: arguments, constants, output and status are its own.  It inherits the environment and
working directory of the pytest process at the first start, so a command with others is executed.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO
from typing import Any

AGENT = "acstor_agent.cmd.agent"
CHECKPOINTD = "acstor_checkpoint.cmd.checkpointd"
DECISION = "acstor_decision.cmd.decision"
DECISION_MANAGE = "acstor_decision.cmd.manage"
GLANCE_LISTENER = "acstor_glance.cmd.listener"
GLANCE_MANAGE = "acstor_glance.cmd.manage"
_TUNED = pathlib.Path(__file__).with_name("tuned.py")
_PAUSE_S = 0.01
_MESSAGE_BYTES = 1 << 16
_DESCRIPTORS = 4  # output, errors, and namespaces
_VARIES = "PYTEST_CURRENT_TEST"
_is_enabled = False


class ForkedCommand:
    """A command's process, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status.

        :raises subprocess.TimeoutExpired: it took longer
        """
        began_s = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() > began_s + timeout:
                raise subprocess.TimeoutExpired(self._server.module, timeout)
            time.sleep(_PAUSE_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, if it runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The fork server of one command, which ends with this process.

    :param module: of the command, with ``main``
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self._link, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._around = _surroundings()
        with its:
            subprocess.Popen(
                [sys.executable, "-P", __file__, module, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )

    def fits(self) -> bool:
        """Return whether environment and working directory still equal those of the forks."""
        return _surroundings() == self._around

    def start(
        self,
        arguments: Sequence[str | pathlib.Path],
        constants: Mapping[str, Any],
        out: IO[bytes],
        err: IO[bytes] | None = None,
        namespaces: Sequence[pathlib.Path] = (),
    ) -> ForkedCommand:
        """Start the command.

        :param err: for its standard error; None: ``out``
        :param namespaces: that it enters; files below ``/proc`` or ``/run/netns``
        """
        wanted = {"arguments": list(map(str, arguments)), "constants": dict(constants)}
        with contextlib.ExitStack() as stack:
            entered = [stack.enter_context(path.open("rb")).fileno() for path in namespaces]
            given = [out.fileno(), (err or out).fileno(), *entered]
            return ForkedCommand(self, self.ask(wanted, given))

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """Send a message and return the reply."""
        with self._lock:
            socket.send_fds(self._link, [json.dumps(message).encode()], descriptors)
            return json.loads(self._link.recv(_MESSAGE_BYTES))


_server = functools.cache(ForkServer)


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Run commands as forks for the block; benchmarks execute theirs."""
    global _is_enabled
    before, _is_enabled = _is_enabled, True
    try:
        yield
    finally:
        _is_enabled = before


def server(module: str) -> ForkServer | None:
    """Return the command's fork server, None if the command must be executed."""
    return _server(module) if _is_enabled and _server(module).fits() else None


def start(
    module: str,
    arguments: Sequence[str | pathlib.Path],
    constants: Mapping[str, Any],
    out: IO[bytes],
    err: IO[bytes] | None = None,
) -> ForkedCommand | subprocess.Popen[bytes]:
    """Start a command, as a fork if possible.

    :param err: for its standard error; None: ``out``
    """
    if (forks := server(module)) is not None:
        return forks.start(arguments, constants, out, err)
    command = [sys.executable, "-P", _TUNED, module, json.dumps(dict(constants)), *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err or out, start_new_session=True
    )


def run(
    module: str,
    arguments: Sequence[str | pathlib.Path],
    constants: Mapping[str, Any],
    deadline_s: float,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its status and output.

    :raises subprocess.TimeoutExpired: it took longer, and was killed
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = start(module, arguments, constants, out, err)
        try:
            status = command.wait(deadline_s)
        finally:
            command.kill()
        for stream in (out, err):
            stream.seek(0)
        words = [module, *map(str, arguments)]
        return subprocess.CompletedProcess(words, status, out.read().decode(), err.read().decode())


def _surroundings() -> tuple[dict[str, str], str]:
    variables = {name: value for name, value in os.environ.items() if name != _VARIES}
    return variables, os.getcwd()


def _serve(module: str, link: socket.socket) -> None:
    """Fork commands and report their exits, until the socket is closed."""
    gc.disable()
    command = importlib.import_module(module)
    change = runpy.run_path(str(_TUNED))["change"]
    gc.freeze()
    gc.enable()
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(link, _MESSAGE_BYTES, _DESCRIPTORS)
        if not data:
            return
        message = json.loads(data)
        if "poll" in message:
            answer = _poll(message["poll"])
        elif (answer := os.fork()) == 0:
            link.close()
            _become([module, *message["arguments"]], descriptors)
            change(message["constants"])
            sys.exit(command.main())
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(json.dumps(answer).encode())


def _poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(argv: list[str], descriptors: Sequence[int]) -> None:
    """Set the session, the namespaces, the output and the arguments of a fork."""
    os.setsid()
    for descriptor in descriptors[2:]:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):  # os.setns needs Python 3.12
            raise OSError(ctypes.get_errno(), "setns")
    for number, descriptor in enumerate(descriptors[:2], start=1):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    sys.argv = argv


if __name__ == "__main__":
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
