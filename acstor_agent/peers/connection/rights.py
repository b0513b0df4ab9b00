# SPDX-License-Identifier: Apache-2.0
"""Ends connections of hosts that may not speak any more.

The one rule: a right that was looked at when a connection began is looked at again
and again, since tables change, certificates end, and authorities are replaced.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers import credentials as credentials_
from acstor_agent.peers.connection import base
from acstor_agent.peers.connection import hello
from acstor_common import errors

LOG = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


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
            self._look(connections())

    def _look(self, connections: Sequence[base.Connection]) -> None:
        for connection in connections:
            if why := self._why_silent(connection):
                LOG.warning("Connection with %s dropped: %s", connection.peer, why)
                connection.fail(errors.SourceUnreachable("the rest", connection.peer, why))

    def _why_silent(self, connection: base.Connection) -> str:
        link, credentials, why = connection.link, self._credentials, ""
        if link.certificate is not None and credentials is not None:
            # Of the link, not of the last look: it may have been checked before that, and be a
            # connection only since, as long after as Hello may take.
            before, link.believed_by = link.believed_by, credentials.generation
            are_files_new = before != link.believed_by
            check = credentials.chain_fault if are_files_new else credentials.time_fault
            why = check(link.certificate)
        return why or hello.why_silent(link, connection.host, self._may_speak)
