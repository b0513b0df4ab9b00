# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of an agent: accepts connections, and reopens sockets that fail.

A host does not notice its own dead listener, since it still reaches others.
"""

import errno
import logging
import socket
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.util import backoff

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0
"""Interval of checks that sockets still listen; the kernel does not always report it."""
RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 5.0

ACCEPTS_PER_TURN = 32  # connections refused in a row before other tasks get a turn
CONNECTION_ERRNOS = {
    errno.ECONNABORTED,
    errno.EPERM,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
    errno.ENONET,
}
"""Errors of accept(2) about one connection, not about the listening socket."""

Handler = Callable[[trio.SocketStream], Awaitable[object]]
MayEnter = Callable[[str], bool]  # returns whether to accept a connection from an IP address
Listeners = Sequence[trio.SocketListener]


async def open_at(address: str) -> list[trio.SocketListener]:
    """Return sockets that listen at ``ip:port``, or raise Unusable if it cannot be bound."""
    try:
        host, port = addresses.parse(address)
        return await trio.open_tcp_listeners(port, host=host)
    except (ValueError, OSError) as e:
        raise errors.Unusable("[acstor_agent] peer_listen", f"{address}: {e}") from e


class PeerListener:
    """The listening sockets of an agent; ``handler`` takes each accepted connection."""

    def __init__(self, handler: Handler, may_enter: MayEnter = lambda ip: True) -> None:
        self.reopened = 0
        self._handler = handler
        self._may_enter = may_enter

    async def serve(
        self,
        listeners: Listeners,
        handlers: trio.Nursery,
        task_status: trio.TaskStatus[Listeners] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections until cancelled; reopen listeners at their addresses if they fail."""
        addresses = [listener.socket.getsockname()[:2] for listener in listeners]
        task_status.started(listeners)
        while True:
            why = await self._serve_until_failure(listeners, handlers)
            LOG.warning("the peer listener %s has failed (%s); reopening it", addresses, why)
            for listener in listeners:
                await trio.aclose_forcefully(listener)
            listeners = await _open_again(addresses)
            self.reopened += 1
            LOG.info("the peer listener %s is open again", addresses)

    async def _serve_until_failure(self, listeners: Listeners, handlers: trio.Nursery) -> str:
        why = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, listeners)
                filtered = [_FilteringListener(listener, self._may_enter) for listener in listeners]
                await trio.serve_listeners(self._handler, filtered, handler_nursery=handlers)
        except* (OSError, trio.ClosedResourceError) as failures:
            why = str(failures.exceptions[0]) or type(failures.exceptions[0]).__name__
        return why


class _FilteringListener(trio.abc.Listener[trio.SocketStream]):
    def __init__(self, listener: trio.SocketListener, may_enter: MayEnter) -> None:
        self._listener = listener
        self._may_enter = may_enter

    async def accept(self) -> trio.SocketStream:
        while True:
            await trio.lowlevel.wait_readable(self._listener.socket)
            for _ in range(ACCEPTS_PER_TURN):
                try:
                    accepted = self._accept_nowait()
                except BlockingIOError:
                    break
                if accepted is not None:
                    return trio.SocketStream(trio.socket.from_stdlib_socket(accepted))

    def _accept_nowait(self) -> socket.socket | None:
        ours = self._listener.socket
        raw = socket.socket(ours.family, ours.type, ours.proto, ours.fileno())
        try:
            accepted, address = raw.accept()
        except BlockingIOError:
            raise
        except OSError as e:
            if e.errno in CONNECTION_ERRNOS:
                return None
            raise
        finally:
            raw.detach()
        if self._may_enter(address[0]):
            return accepted
        accepted.close()
        return None

    async def aclose(self) -> None:
        await self._listener.aclose()


async def _open_again(addresses: Sequence[tuple[str, int]]) -> Listeners:
    tries = 0
    while True:
        opened: list[trio.SocketListener] = []
        try:
            for ip, port in addresses:
                opened += await trio.open_tcp_listeners(port, host=ip)
        except OSError as e:
            LOG.warning("the peer listener cannot be opened: %s", e)
            for listener in opened:
                await trio.aclose_forcefully(listener)
        else:
            return opened
        await trio.sleep(backoff.pause_s(tries, RETRY_FIRST_S, RETRY_LONGEST_S))
        tries += 1


async def _watch(listeners: Listeners) -> None:
    while True:
        await trio.sleep(CHECK_INTERVAL_S)
        for listener in listeners:
            if not listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OSError("it is no longer listening")
