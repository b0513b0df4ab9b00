# SPDX-License-Identifier: Apache-2.0
"""One image with its prefetcher, and a network that gives at once what is asked for."""

from acstor_agent.core.images import chunk_state

E = chunk_state.ChunkEvent
MANY = 10**6


class PrefetchReader:
    """Advertises and reads chunks of an image.

    :param make: makes the prefetcher of the chunks' states
    """

    def __init__(self, make, chunks: int = 20_000) -> None:
        self.states = chunk_state.ChunkStates(chunks)
        self.prefetcher = make(self.states)

    def advertise(self, *chunk_nos: int) -> list[int]:
        """Advertise in one batch; return what was prefetched, and has come."""
        for chunk_no in chunk_nos:
            self.prefetcher.chunk_advertised(chunk_no)
        return self.arrive()

    def arrive(self) -> list[int]:
        """Let all come that is to be prefetched, and return it."""
        taken = self.prefetcher.take_candidates(MANY)
        for chunk_no in taken:
            self.states.apply_event(chunk_no, E.PREFETCH_ARRIVED)
        return taken
