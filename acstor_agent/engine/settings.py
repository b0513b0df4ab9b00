# SPDX-License-Identifier: Apache-2.0
"""Settings of the engine that operators choose; all other values are constants."""

from typing import NamedTuple

from acstor_agent.engine import lockstep as lockstep_
from acstor_agent.engine import neighbours


class Settings(NamedTuple):
    """The options.

    :param timeout_s: so long a peer that owes an answer may be silent
    :param background_limit: chunks under way for each reason that no guest waits for
    :param copies_limit: holders of a content of this home that are left alone; 0: all
    :param lost_after_s: so long the source must have denied an image before anything of it is lost
    :param has_others: where there is no v-node table yet one is to come
    :param topology: whom to tell what is here; None: nobody
    :param may_hedge: where an answer is late the next place is asked as well
    :param lockstep: makes the policy for hosts that read in lock-step
    :param may_ask_source_first: where other hosts are clearly slower guests' reads go to the source
    :param homes_keep: what this host is not the home of goes no further than to who waits for it
    :param run_chunks: chunks that a transfer begins with at most
    :param source_places: ranges that are read from the source at a time
    """

    timeout_s: float = 10.0
    background_limit: int = 64
    copies_limit: int = 0
    lost_after_s: float = 0.0
    has_others: bool = False
    topology: neighbours.Topology | None = None
    may_hedge: bool = True
    lockstep: type[lockstep_.Lockstep] = lockstep_.Lockstep
    may_ask_source_first: bool = True
    homes_keep: bool = False
    run_chunks: int = 1
    source_places: int = 8

    @property
    def learns_ring(self) -> bool:
        """Say whether hosts in lock-step form a ring."""
        return self.lockstep.learns_ring


DEFAULTS = Settings()
