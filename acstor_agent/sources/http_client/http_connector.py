# SPDX-License-Identifier: Apache-2.0
"""Opens TCP connections by name; tries the next address if one fails or is late (RFC 8305)."""

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

import trio

from acstor_agent.core.sources import hung_calls
from acstor_agent.sources import blocking_threads

LOOKUPS_AT_A_TIME = 2
NEXT_ADDRESS_S = 0.25  # time without a connection after which the next address is tried too
MAX_ADDRESSES = 8


class HttpConnector:
    """Connects to the servers of one source, ``what`` in words."""

    def __init__(self, what: str) -> None:
        self._threads = blocking_threads.BlockingThreads(
            f"the resolver, for {what}", LOOKUPS_AT_A_TIME
        )

    @property
    def hanging(self) -> hung_calls.Hanging:
        """The calls of the resolver that hang now; may be read from any thread."""
        return self._threads.hanging

    async def connect_socket(self, host: str, port: int) -> socket.socket:
        """Return a connected non-blocking socket.

        :raises OSError: the server cannot be reached, or the name is unknown
        :raises errors.SourceUnreachable: too many calls of the resolver hang
        """
        stream = await _connect_any(await self._addresses(host, port), host, port)
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]

        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(address[0]) for *_, address in found))

        addresses = await self._threads.run(f"the address of {host}", host, look_up)
        return addresses[:MAX_ADDRESSES]


async def _connect_any(addresses: Sequence[str], host: str, port: int) -> trio.SocketStream:
    made: list[trio.SocketStream] = []
    failures: list[OSError] = []

    async def connect(address: str, has_failed: trio.Event) -> None:
        try:
            made.append(await trio.open_tcp_stream(address, port))
        except OSError as failure:
            failures.append(failure)
            has_failed.set()
        else:
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for address in addresses:
            has_failed = trio.Event()
            nursery.start_soon(connect, address, has_failed)
            with trio.move_on_after(NEXT_ADDRESS_S):
                await has_failed.wait()
    for late in made[1:]:  # connected in the same turn
        late.socket.close()
    if not made:
        raise OSError(f"no address of {host} can be reached") from ExceptionGroup("", failures)
    return made[0]
