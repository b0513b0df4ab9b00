# SPDX-License-Identifier: Apache-2.0
"""Ends idle connections, and those whose other side makes no progress."""

from collections.abc import Callable
from collections.abc import Sequence

import trio

from acstor_agent.peers.connection import base_connection
from acstor_common import errors


async def sweep(
    connections: Callable[[], Sequence[base_connection.Connection]],
    idle_s: float,
    limits: base_connection.Limits,
) -> None:
    """Check connections, for ever; close those without requests after ``idle_s``."""
    while True:
        await trio.sleep(min(idle_s, limits.silence_s) / 4)
        now = trio.current_time()
        for connection in connections():
            if connection.is_closed:  # its receiver state may be invalid
                continue
            if connection.is_too_slow(now, limits.serve_s):
                why = f"what waits for it was not taken in {limits.serve_s:g} s"
                connection.fail_connection(
                    errors.SourceUnreachable("the rest", connection.peer, why)
                )
            elif connection.is_stuck(now, limits.silence_s):
                why = f"nothing moved for {limits.silence_s:g} s"
                connection.fail_connection(
                    errors.SourceUnreachable("the rest", connection.peer, why)
                )
            elif connection.is_idle and now - connection.last_progress > idle_s:
                connection.close()
