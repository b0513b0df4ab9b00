# SPDX-License-Identifier: Apache-2.0
"""Rounds of the service on SQLite; sent messages are recorded, the clock advances by rounds."""

import collections
import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.wire import decision_messages
from acstor_common.wire import message_bus
from acstor_common.wire import signed_messages
from acstor_decision import rpc
from acstor_decision import service
from acstor_decision.core import threshold
from acstor_decision.core.membership import address_book
from acstor_decision.core.membership import address_proofs
from acstor_decision.core.membership import sample_inbox
from acstor_decision.db import database
from acstor_decision.db import image_queries
from acstor_decision.db import models
from acstor_decision.db import ring_queries
from acstor_decision.identity import address_verifier
from acstor_decision.identity import certificate_authority
from acstor_decision.identity import trust_state
from acstor_decision.switch_loads import base
from acstor_decision.switch_loads import none
from tests.fakes import enrolled_hosts
from tests.fakes import manual_clock

WALL_S = 1_000_000.0
COLLECTION_S = 5.0
IMAGE = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"


class Lead:
    """A leader lock that the test controls."""

    def __init__(self, leads: bool, instance: str) -> None:
        self.leads, self.instance = leads, instance
        self.stepped_down = 0

    def is_leader(self) -> bool:
        return self.leads

    def step_down(self) -> None:
        self.stepped_down += 1


