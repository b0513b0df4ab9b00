# SPDX-License-Identifier: Apache-2.0
"""The ways of S4, section 5.2, in which a host gets a chunk that a guest reads.

``none`` keeps nothing and reads the storage each time.  All others are the product's own exchange
(``acstor_agent.engine``), and differ in its options and in the ring that they are given:

* ``local`` has none, so each host reads the storage for itself;
* ``collaborative`` has one of equal hosts for each pod, whatever the traffic, and no more than the
  papers' exchange: no referrals, nothing advertised, no hedges, no guest who is better off at the
  storage;
* ``acstor`` has the options that agents have by default, and the ring that the decision service's
  cores make of the traffic (``acstor-switches``: of the load of switches too; ``acstor-still``:
  v-nodes stay where they are, whatever the traffic);
* ``paper`` has the exchange of ``collaborative``, and a ring by S4's rules as they are printed:
  Equation 1 with lambda, hand-over to the host that is most alike, Algorithms 1 and 2.

Beside them are what a cloud has without acstor and what it has with it, for whole images:

* ``nova`` copies the image to the host before it is booted, as Nova does;
* ``today`` is ``acstor`` with boot images, and images become whole after the boot: all that is on
  by default;
* ``alone`` is the same without other hosts.
"""

from typing import NamedTuple

from acstor_agent.engine import neighbours
from acstor_agent.engine import priority
from acstor_agent.engine import settings as settings_
from acstor_common.ring import hash_ring
from acstor_decision.core import decider
from acstor_simulator.model import cloud
from acstor_simulator.model import image_delivery
from acstor_simulator.model import ring_tables

AGENT = settings_.Settings(
    copies_limit=16, lost_after_s=900.0, topology=neighbours.on_ring, run_chunks=16
)
"""What agents have by default."""
PLAIN = AGENT._replace(copies_limit=0, topology=None, may_hedge=False, run_chunks=1)


class Policy(NamedTuple):
    """What differs from one policy to the other.

    :param urgency: of guests' reads; what nobody seems to wait for yet is asked of one place after
        the other, and no host is judged by it
    :param arrival: what happens to an image on a host before and after its guests read it
    :param exchanges: they ask each other
    :param follows_traffic: the decision service makes the ring
    :param follows_switches: of the loads of switches as well (S4, Algorithm 2)
    :param may_remap: v-nodes may move because of traffic
    :param is_printed: the ring follows S4's rules as they are printed
    """

    settings: settings_.Settings = PLAIN
    may_refer: bool = False
    urgency: priority.Priority = priority.Priority.SOON
    arrival: type[image_delivery.Delivery] = image_delivery.Attach
    exchanges: bool = True
    follows_traffic: bool = False
    follows_switches: bool = False
    may_remap: bool = True
    is_printed: bool = False

    def make_table(self, world: cloud.Cloud, factor: float) -> ring_tables.Table:
        """Return what says who is a chunk's home.

        :param factor: lambda of Equation 1, where the ring follows it as it is printed
        """
        if self.is_printed:
            return ring_tables.PrintedTable(world.tree, world.hosts, factor)
        if self.follows_traffic:
            rules = decider.Policy(may_remap=self.may_remap)
            return ring_tables.TrafficTable(world.tree, world.hosts, rules, self.follows_switches)
        return ring_tables.Table(world.tree, ring_tables.POD)

    def make_hosts(self, world: cloud.Cloud, table: ring_tables.Table) -> None:
        """Put all hosts in their places."""
        first = table.ring if self.exchanges else hash_ring.Ring(0, ())
        for name in table.hosts:
            world.add(name, first, self.settings, self.may_refer, self.urgency)


_ACSTOR = Policy(AGENT, may_refer=True, urgency=priority.Priority.GUEST, follows_traffic=True)
POLICIES = {
    "none": Policy(arrival=image_delivery.Storage, exchanges=False),
    "local": Policy(exchanges=False),
    "collaborative": Policy(),
    "acstor": _ACSTOR,
    "acstor-switches": _ACSTOR._replace(follows_switches=True),
    "acstor-still": _ACSTOR._replace(may_remap=False),
    "paper": Policy(is_printed=True),
    "nova": Policy(arrival=image_delivery.Copy, exchanges=False),
    "alone": Policy(AGENT, arrival=image_delivery.BootImage, exchanges=False),
    "today": _ACSTOR._replace(arrival=image_delivery.BootImage),
}
