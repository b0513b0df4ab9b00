# SPDX-License-Identifier: Apache-2.0
"""Hosts of the v-node table that flood an agent with small messages.

``python -m tests.fakes.flood_members`` reads its orders from standard input, a line of JSON
(:class:`Orders`).  It prints a line after all handshakes, starts at the next input line, and
runs until standard input ends.  Real attackers have processors of their own, so this process
only takes CPU time that the agent leaves idle.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common.identity import identity_files
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire
from tests.fakes import raw_peer
from tests.lab import identities

ROUND_BYTES = 64 * geometry.KIB


@dataclasses.dataclass(frozen=True)
class Orders:
    """The orders of a process.

    :param agent: the attacked host
    :param kinds: message kinds, names of functions below
    :param members: the certificate, key and authority of each host, in PEM
    """

    port: int
    agent: str
    image_id: str
    kinds: Sequence[str]
    members: dict[str, tuple[str, str, str]]


def pings(orders: Orders, number: int) -> peer_wire.Message:
    """Return a Ping."""
    return peer_wire.Ping(number)


def cancels(orders: Orders, number: int) -> peer_wire.Message:
    """Cancel requests that were never made."""
    return peer_wire.Cancel((number,))


def hurries(orders: Orders, number: int) -> peer_wire.Message:
    """RaisePriority for requests that were never made."""
    return peer_wire.RaisePriority((number,))


def gets(orders: Orders, number: int) -> peer_wire.Message:
    """Return a request with an invalid proof, which the agent refuses."""
    request = peer_wire.ChunkRequest(
        number,
        ids.parse_image_id(orders.image_id),
        0,
        geometry.DEFAULT_CHUNK_BYTES,
        bytes(peer_wire.PROOF_BYTES),
        *(peer_wire.Mode.HOME_ONLY, peer_wire.Priority.PEER),
        timeout_ms=60_000,
    )
    return peer_wire.Get((request,))


_IN_BULK = ("cancels", "hurries")
_KINDS = {one.__name__: one for one in (pings, cancels, hurries, gets)}


class Flood:
    """One connection of a host."""

    def __init__(
        self, orders: Orders, kind: str, name: str, files: identity_files.IdentitySet
    ) -> None:
        klass = (
            peer_wire.ConnectionClass.BULK if kind in _IN_BULK else peer_wire.ConnectionClass.DEMAND
        )
        self._orders, self._make = orders, _KINDS[kind]
        self.peer = raw_peer.RawPeer(orders.port, name, files, klass)
        assert isinstance(self.peer.greet(), peer_wire.Hello)
        self.peer.link.setblocking(False)
        self._number = 0
        self._rest = memoryview(self._next_round())

    def _next_round(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while total < ROUND_BYTES:
            self._number += 1
            parts.append(self.peer.encoded(self._make(self._orders, self._number)))
            total += len(parts[-1])
        return b"".join(parts)

    def go_on(self) -> None:
        """Send as much as possible, and discard responses."""
        with contextlib.suppress(BlockingIOError, OSError):
            while self.peer.link.recv(ROUND_BYTES):
                pass
        with contextlib.suppress(BlockingIOError, OSError):
            while self._rest:
                self._rest = self._rest[self.peer.link.send(self._rest) :]
            self._rest = memoryview(self._next_round())


def take_what_is_left() -> None:
    """Lower this process to idle CPU priority; it must lead a session.

    With ``CONFIG_SCHED_AUTOGROUP``, niceness counts within a session, and each session has its own.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):  # a kernel without autogroups, or no permission
        pathlib.Path("/proc/self/autogroup").write_text("19")


def main() -> None:
    """Flood an agent."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    floods = []
    for name, texts in orders.members.items():
        certificate, key, authority = (text.encode() for text in texts)
        files = identity_files.IdentitySet(authority, certificate, key, b"")
        floods += [Flood(orders, kind, name, files) for kind in orders.kinds]
    take_what_is_left()  # not before: the handshake timeout is short
    print(len(floods), flush=True)
    sys.stdin.readline()
    selector = selectors.DefaultSelector()
    for flood in floods:
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        selector.register(flood.peer.link, both, flood)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    while True:
        for key_, _ in selector.select():
            if key_.data is None:
                return
            key_.data.go_on()


@contextlib.contextmanager
def flooding(
    port: int, agent: str, image_id: str, names: Sequence[str], kinds: Sequence[str], processes: int
) -> Iterator[None]:
    """Flood an agent from several processes during the block."""
    running: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        for one in range(processes):
            files = {name: identities.issue(name) for name in names[one::processes]}
            members = {
                name: (its.certificate.decode(), its.key.decode(), its.ca.decode())
                for name, its in files.items()
            }
            orders = Orders(port, agent, image_id, kinds, members)
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.fakes.flood_members"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdin
            process.stdin.write(json.dumps(dataclasses.asdict(orders)) + "\n")
            process.stdin.flush()
            running.append(process)
        for process in running:
            assert process.stdout and process.stdout.readline(), "the hosts have not greeted"
        for process in running:
            assert process.stdin
            process.stdin.write("go on\n")
            process.stdin.flush()
        yield


if __name__ == "__main__":
    main()
