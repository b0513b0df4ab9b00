# SPDX-License-Identifier: Apache-2.0
"""Nobody takes the places of others."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from acstor_agent.disks import checkpoint_client
from acstor_checkpoint.schedule import worker_pool
from acstor_checkpoint.vault import connection_limit
from acstor_common.model import ids
from tests.fakes import admission
from tests.fakes import manual_clock

H1 = ids.HostId("h1")


class Connections:
    """Unauthenticated connections, and which of them were ended."""

    def __init__(self, stack: contextlib.ExitStack, made: connection_limit.ConnectionLimit) -> None:
        self._stack, self._made = stack, made
        self._far: dict[socket.socket, socket.socket] = {}

    def pair(self) -> socket.socket:
        near, far = socket.socketpair()
        self._stack.callback(near.close)
        self._stack.callback(far.close)
        far.setblocking(False)
        self._far[near] = far
        return near

    def add(self, address: str) -> socket.socket:
        near = self.pair()
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
    connections = Connections(stack, connection_limit.ConnectionLimit(admission.Admission()))
    alone = connections.add("10.0.0.2")
    crowd = [connections.add("10.0.0.1") for _ in range(connection_limit.UNAUTHENTICATED - 1)]
    assert not any(map(connections.has_ended, [alone, *crowd]))
    late = connections.add("10.0.0.3")
    ended = [one for one in [alone, *crowd, late] if connections.has_ended(one)]
    assert ended == crowd[:1]


def test_many_addresses_displace_their_own_oldest(stack: contextlib.ExitStack) -> None:
    connections = Connections(stack, connection_limit.ConnectionLimit(admission.Admission()))
    first = [connections.add(f"10.0.0.{n}") for n in range(connection_limit.UNAUTHENTICATED)]
    later = [connections.add(f"10.0.1.{n}") for n in range(10)]
    assert [connections.has_ended(one) for one in first] == [n < 10 for n in range(len(first))]
    assert not any(map(connections.has_ended, later))


def test_others_take_no_place_at_the_address_of_a_host(stack: contextlib.ExitStack) -> None:
    connections = Connections(
        stack, connection_limit.ConnectionLimit(admission.Admission(hosts={"192.0.2.1": 2}))
    )
    host = connections.add("192.0.2.1")
    for n in range(2 * connection_limit.UNAUTHENTICATED):
        connections.add(f"10.0.0.{n}")
    more = [
        connections.add("192.0.2.1")
        for _ in range(2 * connection_limit.UNAUTHENTICATED_OF_HOST - 1)
    ]
    assert not any(map(connections.has_ended, [host, *more]))
    connections.add("192.0.2.1")  # they are of one address, and the oldest of them goes
    assert connections.has_ended(host) and not any(map(connections.has_ended, more))


def test_a_place_that_is_given_back_is_free(stack: contextlib.ExitStack) -> None:
    made = connection_limit.ConnectionLimit(admission.Admission(hosts={"192.0.2.1": 1}))
    connections = Connections(stack, made)
    for address, limit in (
        ("10.0.0.1", connection_limit.UNAUTHENTICATED),
        ("192.0.2.1", connection_limit.UNAUTHENTICATED_OF_HOST),
    ):
        held = [connections.add(address) for _ in range(limit)]
        made.remove(held[3], address)
        made.remove(held[3], address)  # it is gone
        connections.add(address)
        assert not any(map(connections.has_ended, held))
        for one in held:
            made.remove(one, address)


def test_an_end_that_cannot_be_told_does_not_matter(stack: contextlib.ExitStack) -> None:
    made = connection_limit.ConnectionLimit(admission.Admission())
    connections = Connections(stack, made)
    connections.add("10.0.0.1").close()
    for _ in range(connection_limit.UNAUTHENTICATED):
        connections.add("10.0.0.1")


def test_unauthenticated_connections_take_no_place_of_hosts(stack: contextlib.ExitStack) -> None:
    made = connection_limit.ConnectionLimit(admission.Admission())
    connections = Connections(stack, made)
    for n in range(2 * connection_limit.CONNECTIONS):
        connections.add(f"10.0.0.{n % 200}")
    with made.admit_host(connections.pair(), H1) as has_place:
        assert has_place


class Hosts:
    """Authenticated connections, and which of them were ended."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack, self.now_s = stack, 100.0
        self.places = connection_limit.ConnectionLimit(
            admission.Admission(), clock=manual_clock.FunctionClock(lambda: self.now_s)
        )
        self.connections = Connections(stack, self.places)

    def add(self, host: str, *, is_busy: bool = False) -> socket.socket | None:
        near = self.connections.pair()
        if not self._stack.enter_context(self.places.admit_host(near, ids.HostId(host))):
            return None
        if is_busy:
            self._stack.enter_context(self.places.mark_busy(near))
        return near

    def ended(self, *some: socket.socket | None) -> list[bool]:
        return [one is None or self.connections.has_ended(one) for one in some]


