# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine that operators choose; all other values are constants."""

from typing import NamedTuple

from acstor_agent.engine import lockstep
from acstor_agent.engine.ring import ring_view

Lockstep = lockstep.Lockstep


class Settings(NamedTuple):
    """The options, with their defaults."""

    timeout_s: float = 10.0  # longest silence of a peer that owes an answer
    background_limit: int = 64  # chunks in flight per background priority
    copies_limit: int = 0  # copies of a chunk above which its home hints at evictions; 0: never
    lost_after_s: float = 0.0  # how long the source must deny an image before its reads fail
    has_others: bool = False  # other hosts exist even while there is no v-node table
    topology: ring_view.Topology | None = None  # selects the hosts to announce to; None: none
    may_hedge: bool = True  # an overdue request is also sent to the next provider
    lockstep: type[Lockstep] = Lockstep  # policy for hosts that read an image in lockstep
    may_ask_source_first: bool = True  # guest reads go to the source if peers are clearly slower
    homes_keep: bool = False  # cache only chunks of this home and of bulk fetches
    run_chunks: int = 1  # most chunks that a new transfer requests from one home
    max_source_reads: int = 8  # limit of concurrent source reads
    may_refer: bool = True  # busy peers may answer with a referral to other hosts
    requests_of_peer: int = 1024  # most pending requests of one peer
    transfers_of_peer: int = 512  # most transfers under way that were started for one peer

    @property
    def learns_ring(self) -> bool:
        """Whether hosts that read in lockstep pass chunks along a learned ring."""
        return self.lockstep.learns_ring


DEFAULTS = Settings()