class Loads(none.NoLoads):
    """Switch loads that the test sets."""

    said: Any = ()

    def read_levels(self, hosts: Any) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Instance:
    """One instance of the service."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        store: database.Database,
        leads: bool = True,
        verifier: address_verifier.AddressVerifier | None = None,
        name: str = "one",
    ) -> None:
        self.lead, self.loads, self.store = Lead(leads, name), Loads(), store
        self.published: list[decision_messages.RingTable] = []
        self.sent: list[tuple[str, int]] = []
        self.given: list[tuple[str, int]] = []
        self.has_broker = True
        self.now_s = 0.0
        real = store.store if isinstance(store, Mortal) else store
        self.enrolled = enrolled_hosts.EnrolledHosts(conf, real, self.wall)
        self.service = service.DecisionService(
            conf,
            store,
            self.lead,
            self.loads,
            self,
            verifier,
            clock=manual_clock.FunctionClock(lambda: self.now_s, self.wall),
        )
        self.service.load_trust()

    def wall(self) -> float:
        return WALL_S + self.now_s

    def accept_sample(self, sample: decision_messages.Sample) -> None:
        self.service.accept_sample(self.enrolled.sealed(sample))

    def publish_table(self, table: decision_messages.RingTable) -> bool:
        self.published.append(table)
        return True

    def send_table(self, host: str, table: decision_messages.RingTable) -> bool:
        self.sent.append((host, table.epoch))
        return True

    def send_task(self, host: str, message: decision_messages.Signed) -> bool:
        signers = signing.read_public_keys(self.enrolled.keeper.load_trust_state().signers)
        given = signed_messages.verify_from_service(
            message, signing.TASK, signers, decision_messages.TaskForHosts
        )
        assert given.hosts == (host,) and given.given_s == self.wall()
        self.given.append((host, given.task.request))
        return self.has_broker

    def epochs(self) -> list[int]:
        return [table.epoch for table in self.published]


def sample(
    host: str,
    number: int,
    share: float,
    epoch: int,
    place: str = "",
    sent_s: float | None = None,
) -> decision_messages.Sample:
    return decision_messages.Sample(
        host=host,
        address=f"10.0.0.{host[1:]}:7201",
        session=1,
        started_s=0,
        number=number,
        sent_s=WALL_S + number * COLLECTION_S if sent_s is None else sent_s,
        interval_s=COLLECTION_S,
        link_bytes_s=1000,
        ring_epoch=epoch,
        total=decision_messages.TrafficBytes(0, int(share * 1000 * COLLECTION_S)),
        location=place,
    )


class Cloud:
    """Instances that receive the samples of the same hosts."""

    def __init__(self, *instances: Instance) -> None:
        self.instances = list(instances)
        self.number = 0
        self.places: dict[str, str] = {}

    def collect(self, times: int = 1, busy: str = "", epoch: int | None = None) -> None:
        """Let three hosts send a sample each, by default with the newest table."""
        for _ in range(times):
            self.number += 1
            for one in self.instances:
                one.now_s = self.number * COLLECTION_S
                has = one.service.current.epoch if epoch is None else epoch
                for host in ("h1", "h2", "h3"):
                    place = self.places.get(host, "")
                    one.accept_sample(sample(host, self.number, float(host == busy), has, place))
                one.service.run_round()


@pytest.fixture
def lone(configure: Callable[..., cfg.ConfigOpts], store: database.Database) -> Instance:
    return Instance(configure(), store, name="one")


def test_new_hosts_are_published_once_and_stored(lone, store):
    Cloud(lone).collect(5)
    assert lone.epochs() == [1]
    known = hash_ring.decode(lone.published[0].table.encode(), "table")
    assert [(host.host, host.vnodes) for host in known.hosts] == [(f"h{n}", 100) for n in (1, 2, 3)]
    [noted] = store.list_rings(limit=9)
    assert (noted.epoch, noted.reason, noted.hosts, noted.moved) == (1, "members", 3, 300)
    assert noted.published_s == WALL_S + 2 * COLLECTION_S
    assert [host.host for host in store.list_hosts()] == ["h1", "h2", "h3"]
    assert len(store.list_traffic(0)) == 15


def test_overload_moves_v_nodes_and_is_recorded_with_its_host(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    cloud.collect(2, busy="h2")
    newest = store.list_rings(limit=1)[0]
    assert (newest.epoch, newest.reason, newest.overloaded) == (2, "overload", ("h2",))
    assert 0 < newest.moved < 100


def test_each_round_updates_the_metrics(lone):
    cloud = Cloud(lone)
    assert lone.service.metrics.round_s == 0
    cloud.collect(3)
    cloud.collect(2, busy="h1")
    picture = lone.service.metrics
    assert picture.leads and picture.has_database and picture.has_loads
    assert picture.round_s == WALL_S + lone.now_s
    assert (picture.epoch, picture.published) == (2, {"members": 1, "overload": 1})
    assert picture.hosts["h1"].vnodes < 100 < picture.hosts["h2"].vnodes
    assert sum(host.vnodes for host in picture.hosts.values()) == 300
    assert picture.hosts["h1"].traffic_share > 0.9 and not picture.hosts["h2"].is_overloaded
    assert picture.moved == 300 + 100 - picture.hosts["h1"].vnodes
    assert picture.traffic_cv == pytest.approx(2**0.5), "one of three carries everything"
    assert (picture.accepted_samples, sum(picture.refused.values())) == (15, 0)
    lone.accept_sample(sample("h1", 1, 0, 0))
    cloud.collect()
    assert (
        lone.service.metrics.accepted_samples,
        lone.service.metrics.refused["out_of_order"],
    ) == (18, 1)


def test_drained_host_gets_no_v_nodes(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    store.set_drained("h2", True)
    cloud.collect()
    table = hash_ring.decode(lone.published[-1].table.encode(), "table")
    assert [host.vnodes for host in table.hosts] == [100, 0, 100]


def test_new_leader_continues_within_one_round_and_moves_nothing(configure, store):
    one = Instance(configure(), store, name="one")
    two = Instance(configure(), store, leads=False, name="two")
    cloud = Cloud(one, two)
    cloud.collect(3)
    assert (one.epochs(), two.epochs()) == ([1], [])
    assert two.service.current == one.service.current
    cloud.instances.remove(one)
    two.lead.leads = True
    cloud.collect(3)
    assert two.epochs() == []
    cloud.collect(2, busy="h1")
    assert two.epochs() == [2]


def test_overload_first_seen_by_a_dead_leader_counts(configure, store):
    one = Instance(configure(), store, name="one")
    two = Instance(configure(), store, leads=False, name="two")
    cloud = Cloud(one, two)
    cloud.collect(3)
    cloud.collect(1, busy="h1")
    cloud.instances.remove(one)
    two.lead.leads = True
    cloud.collect(1, busy="h1")
    assert two.epochs() == [2]


def test_restarted_service_keeps_the_table_while_no_host_is_heard(configure, store):
    Cloud(Instance(configure(), store, name="one")).collect(2)
    again = Instance(configure(dead_after_samples=2), store, name="two")
    for _ in range(6):  # without any sample the bus is assumed to have failed
        again.now_s += COLLECTION_S
        again.service.run_round()
    assert again.epochs() == [] and again.service.current.epoch == 1


def damage_table(store, epoch, table="{"):
    with store.engine().begin() as link:
        row = sa.update(models.PublishedRing).where(models.PublishedRing.epoch == epoch)
        link.execute(row.values(table=table))


@pytest.mark.expect_log(
    r"rings.ring_table of 2 is damaged: .* run DELETE FROM rings WHERE epoch = 2$"
)
@pytest.mark.parametrize("is_anothers", [False, True], ids=["no table", "of another epoch"])
def test_leader_publishes_the_table_before_a_damaged_one_with_a_higher_epoch(
    configure, store, watched_log, is_anothers
):
    one = Instance(configure(), store, name="one")
    standby = Instance(configure(), store, leads=False, name="two")
    cloud = Cloud(one, standby)
    cloud.collect(2)
    store.set_drained("h1", True)
    cloud.instances.remove(standby)
    cloud.collect()
    assert one.epochs() == [1, 2]
    damage_table(store, 2, store.get_ring(1).table if is_anothers else "{")
    store.set_drained("h1", False)
    standby.lead.leads = True
    for leader, epoch in ((standby, 3), (Instance(configure(), store, name="three"), 3)):
        cloud.instances = [leader]
        cloud.collect(2, epoch=2)
        assert leader.service.leads and not leader.lead.stepped_down
        assert leader.epochs() == ([3] if leader is standby else [])
        assert leader.service.current.epoch == store.latest_epoch() == epoch
    assert store.list_rings(limit=1)[0].reason == "epoch"
    published = open_table(one, standby.published[0])
    assert published.hosts == open_table(one, one.published[0]).hosts
    assert len(watched_log.messages) == 1


@pytest.mark.expect_log("rings.ring_table of 1 is damaged")
def test_restarted_leader_without_an_undamaged_table_waits_for_samples(configure, store):
    one = Instance(configure(), store, name="one")
    cloud = Cloud(one)
    cloud.collect(2)
    one.enrolled.enrol("h9")
    one.enrolled.keeper.revoke_host(ids.HostId("h9"))
    damage_table(store, 1)
    two = Instance(configure(), store, name="two")
    two.service.run_round()
    assert two.service.leads and two.epochs() == []
    cloud.instances = [two]
    cloud.collect(3, epoch=1)
    assert two.epochs() == [2]
    assert [host.host for host in open_table(two, two.published[0]).hosts] == ["h1", "h2", "h3"]


def test_leader_stores_its_table_again_after_the_database_lost_it(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    with store.engine().begin() as link:
        link.execute(sa.delete(models.PublishedRing))
    cloud.collect(2)
    assert lone.epochs() == [1, 2] and store.latest_epoch() == 2
    first, again = (open_table(lone, table) for table in lone.published)
    assert first.hosts == again.hosts and not lone.lead.stepped_down


def test_leader_stores_its_table_again_after_an_operator_deleted_its_damaged_row(configure, store):
    one = Instance(configure(), store, name="one")
    two = Instance(configure(), store, leads=False, name="two")
    cloud = Cloud(one, two)
    cloud.collect(2)
    cloud.instances.remove(one)
    two.lead.leads = True
    store.set_drained("h1", True)
    cloud.collect()
    damage_table(store, 2)
    cloud.collect()
    with store.engine().begin() as link:
        link.execute(sa.delete(models.PublishedRing).where(models.PublishedRing.epoch == 2))
    cloud.collect(2)
    assert two.epochs() == [2, 3] and not two.lead.stepped_down
    before, again = (open_table(two, table) for table in two.published)
    assert before.hosts == again.hosts


@pytest.mark.expect_log("another instance has published epoch 2; stepping down")
def test_slower_of_two_leaders_steps_down(configure, store, monkeypatch):
    one = Instance(configure(), store, name="one")
    two = Instance(configure(), store, leads=False, name="two")
    cloud = Cloud(one, two)
    cloud.collect(3)
    assert (one.epochs(), two.epochs()) == ([1], [])
    late = ring_queries.Publication(2, 0.0, "members", (), 0, 0, 0, "other", "{}")
    two.lead.leads = True
    decide = two.service.decider.decide_table
    monkeypatch.setattr(
        two.service.decider, "decide_table", lambda *a: (store.store_ring(late, 9), decide(*a))[1]
    )
    cloud.instances.remove(one)
    store.set_drained("h1", True)
    cloud.collect()
    assert two.lead.stepped_down == 1 and two.epochs() == []


@pytest.mark.expect_log("the database fails: .*keeping the last table")
def test_nothing_is_published_without_the_database(lone, store, monkeypatch):
    cloud = Cloud(lone)
    cloud.collect(3)

    def gone(*_: object) -> int:
        raise database.DatabaseError("sqlite://", "gone")

    with monkeypatch.context() as patched:
        patched.setattr(store, "latest_epoch", gone)
        cloud.collect(4, busy="h1")
        assert lone.epochs() == [1] and not lone.service.leads
        assert lone.service.current_ring().epoch == 1
    cloud.collect(1, busy="h1")
    assert lone.epochs() == [1, 2]


@pytest.mark.expect_log("the database fails: .*locked.*keeping the last table")
def test_nothing_is_published_while_the_database_is_locked(configure, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between attempts
    path = tmp_path / "locked.sqlite"
    made = database.Database(configure(f"sqlite:///{path}?timeout=0.01"))
    made.upgrade()
    lone = Instance(configure(), made, name="one")
    cloud = Cloud(lone)
    cloud.collect(3)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        cloud.collect(2, busy="h1")
        assert lone.epochs() == [1] and not lone.service.leads
        assert not lone.service.metrics.has_database
    cloud.collect(1, busy="h1")
    assert lone.epochs() == [1, 2] and lone.service.metrics.has_database
    made.close()


class Killed(BaseException):
    """The kill of a process, which its code cannot handle."""


class Mortal:
    """A database whose process is killed after its Nth call.

    Sending a table counts as a call.
    """

    def __init__(self, store: database.Database, dies_at: int) -> None:
        self.store, self.dies_at, self.calls = store, dies_at, 0

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self.call(getattr(self.store, name), *args, **named)

    def call(self, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.calls += 1
        result = work(*args, **named)
        if self.calls == self.dies_at:
            raise Killed
        return result


def test_leader_killed_during_a_remap_leaves_one_table_for_all(configure, store, tmp_path):
    was_killed, dies_at = True, 0
    while was_killed:
        dies_at += 1
        path = tmp_path / f"{dies_at}.sqlite"
        shutil.copy(tmp_path / "decision.sqlite", path)
        conf = configure(f"sqlite:///{path}")
        copy = database.Database(conf)
        was_killed = _killed_in_a_remap(conf, copy, dies_at)
        copy.close()
    assert dies_at > 8


def _killed_in_a_remap(conf, store, dies_at) -> bool:
    """Kill the leader at one call of a remap, let another take over; return whether it died."""
    mortal = Mortal(store, 0)
    one = Instance(conf, mortal)  # type: ignore[arg-type]
    two = Instance(conf, store, leads=False)
    cloud = Cloud(one, two)
    cloud.collect(2)
    publish = one.publish_table
    one.publish_table = lambda table: mortal.call(publish, table)  # type: ignore[method-assign]
    mortal.calls, mortal.dies_at = 0, dies_at
    try:
        cloud.collect(2, busy="h1")
    except Killed:
        cloud.instances.remove(one)
        two.lead.leads = True
        cloud.collect(3, busy="h1", epoch=one.epochs()[-1])
    assert [found.epoch for found in store.list_rings(limit=9)] == [2, 1]
    [newest] = store.list_rings(limit=1, with_tables=True)
    counts = {
        host.host: host.vnodes for host in hash_ring.decode(newest.table.encode(), "table").hosts
    }
    assert counts["h1"] < 100 and sum(counts.values()) == 300
    assert 2 in [*one.epochs(), *two.epochs(), *(epoch for _, epoch in two.sent)]
    return one not in cloud.instances


def test_agents_with_an_older_table_get_it_directly_after_a_delay(lone):
    cloud = Cloud(lone)
    cloud.collect(2)
    cloud.collect(epoch=0)
    assert lone.sent == []
    cloud.collect(epoch=0)
    assert lone.sent == [("h1", 1), ("h2", 1), ("h3", 1)]
    cloud.collect()
    assert len(lone.sent) == 3


def test_agents_with_a_higher_epoch_get_a_still_higher_one(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2, epoch=41)
    assert lone.epochs() == [42]
    cloud.collect(1, epoch=77)
    assert lone.epochs() == [42, 78]
    assert store.list_rings(limit=1)[0].reason == "epoch"
    cloud.collect(2, epoch=service.HIGHEST_TRUSTED_EPOCH)
    assert lone.epochs() == [42, 78]


@pytest.mark.expect_log("does not report the loads of the switches: gone; keeping the thresholds")
def test_thresholds_follow_switch_loads_and_stay_when_unknown(lone):
    cloud = Cloud(lone)
    cloud.places = {"h1": "pod1/rack1", "h2": "pod1/rack1", "h3": "pod2/rack2"}

    def thresholds() -> tuple[int, int]:
        table = json.loads(lone.published[-1].table)
        return table["threshold"], table["outer_threshold"]

    cloud.collect(4)
    assert lone.epochs() == [1, 2] and thresholds() == (1, threshold.EVERYWHERE)
    lone.loads.said = [[], [], [threshold.SwitchLoad(9, 10)]]
    cloud.collect(2)
    assert lone.epochs() == [1, 2, 3] and thresholds() == (1, 2)
    lone.loads.said = base.LoadsUnknown("prometheus", "gone")
    cloud.collect(3)
    assert lone.epochs() == [1, 2, 3]
    lone.loads.said = []
    cloud.collect(2)
    assert lone.epochs() == [1, 2, 3, 4] and thresholds() == (1, threshold.EVERYWHERE)


@pytest.mark.expect_log("message sample_collected is ignored: .*broke the protocol")
def test_malformed_sample_is_counted_and_dropped(lone):
    received: list[decision_messages.Signed] = []
    refused = collections.Counter[str]()
    endpoint = rpc._Endpoint(received.append, refused, {})
    for payload in (None, {"payload": 5}, {"host": "h1"}, {"host": "h1", "total": 5}):
        endpoint.sample_collected({}, payload)
    assert (received, refused) == ([], {"malformed": 4})
    signed = lone.enrolled.sealed(sample("h1", 1, 0, 0))
    endpoint.sample_collected({}, decision_messages.encode(signed))
    assert received == [signed]


@pytest.mark.expect_log("message sample_collected is ignored: .*broke the protocol")
def test_malformed_samples_do_not_fill_the_log(lone, watched_log):
    endpoint = rpc._Endpoint(lambda sent: None, {"malformed": 0}, {})
    for _ in range(1000):
        endpoint.sample_collected({}, None)
    assert len(watched_log.messages) == message_bus.WARNINGS


def open_table(one: Instance, reported: decision_messages.RingTable) -> hash_ring.Ring:
    """Verify and decode a table as a newly enrolled agent does."""
    signers = signing.read_public_keys(one.enrolled.keeper.load_trust_state().signers)
    signed_messages.check_signature(
        signers, signing.TABLE, reported.table.encode(), reported.signature
    )
    return hash_ring.decode(reported.table.encode(), "table")


def test_every_table_is_signed_even_after_a_takeover(configure, store, lone):
    assert open_table(lone, lone.service.current_ring()).epoch == 0
    Cloud(lone).collect(3)
    for reported in (*lone.published, lone.service.current_ring()):
        assert open_table(lone, reported).epoch == 1
    other = Instance(configure(), store, leads=False, name="two")
    other.service.run_round()
    assert open_table(lone, other.service.current_ring()).epoch == 1


def test_table_is_signed_again_when_a_new_signer_is_in_use(lone):
    Cloud(lone).collect(3)
    before = lone.service.current_ring()
    lone.enrolled.keeper.renew_key(certificate_authority.SIGNER, at_once=True)
    lone.service.run_round()
    after = lone.service.current_ring()
    assert (after.table, after.epoch) == (before.table, before.epoch)
    assert open_table(lone, after) and after.signature != before.signature


@pytest.mark.parametrize("lie", ["of another host", "by another authority", "changed"])
def test_sample_not_signed_by_its_host_is_refused(lone, lie):
    cloud = Cloud(lone)
    cloud.collect(3)
    good = lone.enrolled.sealed(sample("h1", 4, 0.0, 1))
    key, certificate = lone.enrolled.identity("h2")
    if lie == "by another authority":
        own = certificates.Authority.create("forger", lone.wall(), 3600)
        key, h1 = certificates.new_key(), ids.HostId("h1")
        certificate = own.issue_certificate(certificates.request(h1, key), h1, lone.wall(), 600)
    forged = signed_messages.sign_payload(sample("h1", 9, 1.0, 1), signing.SAMPLE, key, certificate)
    if lie == "changed":
        forged = msgspec.structs.replace(good, payload=good.payload.replace(":7201", ":7202"))
    with pytest.raises(errors.NotAuthenticated):
        lone.service.accept_sample(forged)
    lone.service.run_round()
    assert lone.service.members[ids.HostId("h1")].last.number == 3


@pytest.mark.expect_log("h1: sample 4 is refused: it is revoked")
def test_revoked_host_leaves_the_table_in_the_next_round(lone, store):
    cloud = Cloud(lone)
    cloud.collect(3)
    lone.enrolled.keeper.revoke_host(ids.HostId("h1"))
    cloud.collect()
    table = open_table(lone, lone.published[-1])
    assert [host.host for host in table.hosts] == ["h2", "h3"]
    assert table.revoked == {"h1": certificates.refused_before(lone.wall() - COLLECTION_S)}
    assert store.list_rings(limit=1)[0].reason == "revoked"
    assert lone.service.metrics.refused["disbelieved"] == 1
    cloud.instances = []
    lone.enrolled.keeper.allow_host(ids.HostId("h1"))
    lone.enrolled.enrol("h1")
    cloud.instances = [lone]
    cloud.collect(3)
    assert {host.host for host in open_table(lone, lone.published[-1]).hosts} == {"h1", "h2", "h3"}


@pytest.mark.expect_log("h9: sample 1 is refused: it has not enrolled here")
def test_certificate_of_a_host_that_never_enrolled_is_refused(configure, store, tmp_path):
    """The operator's own authority also issues certificates for other purposes."""
    own = certificates.Authority.create("own", WALL_S, 10**8)
    (tmp_path / "ca.pem").write_bytes(own.certificate_pem)
    (tmp_path / "ca.key.pem").write_bytes(own.key_pem)
    lone = Instance(configure(ca_dir=str(tmp_path)), store, name="one")
    key, h9 = certificates.new_key(), ids.HostId("h9")
    certificate = own.issue_certificate(certificates.request(h9, key), h9, WALL_S, 3600)
    lone.service.accept_sample(
        signed_messages.sign_payload(sample("h9", 1, 0, 0), signing.SAMPLE, key, certificate)
    )
    lone.service.run_round()
    assert lone.service.members.list_hosts() == []