def test_a_host_displaces_its_own_idle_connection_and_no_busy_one(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    other = hosts.add("h2")
    busy = [hosts.add("h1", is_busy=True) for _ in range(connection_limit.CONNECTIONS_OF_HOST - 1)]
    idle = hosts.add("h1")
    late = hosts.add("h1", is_busy=True)
    assert hosts.ended(idle, late, other, *busy) == [True] + [False] * (2 + len(busy))
    assert hosts.add("h1") is None
    assert hosts.ended(late, other, *busy) == [False] * (2 + len(busy))


def test_checkpoints_of_a_host_have_places_beside_its_recoveries(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    count = checkpoint_client.CONNECTIONS + worker_pool.WORKERS + 1  # one collects garbage
    assert None not in [hosts.add("h1", is_busy=True) for _ in range(count)]


@pytest.mark.parametrize("is_busy", [False, True])
def test_hosts_that_have_all_places_give_each_newcomer_one(
    stack: contextlib.ExitStack, is_busy: bool
) -> None:
    hosts = Hosts(stack)
    crowd = connection_limit.CONNECTIONS // connection_limit.CONNECTIONS_OF_HOST
    held = [
        hosts.add(f"c{n % crowd}", is_busy=is_busy) for n in range(connection_limit.CONNECTIONS)
    ]
    late = [hosts.add(f"h{n}") for n in range(crowd)]
    assert not any(hosts.ended(*late))
    # Each host of the crowd has lost one, its oldest.
    assert hosts.ended(*held) == [n < crowd for n in range(len(held))]
    assert hosts.places.authenticated_count == connection_limit.CONNECTIONS


def test_idle_connection_goes_before_busy_ones_of_a_host_with_more(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    idle = hosts.add("h2")
    hosts.now_s += connection_limit.IDLE_S
    held = [hosts.add(f"c{n % 40}", is_busy=True) for n in range(connection_limit.CONNECTIONS - 1)]
    assert hosts.add("h1") and hosts.ended(idle) == [True]
    assert not any(hosts.ended(*held))


def test_where_each_host_has_one_busy_connection_there_is_no_place(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    held = [hosts.add(f"c{n}", is_busy=True) for n in range(connection_limit.CONNECTIONS)]
    assert hosts.add("h1") is None and not any(hosts.ended(*held))


def test_a_host_gets_its_places_back(stack: contextlib.ExitStack) -> None:
    with contextlib.ExitStack() as first:
        hosts = Hosts(first)
        for _ in range(connection_limit.CONNECTIONS_OF_HOST):
            hosts.add("h1", is_busy=True)
    assert hosts.places.authenticated_count == 0
    with hosts.places.admit_host(hosts.connections.pair(), H1) as has_place:
        assert has_place


def test_end_of_a_vault_ends_all_connections(stack: contextlib.ExitStack) -> None:
    hosts = Hosts(stack)
    held = [hosts.add("h1"), hosts.add("h2", is_busy=True), hosts.connections.add("10.0.0.1")]
    hosts.places.end_all()
    assert all(hosts.ended(*held))
