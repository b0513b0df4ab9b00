# SPDX-License-Identifier: Apache-2.0
"""Policies by which a host gets guests' chunks (Wu 2017, section 5.2).

* ``none`` caches nothing and reads the storage each time; all others use ``acstor_agent.engine``;
* ``local``: no ring, so each host reads the storage itself;
* ``collaborative``: a fixed ring of equal hosts for each pod and only the paper's exchange: no
  referrals, announcements, hedges or choice of the storage over a slow peer;
* ``acstor``: default settings, with a ring that the decision service adapts to traffic
  (``acstor-switches``: to switch loads too; ``acstor-still``: without moves of v-nodes);
* ``paper``: the exchange of ``collaborative``, and a ring by Equation 1 and Algorithms 1 and 2;
* ``nova`` copies the image to the host before the boot, as Nova does;
* ``today`` is ``acstor`` with boot images and a fill after the boot, as by default;
* ``alone`` is the same without other hosts.
"""

from typing import NamedTuple

from acstor_agent.engine import priority
from acstor_agent.engine import settings
from acstor_agent.engine.ring import ring_view
from acstor_common.ring import hash_ring
from acstor_decision.core import decider
from acstor_simulator.model import cloud
from acstor_simulator.model import image_delivery
from acstor_simulator.model import ring_tables

AGENT = settings.Settings(
    copies_limit=16, lost_after_s=900.0, topology=ring_view.on_ring, run_chunks=16
)
"""Defaults of agents."""
PLAIN = AGENT._replace(copies_limit=0, topology=None, may_hedge=False, run_chunks=1)


class ExchangePolicy(NamedTuple):
    """Parameters; at an urgency below GUEST the engine asks hosts in turn, and judges none."""

    engine_settings: settings.Settings = PLAIN
    may_refer: bool = False
    urgency: priority.Priority = priority.Priority.READAHEAD  # of guests' reads
    delivery: type[image_delivery.Delivery] = image_delivery.PlainMirror
    exchanges: bool = True  # hosts ask each other
    follows_traffic: bool = False  # the decision service makes the ring
    follows_switches: bool = False  # switch loads set thresholds (Wu 2017, Algorithm 2)
    may_remap: bool = True  # traffic may move v-nodes
    is_printed: bool = False  # the ring follows the paper's printed rules

    def make_table(self, world: cloud.Cloud, factor: float) -> ring_tables.FixedTable:
        """Return the table that assigns homes; ``factor`` is lambda of Equation 1."""
        if self.is_printed:
            return ring_tables.PrintedTable(world.tree, world.hosts, factor)
        if self.follows_traffic:
            rules = decider.RemapPolicy(may_remap=self.may_remap)
            return ring_tables.TrafficTable(world.tree, world.hosts, rules, self.follows_switches)
        return ring_tables.FixedTable(world.tree, ring_tables.POD)

    def make_hosts(self, world: cloud.Cloud, table: ring_tables.FixedTable) -> None:
        """Add all hosts to a cloud."""
        first = table.ring if self.exchanges else hash_ring.Ring(0, ())
        for name in table.hosts:
            world.add(name, first, self.engine_settings, self.may_refer, self.urgency)


_ACSTOR = ExchangePolicy(
    AGENT, may_refer=True, urgency=priority.Priority.GUEST, follows_traffic=True
)
POLICIES = {
    "none": ExchangePolicy(delivery=image_delivery.DirectReads, exchanges=False),
    "local": ExchangePolicy(exchanges=False),
    "collaborative": ExchangePolicy(),
    "acstor": _ACSTOR,
    "acstor-switches": _ACSTOR._replace(follows_switches=True),
    "acstor-still": _ACSTOR._replace(may_remap=False),
    "paper": ExchangePolicy(is_printed=True),
    "nova": ExchangePolicy(delivery=image_delivery.FullCopy, exchanges=False),
    "alone": ExchangePolicy(AGENT, delivery=image_delivery.BootImageMirror, exchanges=False),
    "today": _ACSTOR._replace(delivery=image_delivery.BootImageMirror),
}