@pytest.mark.expect_log("h4: sample 4 is refused: taken_address")
def test_address_claimed_by_two_hosts_stays_with_the_first(lone):
    cloud = Cloud(lone)
    cloud.collect(3)
    thief = msgspec.structs.replace(sample("h4", 4, 0.0, 1), address="10.0.0.1:7201")
    lone.now_s += COLLECTION_S
    lone.accept_sample(thief)
    cloud.collect(2)
    assert lone.epochs() == [1]


@pytest.mark.expect_log("h4: sample [0-9]+ is refused: taken_address")
def test_refused_samples_do_not_fill_the_log(lone, watched_log):
    Cloud(lone).collect(3)
    for number in range(4, 4 + sample_inbox.WAITING_OF_A_HOST):
        thief = sample("h4", number, 0.0, 1, sent_s=lone.wall())
        lone.accept_sample(msgspec.structs.replace(thief, address="10.0.0.1:7201"))
    lone.service.run_round()
    assert lone.service.metrics.refused["taken_address"] == sample_inbox.WAITING_OF_A_HOST
    assert len(watched_log.messages) == message_bus.WARNINGS


class Network:
    """An address verifier that finds given hosts at given addresses."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = {address_book.parse(f"{ip}:7201"): host for host, ip in hosts.items()}
        self.asked: list[address_book.Address] = []

    def in_flight(self) -> frozenset[address_book.Address]:
        return frozenset(self.asked)

    def submit_addresses(
        self, addresses: Iterable[address_book.Address], _trust: trust_state.TrustState
    ) -> None:
        self.asked += addresses

    def take_results(self) -> list[address_verifier.VerifyResult]:
        asked, self.asked = self.asked, []
        return [
            address_verifier.VerifyResult(at, self.hosts.get(at, ""), "timed out") for at in asked
        ]


@pytest.mark.expect_log("no agent authenticates at 10.0.0.3 port 7201: timed out")
def test_address_is_published_after_its_verification(configure, store):
    network = Network(h1="10.0.0.1", h2="10.0.0.2")
    lone = Instance(configure(), store, verifier=network)
    cloud = Cloud(lone)
    cloud.collect(3)
    assert [host.host for host in open_table(lone, lone.published[-1]).hosts] == ["h1", "h2"]
    network.hosts[address_book.parse("10.0.0.3:7201")] = "h3"
    cloud.collect(3)
    names = [host.host for host in open_table(lone, lone.published[-1]).hosts]
    assert names == ["h1", "h2", "h3"]
    after = Instance(configure(), store, verifier=Network())
    after.now_s = lone.now_s
    after.service.run_round()
    assert after.service.members.list_live(after.now_s) == ["h1", "h2", "h3"]  # from the table


@pytest.mark.expect_log("no agent authenticates at 10.0.0.3 port 7201: timed out")
def test_host_that_did_not_prove_its_address_gets_no_table(configure, store):
    lone = Instance(configure(), store, verifier=Network(h1="10.0.0.1", h2="10.0.0.2"))
    Cloud(lone).collect(9, epoch=0)
    assert set(lone.sent) == {("h1", 1), ("h2", 1)}


def test_new_addresses_in_each_sample_do_not_fill_the_queue_of_the_verifier(configure, store):
    verifier = address_verifier.AddressVerifier()  # without threads: no attempt ends
    lone = Instance(configure(), store, verifier=verifier)
    for number in range(1, 40):
        lone.now_s = number * COLLECTION_S
        for host in ("h1", "h2"):
            moved = msgspec.structs.replace(
                sample(host, number, 0.0, 0), address=f"10.0.{number}.{host[1:]}:7201"
            )
            lone.accept_sample(moved)
        lone.service.run_round()
    assert verifier._wanted.qsize() == address_proofs.AT_A_TIME


def test_one_host_with_a_high_epoch_changes_nothing(lone, store):
    cloud = Cloud(lone)
    cloud.collect(3)
    for number in range(4, 7):
        lone.now_s = number * COLLECTION_S
        for host, epoch in (("h1", 2**52), ("h2", 1), ("h3", 1)):
            lone.accept_sample(sample(host, number, 0.0, epoch))
        lone.service.run_round()
    assert lone.epochs() == [1] and store.latest_epoch() == 1


@pytest.mark.expect_log("a round failed; keeping the last table")
def test_failed_round_does_not_prevent_the_next_one(lone, monkeypatch):
    cloud = Cloud(lone)
    cloud.collect(3)
    with monkeypatch.context() as patched:
        patched.setattr(lone.service.decider, "decide_table", lambda *_: 1 // 0)
        lone.service.run_round()
        assert not lone.service.leads
    lone.lead.leads = True
    cloud.collect(2)
    assert lone.service.leads and lone.epochs() == [1]


@pytest.mark.expect_log("a round failed; keeping the last table")
def test_oversized_table_is_not_published(lone, store, monkeypatch, watched_log):
    cloud = Cloud(lone)
    with monkeypatch.context() as patched:
        patched.setattr(hash_ring, "MAX_FILE_BYTES", 100)
        for _ in range(4):
            lone.lead.leads = True
            cloud.collect(1)
        assert lone.epochs() == [] and store.latest_epoch() == 0
    assert len(watched_log.messages) == 1, "it is said once"
    lone.lead.leads = True
    cloud.collect(1)
    assert lone.epochs() == [1]


@pytest.mark.expect_log("message sample_collected is ignored")
def test_forged_samples_do_not_fill_the_log(lone, watched_log):
    endpoint = rpc._Endpoint(lone.service.accept_sample, {"malformed": 0}, {})
    for _ in range(1000):
        endpoint.sample_collected({}, {"payload": 5})
    assert len(watched_log.messages) == message_bus.WARNINGS


@pytest.mark.expect_log("h1: its sample is dropped")
def test_one_host_cannot_fill_the_inbox_and_keeps_its_newest_samples(lone):
    Cloud(lone).collect(3)
    for number in range(4, 60):
        lone.now_s += 1.0
        lone.accept_sample(sample("h1", number, 0.0, 1, sent_s=lone.wall()))
    assert len(lone.service._inbox) == sample_inbox.WAITING_OF_A_HOST
    lone.accept_sample(sample("h2", 4, 0.0, 1))
    lone.service.run_round()
    assert lone.service.members[ids.HostId("h1")].last.number == 59
    assert lone.service.members[ids.HostId("h2")].last.number == 4


@pytest.mark.allow_log("more messages were ignored")
def test_replayed_samples_do_not_block_other_hosts(lone):
    """Any client of the broker can record samples; 33 copies would fill a host's 32 inbox slots."""
    cloud = Cloud(lone)
    recorded = [lone.enrolled.sealed(sample("h1", n, 0.0, 0)) for n in (1, 2, 3)]
    cloud.collect(3)
    for number in range(4, 14):
        lone.now_s = number * COLLECTION_S
        for copy in recorded * 11:
            lone.service.accept_sample(copy)
        for host in ("h1", "h2", "h3"):
            lone.accept_sample(sample(host, number, 0.0, 1))
        recorded.append(lone.enrolled.sealed(sample("h1", number, 0.0, 1)))
        lone.service.run_round()
        assert lone.service.members[ids.HostId("h1")].last.number == number
    assert lone.epochs() == [1]
    refused = lone.service.metrics.refused
    assert refused["doubled"] + refused["out_of_order"] + refused["late"] > 10 * 33


