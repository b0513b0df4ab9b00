# SPDX-License-Identifier: Apache-2.0
"""Ends connections that are idle or stuck, and those of hosts not admitted any more.

V-node tables, certificates and authorities change while connections are open. So after a change of
files each host's certificate is verified again (0.15 ms), in batches with pauses.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers.connection import base_connection
from acstor_agent.peers.connection import hello_exchange
from acstor_agent.peers.connection import peer_limits
from acstor_common import errors
from acstor_common.identity import credentials

LOG = logging.getLogger(__name__)

BATCH = 256  # connections per batch; a certificate check counts as CHECK
CERTIFICATE_COST = 32
PAUSE_S = 0.005  # after a batch: 2,000 hosts take 2 s, with a fifth of a processor


class Reauthorization:
    """Checks open connections; ``credentials`` None: insecure mode."""

    def __init__(
        self,
        admission: hello_exchange.Admission,
        credentials: credentials.Credentials | None,
        limits: peer_limits.PeerLimits,
    ) -> None:
        self._admission = admission
        self._credentials = credentials
        self._interval_s = limits.check_interval_s

    async def watch_files(
        self, connections: Callable[[], Sequence[base_connection.PeerConnection]]
    ) -> None:
        """Reload files and check all connections until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            if self._credentials is not None:
                await trio.to_thread.run_sync(self._credentials.reload_files)
            await self._check(connections())

    async def _check(self, connections: Sequence[base_connection.PeerConnection]) -> None:
        checked: dict[bytes, str] = {}  # faults by certificate
        work = 0
        for connection in connections:
            if work >= BATCH:
                await trio.sleep(PAUSE_S)
                work = 0
            before = len(checked)
            if not connection.is_closed and (why := self._fault_of(connection, checked)):
                LOG.warning("Connection with %s dropped: %s", connection.peer, why)
                connection.fail_connection(
                    errors.SourceUnreachable("the answer", connection.peer, why)
                )
            work += 1 + CERTIFICATE_COST * (len(checked) - before)

    def _fault_of(
        self, connection: base_connection.PeerConnection, checked: dict[bytes, str]
    ) -> str:
        link, credentials, why = connection.link, self._credentials, ""
        if link.certificate is not None and credentials is not None:
            # The link's: Hello may follow the last check with a certificate verified before it.
            before, link.credentials_generation = (
                link.credentials_generation,
                credentials.generation,
            )
            pem = link.certificate.pem
            if before != link.credentials_generation and pem not in checked:
                checked[pem] = credentials.validity_fault(link.certificate)
            why = checked.get(pem) or credentials.time_fault(link.certificate)
        return why or hello_exchange.refusal_reason(link, connection.host, self._admission)


async def sweep(
    connections: Callable[[], Sequence[base_connection.PeerConnection]],
    idle_s: float,
    limits: peer_limits.PeerLimits,
) -> None:
    """Check connections until cancelled; close those without requests after ``idle_s``."""
    while True:
        await trio.sleep(min(idle_s, limits.silence_s) / 4)
        now = trio.current_time()
        for connection in connections():
            if connection.is_closed:  # its receiver state may be invalid
                continue
            if connection.is_too_slow(now, limits.serve_s):
                why = f"it did not accept waiting data for {limits.serve_s:g} s"
                connection.fail_connection(
                    errors.SourceUnreachable("the answer", connection.peer, why)
                )
            elif connection.is_stuck(now, limits.silence_s):
                why = f"no data was transferred for {limits.silence_s:g} s"
                connection.fail_connection(
                    errors.SourceUnreachable("the answer", connection.peer, why)
                )
            elif connection.is_idle and now - connection.last_progress > idle_s:
                connection.close()
