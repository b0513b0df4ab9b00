# SPDX-License-Identifier: Apache-2.0
"""An image with its prefetcher, and a network without latency."""

from acstor_agent.core.images import chunk_state

E = chunk_state.ChunkEvent
MANY = 10**6


class PrefetchReader:
    """Advertises and reads chunks of an image.

    :param make: makes a prefetcher from chunk states
    """

    def __init__(self, make, chunks: int = 20_000) -> None:
        self.states = chunk_state.ChunkStates(chunks)
        self.prefetcher = make(self.states)

    def advertise(self, *chunk_nos: int) -> list[int]:
        """Advertise chunks in one batch; return the prefetched, arrived chunks."""
        for chunk_no in chunk_nos:
            self.prefetcher.chunk_advertised(chunk_no)
        return self.arrive()

    def arrive(self) -> list[int]:
        """Let all prefetches arrive; return their chunks."""
        taken = self.prefetcher.take_candidates(MANY)
        for chunk_no in taken:
            self.states.apply_event(chunk_no, E.PREFETCH_ARRIVED)
        return taken
