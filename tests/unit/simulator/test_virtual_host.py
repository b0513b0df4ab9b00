# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts do exactly the actions of the product's core."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import pytest
from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent import settings as agent_settings
from acstor_agent.core.images import prefetcher
from acstor_agent.engine import actions
from acstor_agent.engine import failure
from acstor_agent.engine.gossip import announcements
from acstor_agent.engine.ring import placement
from acstor_agent.engine.serve import authorization
from acstor_agent.engine.serve import peer_requests
from acstor_simulator import simulation
from acstor_simulator.model import boot_traces
from acstor_simulator.model import cloud
from acstor_simulator.model import policies
from acstor_simulator.model import ring_tables
from acstor_simulator.model import topology
from acstor_simulator.model import virtual_host
from tests.fakes import one_machine
from tests.fakes import transfer_world

IMAGE = boot_traces.make_traced_image(0, 60, 0.0, seed=1)
SHAPE = topology.Shape(1, 1, 4)
SMALL = simulation.Scenario(
    topology.Shape(2, 2, 2), guests=8, images=1, chunks=40, mean=0.0, cv=0.0, common=0.0
)


def make_world(policy: str = "acstor") -> cloud.Cloud:
    world = cloud.Cloud(topology.Tree(SHAPE), [IMAGE], seed=1)
    policies.POLICIES[policy].make_hosts(world, ring_tables.FixedTable(world.tree))
    return world


def read_all(world: cloud.Cloud, reader: cloud.SimulatedHost, within_s: float = 60.0) -> None:
    """Let a host read the image, one chunk after the other."""
    reader.attach_image(IMAGE)
    left = IMAGE.chunks[::-1]

    def read() -> None:
        while left and reader.read_chunk(left.pop(), read):
            pass

    read()
    world.agenda.run(world.now + within_s)
    assert not left and len(reader.cache) >= len(IMAGE.chunks)


def refuse(found: peer_requests.PeerRequests, pending: Any, ref: Any) -> None:
    found._refuse(pending, failure.Failure.MISSING)


def no_upstreams(*_: Any) -> list[Any]:
    return []


RULES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a home answers requesters": (peer_requests.PeerRequests, "_process", refuse),
    "a proof of the CID authorizes": (
        authorization.hmac,
        "compare_digest",
        lambda *proofs: False,
    ),
    "homes request from wider groups": (placement, "upstreams", no_upstreams),
}


