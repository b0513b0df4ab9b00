# SPDX-License-Identifier: Apache-2.0
"""A cloud on links with queues (``queue_network``), to measure the exchange."""

from collections.abc import Callable
from collections.abc import Hashable
from typing import Any

from acstor_common.model import ids
from acstor_simulator.model import virtual_host as shells
from tests.fakes import queue_network
from tests.fakes import transfer_world

PAYLOAD = 0.956
"""Share of a link's bytes that is not headers."""
SOURCE_STREAMS = 8


class QueueWorld(transfer_world.World):
    """Hosts and a source with links of equal rate.

    :param link_bytes_per_s: including headers
    """

    def __init__(
        self,
        seed: int,
        hosts: int,
        chunks: int,
        link_bytes_per_s: float,
        burst_bytes: int,
        **table: Any,
    ) -> None:
        super().__init__(seed, hosts, chunks, **table)
        self.network: Any = queue_network.QueueNetwork(
            seed, link_bytes_per_s * PAYLOAD, burst_bytes
        )
        self._ranges = 0
        self.network.attach(transfer_world.SOURCE)
        for name in self.names:
            self.network.attach(name)

    def add(
        self,
        name: ids.HostId,
        kind: type[transfer_world.Host] = transfer_world.Host,
        **settings: Any,
    ) -> transfer_world.Host:
        """Add a host."""
        self.hosts[name] = kind(self, name, **settings)
        return self.hosts[name]

    def worsen(self, name: ids.HostId, kind: str) -> None:
        """Make a host dead, frozen (its kernel still runs), or slow from now on."""
        host = self.hosts[name]
        host.is_dead = kind == "dead"
        if kind == "frozen":
            host.receive = lambda *what: None  # type: ignore[method-assign]
        if kind in ("dead", "frozen"):
            host.lives += 1
        if kind == "slow":
            self.network.slow_down(name, 20.0)

    def _post(
        self,
        connection: Hashable,
        sender: transfer_world.Host,
        to: ids.HostId,
        message: Any,
        size_bytes: int,
        urgency: int,
    ) -> None:
        assert isinstance(connection, tuple)
        acknowledged: Callable[[], None] | None = None
        if connection[0] == to and isinstance(message, shells.Responses):

            def acknowledged() -> None:
                sender.answers_acknowledged(connection)

        def arrive() -> None:
            self.hosts[to].receive(sender.name, connection, message)

        # Each host's requests have a connection; answers use its other direction.
        name = "answers" if connection[0] == to else "requests"
        self.network.send(sender.name, to, name, size_bytes, arrive, acknowledged)

    def from_source(
        self, host: transfer_world.Host, length: int, delay_s: float, arrive: Callable[[], None]
    ) -> None:
        """Read from the source on one of its connections; the source replies at once."""
        self._ranges += 1
        stream = f"{host.name}/{self._ranges % SOURCE_STREAMS}"

        def answer() -> None:
            self.network.send(transfer_world.SOURCE, host.name, stream, length, arrive)

        self.network.send(host.name, transfer_world.SOURCE, stream, 150, answer)
