# SPDX-License-Identifier: Apache-2.0
"""The control socket: reads requests, calls the handler, writes replies.

A client that violates the protocol gets an error and is disconnected. If there are too many, a new
one replaces the longest idle one, or one that reads no reply; if there is none, it is refused.
"""

import contextlib
import functools
import logging
import os
import pathlib
import socket
import struct
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import trio

from acstor_agent.process import folders
from acstor_agent.runtime import process_cleanup
from acstor_common import errors
from acstor_common.util import log_limit
from acstor_common.wire import control_wire

LOG = logging.getLogger(__name__)

BACKLOG = 16
MAX_CLIENTS = 64  # limit of connections; each may have a task and MAX_LINE_BYTES in memory
READ_BYTES = 64 * 1024
LOG_INTERVAL_S = 10.0
_CREDENTIALS = struct.Struct("iii")  # pid, uid, gid: struct ucred of linux/socket.h

Report = Callable[[int, int], Awaitable[None]]
"""Reports the progress of a request: bytes done, bytes in all."""
Handler = Callable[[control_wire.AnyRequest, Report], Awaitable[Any]]
_Send = Callable[[control_wire.Reply], Awaitable[None]]


def bind(path: pathlib.Path, gid: int | None) -> trio.SocketListener:
    """Return a listening socket for the agent's user and the group ``gid``, if given.

    :raises errors.Unusable: the path cannot be bound, or another agent uses it
    """
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_served(path):
            raise errors.Unusable(
                str(path),
                "another agent listens on it",
                "Set a different control_socket for each agent",
            )
        path.unlink(missing_ok=True)
        plain.bind(str(path))  # clients cannot connect before listen()
        path.chmod(0o600)
        if gid is not None:
            os.chown(path, -1, gid)
            path.chmod(0o660)
        plain.listen(BACKLOG)
    except OSError as e:
        plain.close()
        raise errors.Unusable(
            str(path), f"cannot be used as the control socket: {e.strerror or e}"
        ) from e
    return trio.SocketListener(trio.socket.from_stdlib_socket(plain))


def _is_served(path: pathlib.Path) -> bool:
    """Return whether a live process listens; a killed one may still hold the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        theirs = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return not process_cleanup.has_ended(_CREDENTIALS.unpack(theirs)[0])
    return False


async def listen(
    path: pathlib.Path,
    gid: int | None,
    handle: Handler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Create the socket and its folder (see :func:`bind`), and serve until cancelled."""
    if not path.parent.is_dir():
        folders.make_folder(path.parent)
    await serve(bind(path, gid), handle, task_status=task_status)


async def serve(
    listener: trio.SocketListener,
    handle: Handler,
    max_clients: int = MAX_CLIENTS,
    max_line_bytes: int = control_wire.MAX_LINE_BYTES,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests until cancelled."""
    clients = _Clients(max_clients)

    async def converse(stream: trio.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                try:
                    with clients.one_more() as client:
                        send = functools.partial(clients.send, client, stream)
                        async for line in _lines(stream, max_line_bytes):
                            with clients.busy(client):
                                if not await _answer(send, line, handle):
                                    return
                except errors.RemoteProtocolError as e:
                    await stream.send_all(control_wire.encode(_failed(e)))
                except errors.QueueFull as e:  # logged at a limited rate
                    refused = control_wire.Failed(type(e).__name__, str(e))
                    await stream.send_all(control_wire.encode(refused))

    async with trio.open_nursery() as nursery:
        task_status.started()
        nursery.start_soon(trio.serve_listeners, converse, [listener])


class _Clients:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[trio.CancelScope, None] = {}  # longest idle first
        self._busy: set[trio.CancelScope] = set()
        self._log_limit = log_limit.LogLimit(LOG_INTERVAL_S)

    @contextlib.contextmanager
    def one_more(self) -> Iterator[trio.CancelScope]:
        """Register a client for a block, or until replaced; raise QueueFull if no other is idle."""
        if len(self._idle) + len(self._busy) >= self._limit:
            self._make_room()
        with trio.CancelScope() as client:
            self._idle[client] = None
            try:
                yield client
            finally:
                self._idle.pop(client, None)

    @contextlib.contextmanager
    def busy(self, client: trio.CancelScope) -> Iterator[None]:
        self._idle.pop(client, None)  # absent if the client was just replaced
        self._busy.add(client)
        try:
            yield
        finally:
            self._busy.remove(client)
            self._idle[client] = None

    async def send(
        self, client: trio.CancelScope, stream: trio.SocketStream, reply: control_wire.Reply
    ) -> None:
        self._busy.remove(client)
        self._idle[client] = None
        try:
            await stream.send_all(control_wire.encode(reply))
        finally:
            self._idle.pop(client, None)
            self._busy.add(client)

    def _make_room(self) -> None:
        untold = self._log_limit.take_line(None, trio.current_time())
        if untold is not None:
            LOG.warning("control socket: more than %d clients (%d times more)", self._limit, untold)
        if not self._idle:
            raise errors.QueueFull(f"control socket ({self._limit} requests in progress)")
        idlest = next(iter(self._idle))
        del self._idle[idlest]
        idlest.cancel()


async def _answer(send: _Send, line: bytes, handle: Handler) -> bool:
    with trio.CancelScope() as scope:

        async def report(done_bytes: int, total_bytes: int) -> None:
            try:
                await send(control_wire.Progress(done_bytes, total_bytes))
            except trio.BrokenResourceError:  # the client is gone
                scope.cancel()

        reply = await _reply(line, handle, report)
    if scope.cancelled_caught:
        return False
    await send(reply)
    return not (
        isinstance(reply, control_wire.Failed) and reply.kind == errors.RemoteProtocolError.__name__
    )


async def _reply(line: bytes, handle: Handler, report: Report) -> control_wire.Reply:
    try:
        return control_wire.Done(await handle(control_wire.decode_request(line), report))
    except (errors.AcstorError, ValueError, OSError) as e:
        return _failed(e)
    except Exception as e:
        LOG.exception("control request failed")
        return control_wire.Failed(type(e).__name__, str(e))


def _failed(error: Exception) -> control_wire.Failed:
    LOG.warning("control request failed: %s", error)
    return control_wire.Failed(type(error).__name__, str(error))


async def _lines(stream: trio.SocketStream, max_bytes: int) -> AsyncIterator[bytes]:
    """Split a client's data into lines; raise RemoteProtocolError for long ones."""
    buffer = bytearray()
    while chunk := await stream.receive_some(READ_BYTES):
        *ends, rest = chunk.split(b"\n")  # the buffer may be long, and the chunk a byte
        for end in ends:
            yield bytes(buffer + end)
            buffer.clear()
        buffer += rest
        if len(buffer) > max_bytes:
            raise errors.RemoteProtocolError("control client", f"a line of over {max_bytes} bytes")