@pytest.mark.parametrize("rule", RULES)
def test_broken_rule_of_the_core_shows_in_the_simulator(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = topology.Shape(2, 2, 2, edge_rate=topology.GBIT / 20)
    busy = dataclasses.replace(SMALL, shape=shape, guests=16, chunks=150)
    well = simulation.simulate(busy, "acstor")
    monkeypatch.setattr(*RULES[rule])
    assert simulation.simulate(busy, "acstor").storage_chunks > well.storage_chunks


def test_simulated_hosts_handle_every_action_of_the_core() -> None:
    every = set(typing.get_args(actions.Action))
    simulated = next(iter(make_world().hosts.values()))
    # A host that knows all images looks nothing up, and an honest one is not dropped.
    assert simulated._doing.keys() == every - {actions.LookUpContents, actions.CloseConnection}
    swarm = transfer_world.World(1, 1, 1)
    assert swarm.add(swarm.names[0])._doing.keys() == every


def test_host_advertises_its_chunks_to_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[actions.ForwardAnnouncement] = []
    monkeypatch.setattr(
        cloud.SimulatedHost,
        "_forward_announcement",
        lambda host, reported: received.append(reported),
    )
    world = make_world()
    first, *_ = world.hosts.values()
    read_all(world, first)
    assert {reported.host for reported in received} >= {first.name}
    received.clear()
    monkeypatch.setattr(announcements.Announcements, "announce_chunks", lambda *_: None)
    world = make_world()
    read_all(world, world.hosts[first.name])
    assert not received


def test_prefetch_of_neighbours_chunks_grows_with_its_hits() -> None:
    world = make_world()
    first, second, *_ = world.hosts.values()
    second.attach_image(IMAGE)
    read_all(world, first)
    [prefetching] = second.images.values()
    assert (
        1 <= prefetching.prefetched == prefetching.states.unmatched <= prefetcher.INITIAL_ALLOWANCE
    )
    read_all(world, second)
    assert prefetching.prefetched > prefetcher.INITIAL_ALLOWANCE
    assert prefetching.states.unmatched == prefetching.states.in_flight == 0


def test_failed_prefetch_is_requested_again_for_a_guest() -> None:
    world = make_world()
    first, second, *_ = world.hosts.values()
    second.attach_image(IMAGE)
    reported = one_machine.announced(*IMAGE.chunks)
    second.run_actions(
        second.core.announcement_received(world.now, first.name, reported, [], [])
    )  # a false advertisement
    world.agenda.run(5.0)
    [prefetching] = second.images.values()
    assert (prefetching.prefetched, prefetching.states.in_flight) == (0, 0)
    assert second.core.counters.false_announcements
    read_all(world, second)


def test_settings_of_acstor_are_the_defaults_of_agents() -> None:
    conf = cfg.ConfigOpts()
    agent_conf.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    own = conf.acstor_agent
    assert policies.AGENT == agent_settings.exchange_settings(
        own, has_others=False, max_source_reads=8
    )
    assert policies.POLICIES["acstor"].may_refer == agent_settings.load_policies(own).may_refer


def test_sender_of_wrong_bytes_is_backed_off_and_the_chunk_read_elsewhere() -> None:
    world = make_world()
    reader, liar, *_ = world.hosts.values()
    liar.outgoing_answers = lambda host, answers: [  # type: ignore[method-assign]
        answer._replace(data=b"a lie") if isinstance(answer, actions.SendChunk) else answer
        for answer in answers
    ]
    read_all(world, reader)
    assert reader.core.counters.invalid_chunks
    assert liar.name in reader.core.context.peers.list_backoffs(reader.core.context.now)
    assert all(data == cid for cid, data in reader.cache.items())


def test_unreachable_host_is_skipped() -> None:
    world = make_world()
    reader, lost, *_ = world.hosts.values()
    del world.hosts[lost.name]
    read_all(world, reader)
    assert reader.core.counters.failovers and reader.core.counters.backoffs


def test_timers_are_late_by_the_lag_at_most_and_never_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks: list[tuple[float, float]] = []

    class Watched(cloud.SimulatedHost):
        def _tick(self, at_s: float) -> None:
            if self._tick_at == at_s and self.core.next_s is not None:
                ticks.append((self.core.next_s, self.world.now))
            super()._tick(at_s)

    monkeypatch.setattr(cloud, "SimulatedHost", Watched)
    world = make_world()
    read_all(world, next(iter(world.hosts.values())))
    assert len(ticks) > 10
    assert all(0 <= now - due_s <= Watched.lag_s + 1e-9 for due_s, now in ticks)


def test_only_chunks_use_link_capacity() -> None:
    world = make_world()
    reader, *others = world.hosts.values()
    read_all(world, reader)
    received = world.tree.host_links(reader.number)[1].chunk_bytes
    assert received == cloud.CHUNK_BYTES * len(IMAGE.chunks)
    sent = sum(world.tree.host_links(host.number)[0].chunk_bytes for host in others)
    assert sent == cloud.CHUNK_BYTES * world.counts.peer > 0
    assert world.counts.storage == len(IMAGE.chunks), "each once, whoever was its home"


def test_waits_of_guests_are_reported_by_sender() -> None:
    world = make_world()
    reader, *others = world.hosts.values()
    read_all(world, reader)
    waited = reader.pop_waits()
    assert sum(timed.received for timed in waited.values()) == cloud.CHUNK_BYTES * len(IMAGE.chunks)
    assert {None, *(host.name for host in others)} == waited.keys()
    assert all(0 < timed.took_s < 60 for timed in waited.values())
    assert reader.pop_waits() == {}


def test_abandoned_request_counts_time_without_bytes() -> None:
    world = make_world()
    reader, other, *_ = world.hosts.values()
    other.receive = lambda *what: None  # type: ignore[method-assign]  # it is frozen
    read_all(world, reader)
    timed = reader.pop_waits()[other.name]
    assert (timed.received, reader.core.counters.hedges > 0) == (0, True)
    assert timed.took_s > 0


@pytest.mark.parametrize("policy", ["local", "collaborative"])
def test_baselines_use_only_features_of_the_papers(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_actions, sent = virtual_host.VirtualHost.run_actions, list[actions.Answer]()

    def watched(host: virtual_host.VirtualHost, todo: list[actions.Action]) -> None:
        for action in todo:
            sent.extend(action.split_runs() if isinstance(action, actions.SendAnswers) else ())
        run_actions(host, todo)

    monkeypatch.setattr(virtual_host.VirtualHost, "run_actions", watched)
    world = make_world(policy)
    reader, other, *_ = world.hosts.values()
    read_all(world, reader)
    read_all(world, other)
    counters = [host.core.counters for host in world.hosts.values()]
    assert sum(found.hedges + found.accepted_announcements for found in counters) == 0
    assert not any(isinstance(answer, actions.SendReferral) for answer in sent)
    assert any(isinstance(answer, actions.SendChunk) for answer in sent) == (
        policy == "collaborative"
    )
    assert sum(found.source_preferred for found in counters) == 0
    assert (world.counts.peer > 0) == (policy == "collaborative")
