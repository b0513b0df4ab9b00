# SPDX-License-Identifier: Apache-2.0
"""The connection to one host for one class of requests, from dialling to its end.

If the dial fails, waiting requests are reported as lost in the next turn of the loop, since a
requester that asks again at once would recurse.
"""

import contextvars
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers.connection import client_connection
from acstor_agent.runtime import fault_log
from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.wire.peer import peer_wire

EARLY_MESSAGES = 16  # announcements that wait for the dial; more are dropped


class Channel:
    """A connection and what waits for it."""

    def __init__(
        self,
        host: ids.HostId,
        address: str,
        klass: peer_wire.ConnectionClass,
        faults: fault_log.FaultLog,
    ) -> None:
        self.host, self.address, self.klass = host, address, klass
        self.ip, self.port = addresses.parse(address)
        self.peer = f"{host} ({address})"
        self.scope = trio.CancelScope()  # of the task that dials and runs the connection
        self.is_decided = trio.Event()  # there is a connection or a failure
        self.connection: client_connection.ClientConnection | None = None
        self.failure: errors.AcstorError | None = None
        self._faults = faults
        self._announcements: list[peer_wire.Notification] = []
        self._has_announced = False
        self._requests: dict[int, tuple[peer_wire.ChunkRequest, client_connection.OnAnswers]] = {}
        self._raised: set[int] = set()  # those that became urgent

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, or it is being dialled."""
        return self.connection is None or not self.connection.is_closed

    @property
    def may_have_missed_announcements(self) -> bool:
        """Whether the host may have missed announcements."""
        connection = self.connection
        has_gone = (
            connection is None or connection.failure is not None or connection.is_closed_by_peer
        )
        return self._has_announced and has_gone

    def send_announcement(self, announcement: peer_wire.Notification) -> None:
        """Send an announcement, now or when connected."""
        self._has_announced = True
        if self.connection:
            self.connection.send_announcement(announcement)
        elif len(self._announcements) < EARLY_MESSAGES:
            self._announcements.append(announcement)

    def send_requests(
        self, requests: Sequence[peer_wire.ChunkRequest], on_answers: client_connection.OnAnswers
    ) -> None:
        """Send requests, now or when connected (``ClientConnection.send_requests``)."""
        if self.connection is not None and self.is_open:
            self.connection.send_requests(requests, on_answers)
            return
        used = self.connection.used_numbers if self.connection is not None else ()
        client_connection.check_numbers(requests, self._requests, *used)
        for request in requests:
            self._requests.update(dict.fromkeys(request.numbers, (request, on_answers)))
        if self.is_decided.is_set():
            call_soon(self.connection_ended)

    def cancel_requests(self, request_ids: Sequence[int]) -> None:
        """See :meth:`client_connection.ClientConnection.cancel_requests`."""
        if self.connection is not None:
            self.connection.cancel_requests(request_ids)
        for request_id in request_ids:
            self._requests.pop(request_id, None)
            self._raised.discard(request_id)

    def raise_priorities(self, request_ids: Sequence[int]) -> None:
        """See :meth:`client_connection.ClientConnection.raise_priorities`."""
        if self.connection is not None:
            self.connection.raise_priorities(request_ids)
        self._raised.update(
            request_id for request_id in request_ids if request_id in self._requests
        )

    def open(self, connection: client_connection.ClientConnection) -> None:
        """Take the connection, and send what has waited for it."""
        self.connection = connection
        self.is_decided.set()
        for announcement in self._announcements:
            connection.send_announcement(announcement)
        asked: dict[client_connection.OnAnswers, dict[peer_wire.ChunkRequest, None]] = {}
        for request, on_answers in self._requests.values():
            asked.setdefault(on_answers, {})[request] = None
        wanted, self._requests = self._requests, {}
        for on_answers, requests in asked.items():
            connection.send_requests([*requests], on_answers)
            numbers = [number for request in requests for number in request.numbers]
            connection.cancel_requests([number for number in numbers if number not in wanted])
        connection.raise_priorities(self._raised)
        self._raised = set()

    def connection_ended(self) -> None:
        """Report waiting requests as lost: there is no connection any more."""
        self.is_decided.set()
        failure = self.failure or (self.connection.failure if self.connection else None)
        waiting, self._requests = self._requests, {}
        answers = [
            (on_answers, client_connection.lost(number, connection, self.peer, failure))
            for number, (connection, on_answers) in waiting.items()
        ]
        try:
            client_connection.deliver_answers(answers)
        except Exception as error:  # a bug in a requester
            self._faults.record_fault("an answer of a peer", error)


def call_soon(do: Callable[[], None]) -> None:
    """Call a function in the next turn of the loop, in this task's context."""
    token = trio.lowlevel.current_trio_token()
    token.run_sync_soon(contextvars.copy_context().run, do)
