# SPDX-License-Identifier: Apache-2.0
"""The main loop of FUSE file systems in tests and benchmarks."""

import signal

import pyfuse3
import trio


async def answer_until_stopped() -> None:
    """Serve requests until SIGTERM, then unmount."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            with trio.open_signal_receiver(signal.SIGTERM) as stops:
                async for _ in stops:
                    break
            nursery.cancel_scope.cancel()
    finally:
        pyfuse3.close()
