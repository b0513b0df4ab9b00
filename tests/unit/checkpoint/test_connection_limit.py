# SPDX-License-Identifier: Apache-2.0
"""Connection limits of a vault, and which connections are closed at the limit."""

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
    """Unauthenticated connections, and which of them were closed."""

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


def test_new_connection_closes_the_oldest_of_the_busiest_address(
    stack: contextlib.ExitStack,
) -> None:
    connections = Connections(stack, connection_limit.ConnectionLimit(admission.Admission()))
    alone = connections.add("10.0.0.2")
    crowd = [connections.add("10.0.0.1") for _ in range(connection_limit.UNAUTHENTICATED - 1)]
    assert not any(map(connections.has_ended, [alone, *crowd]))
    late = connections.add("10.0.0.3")
    ended = [one for one in [alone, *crowd, late] if connections.has_ended(one)]
    assert ended == crowd[:1]


def test_connections_of_many_addresses_close_the_oldest_ones(stack: contextlib.ExitStack) -> None:
    connections = Connections(stack, connection_limit.ConnectionLimit(admission.Admission()))
    first = [connections.add(f"10.0.0.{n}") for n in range(connection_limit.UNAUTHENTICATED)]
    later = [connections.add(f"10.0.1.{n}") for n in range(10)]
    assert [connections.has_ended(one) for one in first] == [n < 10 for n in range(len(first))]
    assert not any(map(connections.has_ended, later))


def test_unknown_addresses_take_no_slots_of_a_hosts_address(stack: contextlib.ExitStack) -> None:
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
    connections.add("192.0.2.1")  # the limit of the address closes its oldest connection
    assert connections.has_ended(host) and not any(map(connections.has_ended, more))


def test_removed_connection_frees_its_slot(stack: contextlib.ExitStack) -> None:
    made = connection_limit.ConnectionLimit(admission.Admission(hosts={"192.0.2.1": 1}))
    connections = Connections(stack, made)
    for address, limit in (
        ("10.0.0.1", connection_limit.UNAUTHENTICATED),
        ("192.0.2.1", connection_limit.UNAUTHENTICATED_OF_HOST),
    ):
        held = [connections.add(address) for _ in range(limit)]
        made.remove(held[3], address)
        made.remove(held[3], address)  # removed before
        connections.add(address)
        assert not any(map(connections.has_ended, held))
        for one in held:
            made.remove(one, address)


def test_closed_socket_can_be_displaced(stack: contextlib.ExitStack) -> None:
    made = connection_limit.ConnectionLimit(admission.Admission())
    connections = Connections(stack, made)
    connections.add("10.0.0.1").close()
    for _ in range(connection_limit.UNAUTHENTICATED):
        connections.add("10.0.0.1")


def test_unauthenticated_connections_take_no_slots_of_hosts(stack: contextlib.ExitStack) -> None:
    made = connection_limit.ConnectionLimit(admission.Admission())
    connections = Connections(stack, made)
    for n in range(2 * connection_limit.CONNECTIONS):
        connections.add(f"10.0.0.{n % 200}")
    with made.admit_host(connections.pair(), H1) as has_place:
        assert has_place


class Hosts:
    """Authenticated connections, and which of them were closed."""

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


def test_host_at_its_limit_closes_its_idle_connection_and_no_busy_one(
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


def test_captures_and_restores_of_a_host_fit_its_limit(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    count = checkpoint_client.CONNECTIONS + worker_pool.WORKERS + 1  # one for garbage collection
    assert None not in [hosts.add("h1", is_busy=True) for _ in range(count)]


@pytest.mark.parametrize("is_busy", [False, True])
def test_new_hosts_get_a_slot_each_from_hosts_with_many(
    stack: contextlib.ExitStack, is_busy: bool
) -> None:
    hosts = Hosts(stack)
    crowd = connection_limit.CONNECTIONS // connection_limit.CONNECTIONS_OF_HOST
    held = [
        hosts.add(f"c{n % crowd}", is_busy=is_busy) for n in range(connection_limit.CONNECTIONS)
    ]
    late = [hosts.add(f"h{n}") for n in range(crowd)]
    assert not any(hosts.ended(*late))
    # Each host of the crowd lost its oldest connection.
    assert hosts.ended(*held) == [n < crowd for n in range(len(held))]
    assert hosts.places.authenticated_count == connection_limit.CONNECTIONS


def test_idle_connection_is_closed_before_busy_ones(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    idle = hosts.add("h2")
    hosts.now_s += connection_limit.IDLE_S
    held = [hosts.add(f"c{n % 40}", is_busy=True) for n in range(connection_limit.CONNECTIONS - 1)]
    assert hosts.add("h1") and hosts.ended(idle) == [True]
    assert not any(hosts.ended(*held))


def test_new_host_is_refused_when_each_host_has_one_busy_connection(
    stack: contextlib.ExitStack,
) -> None:
    hosts = Hosts(stack)
    held = [hosts.add(f"c{n}", is_busy=True) for n in range(connection_limit.CONNECTIONS)]
    assert hosts.add("h1") is None and not any(hosts.ended(*held))


def test_slots_of_a_host_are_released(stack: contextlib.ExitStack) -> None:
    with contextlib.ExitStack() as first:
        hosts = Hosts(first)
        for _ in range(connection_limit.CONNECTIONS_OF_HOST):
            hosts.add("h1", is_busy=True)
    assert hosts.places.authenticated_count == 0
    with hosts.places.admit_host(hosts.connections.pair(), H1) as has_place:
        assert has_place


def test_closing_a_vault_closes_all_connections(stack: contextlib.ExitStack) -> None:
    hosts = Hosts(stack)
    held = [hosts.add("h1"), hosts.add("h2", is_busy=True), hosts.connections.add("10.0.0.1")]
    hosts.places.end_all()
    assert all(hosts.ended(*held))