def test_replayed_samples_do_not_revive_a_silent_host(lone):
    cloud = Cloud(lone)
    cloud.collect(3)
    recorded = [lone.enrolled.sealed(sample("h3", n, 0.0, 0)) for n in (1, 2, 3)]
    for number in range(4, 12):
        lone.now_s = number * COLLECTION_S
        for copy in recorded:
            lone.service.accept_sample(copy)
        for host in ("h1", "h2"):
            lone.accept_sample(sample(host, number, 0.0, 1))
        lone.service.run_round()
    assert lone.service.members.list_live(lone.now_s) == ["h1", "h2"]


@pytest.mark.expect_log("is refused: its certificate is revoked")
def test_samples_of_a_revoked_key_do_not_displace_those_of_the_new_one(lone):
    """The thief of the former key can sign samples newer than the host's own."""
    Cloud(lone).collect(3)
    stolen, certificate = lone.enrolled.identity("h1")
    lone.enrolled.keeper.revoke_host(ids.HostId("h1"))
    lone.enrolled.keeper.allow_host(ids.HostId("h1"))
    lone.now_s += COLLECTION_S
    lone.enrolled.enrol("h1")
    for number in range(2**40, 2**40 + sample_inbox.WAITING_OF_A_HOST):
        newer = sample("h1", number, 0.0, 1, sent_s=lone.wall() + 25)
        lone.service.accept_sample(
            signed_messages.sign_payload(newer, signing.SAMPLE, stolen, certificate)
        )
    lone.accept_sample(sample("h1", 4, 0.0, 1))
    lone.service.run_round()
    assert lone.service.members[ids.HostId("h1")].last.number == 4


