# SPDX-License-Identifier: Apache-2.0
"""Hosts that referrals name, and eviction hints to surplus holders."""

import collections

from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine import priority
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire.peer import peer_request
from acstor_policies import topologies
from tests.fakes import one_machine
from tests.fakes.one_machine import announced
from tests.fakes.one_machine import chunk

Failure = failure.Failure
Mode = peer_request.Mode
Priority = priority.Priority
H2, H3 = map(ids.HostId, ("h2", "h3"))


# Hosts in referrals


def busy(machine, number):
    """Serve a chunk to h7, take all upload slots away, and let h6 ask for the chunk."""
    machine.cache.add(chunk(number).cid)
    machine.ask_me("h7", machine.request(number, "h7", Mode.HOME_ONLY))
    machine.core.context.uploads.slots.count = 0
    machine.ask_me("h6", machine.request(number, "h6", Mode.HOME_ONLY))


def named(machine, number, hosts):
    """Return how often referrals name each host to requesters of a chunk."""
    count = collections.Counter()
    for n in hosts:
        machine.ask_me(f"h{n}", machine.request(number, f"h{n}", Mode.HOME))
        for answer in machine.answers():
            if isinstance(answer, actions.SendReferral):
                count.update(answer.hosts)
    return count


def lie(machine, name):
    machine.request_chunks([chunk(machine.chunk_of(name))], Priority.GUEST, "t")
    machine.peer_refused(ids.HostId(name), [(machine.attempt().number, Failure.INVALID)])


def test_referrals_omit_hosts_in_backoff_despite_announcements():
    machine = one_machine.Machine(40, topology=topologies.all_hosts)
    number = machine.chunk_of("h1")
    busy(machine, number)
    assert named(machine, number, range(8, 12))["h7"]
    machine.ask_me("h5", machine.request(number, "h5", Mode.HOME))
    lie(machine, "h5")
    lie(machine, "h7")
    machine.announcement_received(ids.HostId("h5"), announced(chunk(number)), [], [])
    machine.ask_me("h5", machine.request(number, "h5", Mode.HOME_ONLY))
    found = named(machine, number, range(12, 40))
    assert found and not found["h5"] and not found["h7"]


def test_referrals_omit_hosts_that_left_the_table():
    machine = one_machine.Machine(40, topology=topologies.all_hosts)
    smaller = one_machine.table(38, epoch=2)
    number = next(n for n in range(9999) if smaller.owners_of(chunk(n).cid, 1) == ("h1",))
    busy(machine, number)
    machine.announcement_received(ids.HostId("h40"), announced(chunk(number)), [], [])
    named(machine, number, [39])
    machine.table_changed(smaller, None)
    machine.ask_me("h40", machine.request(number, "h40", Mode.HOME_ONLY))
    found = named(machine, number, range(8, 38))
    assert found and not found["h39"] and not found["h40"]
    keys = machine.core.context.host_keys
    assert not {"h39", "h40"} & set(keys.list_hosts())


def test_referrals_omit_hosts_known_only_by_announcements():
    machine = one_machine.Machine(20, topology=topologies.all_hosts)
    number = machine.chunk_of("h1")
    machine.announcement_received(ids.HostId("h5"), announced(chunk(number)), [], [])
    busy(machine, number)
    found = named(machine, number, range(8, 20))
    assert found and not found["h5"]


def test_homes_of_other_groups_count_as_no_copies_and_are_not_referred_to():
    hosts = tuple(
        hash_ring.RingHost(f"h{n}", f"10.0.0.{n}:7201", 40, f"site/p{n % 2}/h{n}")
        for n in range(1, 9)
    )
    table = hash_ring.Ring(1, hosts, threshold=2, outer_threshold=3)
    machine = one_machine.Machine(table=table, copies_limit=1)
    assert machine.core.context.ring.is_near(H3) and not machine.core.context.ring.is_near(H2)
    number = machine.chunk_of("h1")
    machine.cache.add(chunk(number).cid)
    machine.ask_me("h2", machine.request(number, "h2", Mode.RELAYED))
    machine.ask_me("h3", machine.request(number, "h3", Mode.RELAYED))
    machine.ask_me("h4", machine.request(number, "h4", Mode.HELD))
    machine.ask_me("h5", machine.request(number, "h5", Mode.HOME_ONLY))
    assert not len(machine.core.context.announcements.hints)
    machine.core.context.uploads.slots.count = 0
    machine.ask_me("h7", machine.request(number, "h7", Mode.HOME_ONLY))
    assert machine.core.context.announcements.hints.keys() == {"h5"}
    machine.ask_me("h3", machine.request(number, "h3", Mode.HOME))
    assert set(machine.answers()[0].hosts) == {"h5", "h7"}


def test_home_hints_eviction_to_the_oldest_holders_over_the_copy_limit():
    machine = one_machine.Machine(copies_limit=2)
    number = machine.chunk_of("h1")
    machine.cache.add(chunk(number).cid)
    for host in ("h2", "h3", "h4", "h5"):
        machine.ask_me(host, machine.request(number, host, Mode.HOME_ONLY))
    machine.ask_me("h3", machine.request(number, "h3", Mode.HOME_ONLY))  # it needs the chunk again
    machine.wait(5.1)
    reported = {tell.host: tell.evictable for tell in machine.got(actions.SendAnnouncement)}
    assert reported == dict.fromkeys(("h2", "h4"), announced(chunk(number)))
