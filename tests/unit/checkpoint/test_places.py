# SPDX-License-Identifier: Apache-2.0
"""Nobody takes the places of others."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from acstor_checkpoint import places
from acstor_common import ids
from acstor_common import vault_paths


class Connections:
    """Unauthenticated connections, and which of them were ended."""

    def __init__(self, stack: contextlib.ExitStack, made: places.Places) -> None:
        self._stack, self._made = stack, made
        self._far: dict[socket.socket, socket.socket] = {}

    def add(self, address: str) -> socket.socket:
        near, far = socket.socketpair()
        self._stack.callback(near.close)
        self._stack.callback(far.close)
        far.setblocking(False)
        self._far[near] = far
        self._made.add(near, address)
        return near

    def has_ended(self, near: socket.socket) -> bool:
        try:
            return self._far[near].recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def test_a_new_connection_displaces_the_oldest_of_the_address_with_most(
    stack: contextlib.ExitStack,
) -> None:
    connections = Connections(stack, places.Places())
    alone = connections.add("10.0.0.2")
    crowd = [connections.add("10.0.0.1") for _ in range(places.UNAUTHENTICATED - 1)]
    assert not any(map(connections.has_ended, [alone, *crowd]))
    late = connections.add("10.0.0.3")
    ended = [one for one in [alone, *crowd, late] if connections.has_ended(one)]
    assert ended == crowd[:1]


def test_many_addresses_displace_their_own_oldest(stack: contextlib.ExitStack) -> None:
    connections = Connections(stack, places.Places())
    first = [connections.add(f"10.0.0.{n}") for n in range(places.UNAUTHENTICATED)]
    later = [connections.add(f"10.0.1.{n}") for n in range(10)]
    assert [connections.has_ended(one) for one in first] == [n < 10 for n in range(len(first))]
    assert not any(map(connections.has_ended, later))


def test_others_take_no_place_at_the_address_of_a_host(stack: contextlib.ExitStack) -> None:
    connections = Connections(stack, places.Places({"192.0.2.1": 2}.get))
    host = connections.add("192.0.2.1")
    for n in range(2 * places.UNAUTHENTICATED):
        connections.add(f"10.0.0.{n}")
    more = [connections.add("192.0.2.1") for _ in range(2 * places.UNAUTHENTICATED_OF_HOST - 1)]
    assert not any(map(connections.has_ended, [host, *more]))
    connections.add("192.0.2.1")  # they are of one address, and the oldest of them goes
    assert connections.has_ended(host) and not any(map(connections.has_ended, more))


def test_a_place_that_is_given_back_is_free(stack: contextlib.ExitStack) -> None:
    made = places.Places({"192.0.2.1": 1}.get)
    connections = Connections(stack, made)
    for address, limit in (
        ("10.0.0.1", places.UNAUTHENTICATED),
        ("192.0.2.1", places.UNAUTHENTICATED_OF_HOST),
    ):
        held = [connections.add(address) for _ in range(limit)]
        made.remove(held[3], address)
        made.remove(held[3], address)  # it is gone
        connections.add(address)
        assert not any(map(connections.has_ended, held))
        for one in held:
            made.remove(one, address)


def test_an_end_that_cannot_be_told_does_not_matter(stack: contextlib.ExitStack) -> None:
    made = places.Places()
    connections = Connections(stack, made)
    connections.add("10.0.0.1").close()
    for _ in range(places.UNAUTHENTICATED):
        connections.add("10.0.0.1")


def test_unauthenticated_connections_take_no_place_of_hosts(stack: contextlib.ExitStack) -> None:
    made = places.Places()
    connections = Connections(stack, made)
    for n in range(2 * places.CONNECTIONS):
        connections.add(f"10.0.0.{n % 200}")
    with made.host(ids.HostId("h1")) as has_place:
        assert has_place


def test_a_host_has_few_places_and_gets_them_back() -> None:
    all_of_them = places.Places()
    held = [all_of_them.host(ids.HostId("h1")) for _ in range(vault_paths.CONNECTIONS_OF_HOST + 1)]
    got = [one.__enter__() for one in held]
    assert got == [True] * vault_paths.CONNECTIONS_OF_HOST + [False]
    for one in held:
        one.__exit__(None, None, None)
    with all_of_them.host(ids.HostId("h1")) as has_place:
        assert has_place
