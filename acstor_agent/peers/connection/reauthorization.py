# SPDX-License-Identifier: Apache-2.0
"""Ends connections of hosts that may not speak any more.

Tables change, certificates expire and authorities are replaced while connections are open, so the
check of Hello is repeated.  After a change of the files each certificate is checked anew (0.15 ms),
each host's once; a few at a time, with pauses, so that other tasks run.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import hello_exchange
from acstor_common import errors
from acstor_common.identity import credentials

LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
AT_A_TIME = 256
"""Connections that are looked at in one turn, of which each check of a certificate takes CHECK."""
CHECK = 32
PAUSE_S = 0.005
"""After a turn: 2,000 hosts are done in 2 s, with a fifth of a processor."""


class Reauthorization:
    """Checks open connections.

    :param may_speak: says why a host may not speak; empty if it may
    :param credentials: of this host; None in insecure mode
    """

    def __init__(
        self, may_speak: hello_exchange.MaySpeak, credentials: credentials.Credentials | None
    ) -> None:
        self._may_speak = may_speak
        self._credentials = credentials

    async def watch_files(
        self, connections: Callable[[], Sequence[base_connection.Connection]]
    ) -> None:
        """Look for new files and check all connections, again and again."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self._credentials is not None:
                await trio.to_thread.run_sync(self._credentials.reload_files)
            await self._look(connections())

    async def _look(self, connections: Sequence[base_connection.Connection]) -> None:
        """Check all connections, some in each turn of the loop."""
        checked: dict[bytes, str] = {}  # certificates, and what is wrong with them
        work = 0
        for connection in connections:
            if work >= AT_A_TIME:
                await trio.sleep(PAUSE_S)
                work = 0
            before = len(checked)
            if not connection.is_closed and (why := self._why_silent(connection, checked)):
                LOG.warning("Connection with %s dropped: %s", connection.peer, why)
                connection.fail_connection(
                    errors.SourceUnreachable("the rest", connection.peer, why)
                )
            work += 1 + CHECK * (len(checked) - before)

    def _why_silent(self, connection: base_connection.Connection, checked: dict[bytes, str]) -> str:
        link, credentials, why = connection.link, self._credentials, ""
        if link.certificate is not None and credentials is not None:
            # The link's generation, not the last look's: Hello may have come after that look, with
            # a certificate that was checked before it.
            before, link.believed_by = link.believed_by, credentials.generation
            pem = link.certificate.pem
            if before != link.believed_by and pem not in checked:
                checked[pem] = credentials.chain_fault(link.certificate)
            why = checked.get(pem) or credentials.time_fault(link.certificate)
        return why or hello_exchange.refusal_reason(link, connection.host, self._may_speak)
