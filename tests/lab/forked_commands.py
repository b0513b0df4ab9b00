# SPDX-License-Identifier: Apache-2.0
"""Agents of tests as forks of one process that has imported what an agent consists of.

Those imports take three times as much of a processor as the rest of an agent's start.  The rule: a
fork shares no more than the modules; arguments, constants, output and status are its own.  It
inherits environment and folder of the pytest process as they were when the first agent started, so
an agent that needs others is executed (:func:`fits`).
"""

import contextlib
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
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO
from typing import Any

MODULE = "acstor_agent.cmd.agent"
_PAUSE_S = 0.01
_MESSAGE_BYTES = 1 << 16
_VARIES = "PYTEST_CURRENT_TEST"
_is_enabled = False


class ForkedAgent:
    """An agent's process, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, None while it runs; after that nobody else has its pid."""
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its exit status.

        :raises subprocess.TimeoutExpired: it took longer
        """
        ends_s = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > ends_s:
                raise subprocess.TimeoutExpired(MODULE, timeout)
            time.sleep(_PAUSE_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process of the forks, which ends with this one."""

    def __init__(self) -> None:
        self._link, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._around = _surroundings()
        with its:
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )

    def fits(self) -> bool:
        """Say whether a process that is executed now would have the surroundings of a fork."""
        return _surroundings() == self._around

    def start(
        self, arguments: Sequence[str], constants: Mapping[str, Any], out: IO[bytes]
    ) -> ForkedAgent:
        """Start an agent, whose output goes to ``out``."""
        wanted = {"arguments": list(arguments), "constants": dict(constants)}
        return ForkedAgent(self, self.ask(wanted, [out.fileno()]))

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """Send a message and return the answer."""
        with self._lock:
            socket.send_fds(self._link, [json.dumps(message).encode()], descriptors)
            return json.loads(self._link.recv(_MESSAGE_BYTES))


_server = functools.cache(ForkServer)


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Let agents be forks until the block ends; benchmarks execute theirs."""
    global _is_enabled
    before, _is_enabled = _is_enabled, True
    try:
        yield
    finally:
        _is_enabled = before


def server() -> ForkServer | None:
    """Return what forks the next agent; None: it has to be executed."""
    return _server() if _is_enabled and _server().fits() else None


def _surroundings() -> tuple[dict[str, str], str]:
    variables = {name: value for name, value in os.environ.items() if name != _VARIES}
    return variables, os.getcwd()


def _serve(link: socket.socket) -> None:
    """Fork agents and tell of their ends, until nobody can ask any more."""
    gc.disable()
    command = importlib.import_module(MODULE)
    change = runpy.run_path(str(pathlib.Path(__file__).with_name("tuned.py")))["change"]
    gc.freeze()
    gc.enable()
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(link, _MESSAGE_BYTES, 1)
        if not data:
            return
        message = json.loads(data)
        if "poll" in message:
            answer = _poll(message["poll"])
        elif (answer := os.fork()) == 0:
            link.close()
            _become(message["arguments"], descriptors[0])
            change(message["constants"])
            sys.exit(command.main())
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(json.dumps(answer).encode())


def _poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(arguments: Sequence[str], out: int) -> None:
    """Give a fork a session, its output and its arguments."""
    os.setsid()
    for number in (1, 2):
        os.dup2(out, number)
    os.close(out)
    sys.argv = [str(pathlib.Path(sys.executable).parent / "acstor-agent"), *arguments]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
