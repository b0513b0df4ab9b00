# SPDX-License-Identifier: Apache-2.0
"""Where other agents reach this one: accepts their connections, and comes back when it dies.

A host whose own endpoint is dead notices nothing by itself: it asks others and is
answered, while it costs them a try each time.  So a listening socket that fails,
or that does not listen any more, is closed and opened again; connections that
were accepted before go on.

The one rule: accepting ends only when the agent does.
"""

import logging
import socket
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_common import errors
from acstor_common import ring

LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""How often the sockets are asked whether they listen: the kernel does not always say so itself."""
RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 5.0

Handler = Callable[[trio.SocketStream], Awaitable[object]]
Listeners = Sequence[trio.SocketListener]


async def open_at(address: str) -> list[trio.SocketListener]:
    """Return sockets that listen at ``ip:port``.

    :raises errors.Unusable: nobody can listen there
    """
    try:
        host, port = ring.parse_address(address)
        return await trio.open_tcp_listeners(port, host=host)
    except (ValueError, OSError) as e:
        raise errors.Unusable("[acstor_agent] peer_listen", f"{address}: {e}") from e


class Endpoint:
    """The listening sockets of an agent.

    :param handler: takes each connection that is accepted
    """

    def __init__(self, handler: Handler) -> None:
        self.reopened = 0
        self._handler = handler

    async def serve(
        self,
        listeners: Listeners,
        handlers: trio.Nursery,
        task_status: trio.TaskStatus[Listeners] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections for ever, at the addresses at which ``listeners`` listen now.

        :param handlers: where what takes the connections runs
        """
        addresses = [listener.socket.getsockname()[:2] for listener in listeners]
        task_status.started(listeners)
        while True:
            why = await self._until_it_dies(listeners, handlers)
            LOG.warning("the peer endpoint %s has died (%s); it is opened again", addresses, why)
            for listener in listeners:
                await trio.aclose_forcefully(listener)
            listeners = await _open_again(addresses)
            self.reopened += 1
            LOG.info("the peer endpoint %s is open again", addresses)

    async def _until_it_dies(self, listeners: Listeners, handlers: trio.Nursery) -> str:
        """Accept connections; return why no more come."""
        why = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, listeners)
                await trio.serve_listeners(self._handler, list(listeners), handler_nursery=handlers)
        except* (OSError, trio.ClosedResourceError) as failures:
            why = str(failures.exceptions[0]) or type(failures.exceptions[0]).__name__
        return why


async def _open_again(addresses: Sequence[tuple[str, int]]) -> Listeners:
    """Open the sockets at all addresses, as soon as that can be done."""
    delay_s = RETRY_FIRST_S
    while True:
        opened: list[trio.SocketListener] = []
        try:
            for ip, port in addresses:
                opened += await trio.open_tcp_listeners(port, host=ip)
        except OSError as e:
            LOG.warning("the peer endpoint cannot be opened: %s", e)
            for listener in opened:
                await trio.aclose_forcefully(listener)
        else:
            return opened
        await trio.sleep(delay_s)
        delay_s = min(2 * delay_s, RETRY_LONGEST_S)


async def _watch(listeners: Listeners) -> None:
    while True:
        await trio.sleep(LOOK_EVERY_S)
        for listener in listeners:
            if not listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OSError("it does not listen any more")
