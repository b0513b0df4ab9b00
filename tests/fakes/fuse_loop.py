# SPDX-License-Identifier: Apache-2.0
"""How the file systems of tests and benchmarks answer the kernel: until they are told to stop."""

import signal

import pyfuse3
import trio


async def answer_until_stopped() -> None:
    """Answer the kernel until SIGTERM comes, then unmount."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            with trio.open_signal_receiver(signal.SIGTERM) as stops:
                async for _ in stops:
                    break
            nursery.cancel_scope.cancel()
    finally:
        pyfuse3.close()
