# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine that operators choose; all other values are constants."""

from typing import NamedTuple

from acstor_agent.engine import lockstep as lockstep_
from acstor_agent.engine import ring_view


class Settings(NamedTuple):
    """The options.

    :param timeout_s: longest silence of a peer that owes an answer
    :param background_limit: chunks in flight per background priority
    :param copies_limit: copies of a chunk beyond which its home tells holders to evict; 0: never
    :param lost_after_s: how long the source must deny an image before its reads fail
    :param has_others: other hosts exist even while there is no v-node table
    :param topology: returns the hosts that get announcements; None: no announcements
    :param may_hedge: an overdue request is also sent to the next provider
    :param lockstep: class of the policy for hosts that read an image in lockstep
    :param may_ask_source_first: guest reads go to the source if peers are clearly slower
    :param homes_keep: cache only chunks of this home and of bulk fetches
    :param run_chunks: most chunks that a new transfer requests from one home
    :param max_source_reads: limit of concurrent source reads
    :param may_refer: busy peers may answer with a referral to other hosts
    :param requests_of_peer: most pending requests of one peer
    :param transfers_of_peer: most transfers started for one peer: as many as it may request at a
        time
    """

    timeout_s: float = 10.0
    background_limit: int = 64
    copies_limit: int = 0
    lost_after_s: float = 0.0
    has_others: bool = False
    topology: ring_view.Topology | None = None
    may_hedge: bool = True
    lockstep: type[lockstep_.Lockstep] = lockstep_.Lockstep
    may_ask_source_first: bool = True
    homes_keep: bool = False
    run_chunks: int = 1
    max_source_reads: int = 8
    may_refer: bool = True
    requests_of_peer: int = 1024
    transfers_of_peer: int = 512

    @property
    def learns_ring(self) -> bool:
        """Return whether hosts that read in lockstep pass chunks along a learned ring."""
        return self.lockstep.learns_ring


DEFAULTS = Settings()
