# SPDX-License-Identifier: Apache-2.0
"""Ends connections of hosts that may not speak any more.

A right that was looked at when a connection began is looked at again and again,
since tables change, certificates end, and authorities are replaced.

After other files each certificate is checked anew (0.15 ms), each host's once; between a
few of them others have their turn, and a pause.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers.connection import base
from acstor_agent.peers.connection import hello
from acstor_common import credentials as credentials_
from acstor_common import errors

LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
AT_A_TIME = 256
"""Connections that are looked at in one turn, of which each check of a certificate takes CHECK."""
CHECK = 32
PAUSE_S = 0.005
"""After a turn: 2,000 hosts are done in 2 s, with a fifth of a processor."""


class Rights:
    """Who may go on speaking.

    :param may_speak: says why a host may not speak; empty if it may
    :param credentials: whom this host believes; None where nobody proves anything
    """

    def __init__(
        self, may_speak: hello.MaySpeak, credentials: credentials_.Credentials | None
    ) -> None:
        self._may_speak = may_speak
        self._credentials = credentials

    async def watch(self, connections: Callable[[], Sequence[base.Connection]]) -> None:
        """Look for new files, and at all connections, for ever."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self._credentials is not None:
                await trio.to_thread.run_sync(self._credentials.look)
            await self._look(connections())

    async def _look(self, connections: Sequence[base.Connection]) -> None:
        """Look at all, some in each turn."""
        checked: dict[bytes, str] = {}  # certificates, and what is wrong with them
        work = 0
        for connection in connections:
            if work >= AT_A_TIME:
                await trio.sleep(PAUSE_S)
                work = 0
            before = len(checked)
            if not connection.is_closed and (why := self._why_silent(connection, checked)):
                LOG.warning("Connection with %s dropped: %s", connection.peer, why)
                connection.fail(errors.SourceUnreachable("the rest", connection.peer, why))
            work += 1 + CHECK * (len(checked) - before)

    def _why_silent(self, connection: base.Connection, checked: dict[bytes, str]) -> str:
        link, credentials, why = connection.link, self._credentials, ""
        if link.certificate is not None and credentials is not None:
            # Of the link, not of the last look: it may have been checked before that, and be a
            # connection only since, as long after as Hello may take.
            before, link.believed_by = link.believed_by, credentials.generation
            pem = link.certificate.pem
            if before != link.believed_by and pem not in checked:
                checked[pem] = credentials.chain_fault(link.certificate)
            why = checked.get(pem) or credentials.time_fault(link.certificate)
        return why or hello.why_silent(link, connection.host, self._may_speak)
