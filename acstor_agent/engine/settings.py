# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine that operators choose; all other values are constants."""

from typing import NamedTuple

from acstor_agent.engine import lockstep as lockstep_
from acstor_agent.engine import ring_view


class Settings(NamedTuple):
    """The options.

    :param timeout_s: longest silence of a peer that owes an answer
    :param background_limit: chunks in flight per background priority
    :param copies_limit: holders of a content of this home that need not evict; 0: all
    :param lost_after_s: an image is lost after the source has denied it for so long
    :param has_others: other hosts exist although there is no v-node table yet
    :param topology: returns the hosts that get announcements; None: no announcements
    :param may_hedge: a late request is also sent to the next provider
    :param lockstep: makes the policy for hosts that read in lock-step
    :param may_ask_source_first: guest reads go to the source if peers are clearly slower
    :param homes_keep: this host caches only chunks that it is the home of
    :param run_chunks: most chunks of a new transfer
    :param source_places: concurrent source reads
    :param may_refer: busy peers may answer with other hosts to ask
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
    source_places: int = 8
    may_refer: bool = True

    @property
    def learns_ring(self) -> bool:
        """Return whether hosts in lock-step form a ring."""
        return self.lockstep.learns_ring


DEFAULTS = Settings()
