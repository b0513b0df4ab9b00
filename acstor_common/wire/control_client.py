# SPDX-License-Identifier: Apache-2.0
"""Blocking request to the host's agent, by plain sockets: works with threads and eventlet."""

import contextlib
import socket
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from acstor_common import errors
from acstor_common.wire import control_wire

READ_BYTES = 64 * 1024
TIMEOUT_S = 45.0
"""Default timeout; an agent may need 30 s to fetch a chunk map."""


def _explain(path: str) -> str:
    return "permission denied: only members of [acstor_agent] control_group may use it"


def send(
    socket_path: str,
    request: control_wire.ControlRequest,
    timeout_s: float = TIMEOUT_S,
    explain_denied: Callable[[str], str] = _explain,
) -> Any:
    """Return a request's result; AgentUnreachable: no answer in time; AgentRefused: rejected.

    :param explain_denied: makes the reason of a socket that this user may not open, from its path
    """
    try:
        for reply in _replies(socket_path, request, timeout_s):
            match reply:
                case control_wire.Failed(kind, error):
                    raise errors.AgentRefused(kind, error)
                case control_wire.Done(result):
                    return result
    except TimeoutError as e:
        raise errors.AgentUnreachable(socket_path, f"no answer within {timeout_s:g} s") from e
    except PermissionError as e:
        raise errors.AgentUnreachable(socket_path, explain_denied(socket_path)) from e
    except (OSError, errors.RemoteProtocolError) as e:
        raise errors.AgentUnreachable(socket_path, str(e)) from e
    raise errors.AgentUnreachable(socket_path, "it closed the connection before it answered")


def _replies(
    socket_path: str, request: control_wire.ControlRequest, timeout_s: float
) -> Iterator[control_wire.AnyReply]:
    ends_s = time.monotonic() + timeout_s
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as agent:
        agent.settimeout(timeout_s)
        agent.connect(socket_path)
        agent.sendall(control_wire.encode(request))
        for line in _lines(agent, ends_s):
            yield control_wire.decode_reply(line)


def _lines(agent: socket.socket, ends_s: float) -> Iterator[bytes]:
    buffer = b""
    while True:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        agent.settimeout(left_s)
        received = agent.recv(READ_BYTES)
        if not received:
            return
        *lines, buffer = (buffer + received).split(b"\n")
        yield from lines
        if len(buffer) > control_wire.MAX_LINE_BYTES:
            why = f"a line of over {control_wire.MAX_LINE_BYTES} bytes"
            raise errors.RemoteProtocolError("acstor-agent", why)
