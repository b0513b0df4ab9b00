# SPDX-License-Identifier: Apache-2.0
"""An agent's control socket in a thread, with scripted responses."""

import contextlib
import pathlib
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator

from acstor_common.wire import control_wire

Answer = Callable[[control_wire.AnyRequest], bytes]


class ScriptedAgent:
    """The requests received, and the responses.

    :param answers: response bytes by kind of request
    """

    hangs_up = False

    def __init__(self, path: pathlib.Path, answers: dict[type, Answer]) -> None:
        self.asked: list[control_wire.AnyRequest] = []
        self.answers = answers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as lines:
                line = lines.readline()
                if not line:
                    continue
                request = control_wire.decode_request(line)
                self.asked.append(request)
                with contextlib.suppress(OSError):
                    client.sendall(self.answers[type(request)](request))
                    if not self.hangs_up:
                        lines.read()  # until the client disconnects

    def close(self) -> None:
        """Stop serving."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def done(result: object = None) -> Answer:
    """Return a success response."""
    return lambda request: control_wire.encode(control_wire.Done(result))


def failed(kind: str, error: str) -> Answer:
    """Return an error response."""
    return lambda request: control_wire.encode(control_wire.Failed(kind, error))


@contextlib.contextmanager
def running(path: pathlib.Path, answers: dict[type, Answer]) -> Iterator[ScriptedAgent]:
    """Run one for the block."""
    agent = ScriptedAgent(path, answers)
    try:
        yield agent
    finally:
        agent.close()