def test_trust_state_is_kept_without_the_database(lone, monkeypatch):
    cloud = Cloud(lone)
    cloud.collect(3)

    def gone(*_: object) -> int:
        raise database.DatabaseError("sqlite://", "gone")

    with monkeypatch.context() as patched:
        patched.setattr(lone.store, "list_enrolments", gone)
        patched.setattr(service.LOG, "warning", lambda *_: None)
        cloud.collect()
    assert lone.service.members[ids.HostId("h1")].last.number == 4


def test_unknown_plug_in_is_refused_with_the_installed_ones(configure):
    with pytest.raises(errors.Unusable, match=r"'abacus' is not installed.*hosts, none, prom"):
        base.load("abacus", configure())


@pytest.mark.expect_log("epoch 2 was published by two; stepping down")
def test_leader_that_sees_anothers_table_steps_down(lone, configure, store):
    """A leader lock can expire unnoticed: etcd and MySQL send no notice."""
    other = Instance(configure(), store, leads=False, name="two")
    cloud = Cloud(lone, other)
    cloud.collect(3)
    other.lead.leads = True
    store.set_drained("h1", True)
    cloud.instances.reverse()
    cloud.collect(1)
    assert lone.lead.stepped_down == 1


def test_image_reports_survive_a_later_sample_in_the_round(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
    lone.now_s += 2 * COLLECTION_S
    reported = sample("h1", 3, 0.0, 1)
    held = {image_id: decision_messages.HeldImage(size_bytes=5)}
    lone.accept_sample(msgspec.structs.replace(reported, images=held))
    lone.accept_sample(sample("h1", 4, 0.0, 1))
    lone.service.run_round()
    assert [row.host for row in store.image_hosts(image_id, 0)] == ["h1"]


def test_boots_of_several_samples_in_a_round_are_all_recorded(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    lone.now_s += 2 * COLLECTION_S
    servers = [f"0a2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(3)]
    for number, server_id in enumerate(servers):
        boot = boot_timeline.Timeline(
            image_id=IMAGE, instance_id=server_id, began_at_s=1.0, opened_s=0.0, slice_s=0.25
        )
        reported = sample("h1", 3 + number, 0.0, 1)
        lone.accept_sample(msgspec.structs.replace(reported, boots=(boot,)))
    lone.service.run_round()
    assert [[row.host for row in store.list_boots(one)] for one in servers] == [["h1"]] * 3


def test_images_of_a_host_are_deleted_after_a_day_of_silence(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    held = {IMAGE: decision_messages.HeldImage(size_bytes=5)}
    gone = sample("h9", 1, 0.0, 0)
    store.record_samples({"h9": (msgspec.structs.replace(gone, images=held), 0)})
    cloud.collect(2)
    assert [row.host for row in store.image_hosts(IMAGE, 0)] == ["h9"]
    lone.now_s += image_queries.KEPT_S + service.FORGET_EVERY_S
    lone.service.run_round()
    assert store.image_hosts(IMAGE, 0) == []


def ask(store: database.Database, given_s: float, *hosts: str) -> decision_messages.ImageTask:
    """Record a task for hosts whose message is lost."""
    task = decision_messages.ImageTask(
        request=int(given_s), kind=decision_messages.TaskKind.PRE_SEED, image_id=IMAGE
    )
    store.record_task(hosts, task, WALL_S + given_s)
    return task


def speak(cloud: Cloud, one: Instance, host: str, task: decision_messages.ImageTask) -> None:
    """Let a host report a task in its next sample."""
    reported = decision_messages.TaskProgress(
        request=task.request, kind=task.kind, state=decision_messages.TaskState.WAITING
    )
    said = sample(host, cloud.number + 1, 0.0, one.service.current.epoch)
    images = {IMAGE: decision_messages.HeldImage(task=reported)}
    one.accept_sample(msgspec.structs.replace(said, images=images))


def test_task_is_resent_until_the_host_reports_it(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    task = ask(store, 10.0, "h1", "h2")
    cloud.collect()
    assert lone.given == [], "a host that heard of it may not have told yet"
    cloud.collect(2)
    assert lone.given == 2 * [("h1", 10), ("h2", 10)]
    speak(cloud, lone, "h1", task)
    del lone.given[:]
    cloud.collect(2)
    assert lone.given == 2 * [("h2", 10)]


def test_task_is_dropped_after_the_resend_period(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    ask(store, 10.0, "h1")
    cloud.collect(20)
    assert len(lone.given) == (service.RESEND_AFTER_S - 2 * COLLECTION_S) // COLLECTION_S + 1
    assert store.unacknowledged_tasks(0) == []


def test_tasks_of_silent_hosts_wait_and_a_failing_bus_is_tried_once_a_round(lone, store):
    cloud = Cloud(lone)
    cloud.collect(2)
    ask(store, 10.0, "h9", "h1", "h2")
    lone.has_broker = False
    cloud.collect(2)
    assert lone.given == [("h1", 10)]
    assert [given.host for given in store.unacknowledged_tasks(0)] == ["h1", "h2", "h9"]


def test_only_the_leader_resends_tasks(configure, store):
    two = [Instance(configure(), store, name == "one", name=name) for name in ("one", "two")]
    cloud = Cloud(*two)
    cloud.collect(2)
    ask(store, 10.0, "h1")
    cloud.collect(3)
    assert two[0].given and not two[1].given
