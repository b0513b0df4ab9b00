# SPDX-License-Identifier: Apache-2.0
"""Contract tests of the decision service's database, for every backend."""

import contextlib
import functools
import json
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.runtime import migration
from oslo_config import cfg

from acstor_common.model import boot_timeline
from acstor_common.wire import checkpoint_messages
from acstor_common.wire import decision_messages
from acstor_common.wire import fill_progress
from acstor_decision import conf as decision_conf
from acstor_decision.db import boot_queries
from acstor_decision.db import checkpoint_failure_queries
from acstor_decision.db import connection_url
from acstor_decision.db import database
from acstor_decision.db import grant_queries
from acstor_decision.db import image_queries
from acstor_decision.db import listener_queries
from acstor_decision.db import models
from acstor_decision.db import ring_queries

OWNED = fill_progress.FillStatus(
    state=fill_progress.FillState.FULLY_CACHED, is_used=True, total_bytes=6, remaining_bytes=0
)
FAILING = (
    checkpoint_messages.Failing("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11", "holder", "h2"),
    checkpoint_messages.Failing("", "full"),
)
FILLING = fill_progress.FillStatus(
    state=fill_progress.FillState.FILLING,
    is_used=True,
    why="the store is gone: ω",
    total_bytes=6,
    remaining_bytes=4,
    rate_bytes_s=2,
    remaining_s=2.0,
)


@contextlib.contextmanager
def opened(
    connection: str, timeout_s: int = connection_url.TIMEOUT_S
) -> Iterator[database.Database]:
    """Open a database with the tables of this version."""
    conf = cfg.ConfigOpts()
    decision_conf.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    conf.set_override("connection", connection, "database")
    made = database.Database(conf, timeout_s)
    made.upgrade()
    try:
        yield made
    finally:
        made.close()


def _in_state(state: str, row: models.Enrolment | None) -> models.Enrolment:
    row = row or models.Enrolment(host="h1")
    row.state = state
    return row


def publication(epoch: int, **fields: Any) -> ring_queries.Publication:
    return ring_queries.Publication(
        **{
            "epoch": epoch,
            "published_s": 1000.0 + epoch,
            "reason": "members",
            "overloaded": (),
            "moved": 3,
            "vnodes": 200,
            "hosts": 2,
            "instance": "one",
            "table": f'{{"epoch": {epoch}}}',
            **fields,
        }
    )


SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"


def sample(host: str, sent_s: float = 1000.0, **fields: Any) -> decision_messages.Sample:
    return decision_messages.Sample(
        **{
            "host": host,
            "address": f"10.0.0.{host[1:]}:7201",
            "session": 1,
            "started_s": 1.0,
            "number": 1,
            "sent_s": sent_s,
            "interval_s": 5.0,
            "link_bytes_s": 1000,
            "total": decision_messages.TrafficBytes(50, 100),
            "chunks": decision_messages.TrafficBytes(5, 10),
            "peers": {"h9": decision_messages.TrafficBytes(1, 2)},
            **fields,
        }
    )


def boot(server_id: str, reads: int) -> boot_timeline.Timeline:
    return boot_timeline.Timeline(
        image_id="7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11",
        instance_id=server_id,
        began_at_s=900.0,
        opened_s=1.0,
        reads=reads,
        slice_s=0.25,
    )


class Suite:
    """The contract tests; a subclass provides the fixture ``store``."""

    def test_migrations_create_the_tables_of_the_models(self, store: database.Database) -> None:
        with store.engine().connect() as link:
            options = {"compare_server_default": True}
            context = migration.MigrationContext.configure(link, opts=options)
            assert autogenerate.compare_metadata(context, models.Base.metadata) == []

    def test_upgrade_creates_tables_and_keeps_rows(self, store: database.Database) -> None:
        with store.engine().begin() as link:
            models.Base.metadata.drop_all(link)
            link.execute(sa.text("drop table alembic_version"))
        assert not store.is_current()
        store.upgrade()
        assert store.is_current()
        store.record_samples({"h1": (sample("h1"), 0)})
        store.upgrade()
        assert [host.host for host in store.list_hosts()] == ["h1"]

    def test_checkpoint_failures_are_recorded_and_deleted_concurrently(
        self, store: database.Database
    ) -> None:
        hosts, rounds, done = [f"h{n}" for n in range(1, 7)], range(9), list[int]()

        def work(number: int) -> None:
            for second in rounds:
                for host in hosts[:: 1 - 2 * (number % 2)]:
                    reported = FAILING[: second % 3]
                    store.record_checkpoint_failures(host, reported, 2000.0 + second)
                if number == 2:
                    store.delete_stale(2000.0 + second + checkpoint_failure_queries.KEPT_S)
            done.append(number)

        run(work, 3)
        assert sorted(done) == [0, 1, 2]
        assert store.checkpoint_failures(2008.0) == dict.fromkeys(hosts, FAILING[:2])
        store.delete_stale(2008.5 + checkpoint_failure_queries.KEPT_S)
        assert store.checkpoint_failures(0) == {}

    def test_new_database_has_no_epochs(self, store: database.Database) -> None:
        assert store.latest_epoch() == 0
        assert store.list_rings(limit=5) == [] and store.get_ring(1) is None

    def test_stored_table_is_read_back_unchanged(self, store: database.Database) -> None:
        long = json.dumps({"hosts": "x" * 3_000_000})
        new = publication(1 << 61, overloaded=("h1", "h2"), table=long)
        store.store_ring(new, kept=10)
        assert store.latest_epoch() == 1 << 61
        assert store.get_ring(1 << 61) == new
        assert store.list_rings(limit=5) == [new._replace(table=None)]

    def test_epochs_never_decrease(self, store: database.Database) -> None:
        store.store_ring(publication(5), kept=10)
        for epoch in (4, 5):
            with pytest.raises(ring_queries.EpochTaken, match=f"epoch {epoch}"):
                store.store_ring(publication(epoch), kept=10)
        store.store_ring(publication(6), kept=10)
        assert [ring.epoch for ring in store.list_rings(limit=9)] == [6, 5]
        assert [ring.epoch for ring in store.list_rings(limit=9, at_most=5)] == [5]

    def test_tables_beyond_the_retention_are_deleted(self, store: database.Database) -> None:
        for epoch in range(1, 8):
            store.store_ring(publication(epoch), kept=3)
        assert [ring.epoch for ring in store.list_rings(limit=9)] == [7, 6, 5]
        assert store.get_ring(2) is None

    def test_one_of_many_concurrent_writers_gets_an_epoch(self, store: database.Database) -> None:
        ready, outcomes = threading.Barrier(4), []

        def race(name: str) -> None:
            ready.wait()
            try:
                store.store_ring(publication(1, instance=name), kept=9)
                outcomes.append(name)
            except ring_queries.EpochTaken:
                outcomes.append("")

        racers = [threading.Thread(target=race, args=(f"i{n}",)) for n in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        [winner] = [name for name in outcomes if name]
        assert len(outcomes) == 4 and store.list_rings(limit=9)[0].instance == winner

    def test_later_samples_keep_a_drain(self, store: database.Database) -> None:
        assert not store.set_drained("h1", True)
        store.record_samples({h: (sample(h), 1) for h in ("h2", "h1")})
        assert [host.host for host in store.list_hosts()] == ["h1", "h2"]
        assert store.set_drained("h1", True) and store.set_drained("h1", True)
        store.record_samples({"h1": (sample("h1", 1005.0, ring_epoch=7), 2)})
        found = store.get_host("h1")
        assert found is not None and found.is_drained
        assert (found.first_seen_s, found.seen_s, found.ring_epoch) == (1000.0, 1005.0, 7)
        assert (found.sent_bytes_s, found.chunks_received_bytes_s) == (20.0, 1.0)
        assert found.overloaded_in_a_row == 2
        assert json.loads(found.peers) == {"h9": {"received": 1, "sent": 2}}
        assert store.list_drained() == {"h1"}
        assert store.set_drained("h1", False)
        assert store.list_drained() == frozenset() and store.get_host("nobody") is None

    def test_images_follow_the_latest_report_of_each_host(self, store: database.Database) -> None:
        ids = [f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(3)]
        whole = decision_messages.HeldImage(
            size_bytes=9,
            cached_bytes=6,  # the rest is zeros
            missing_bytes=0,
            read=decision_messages.ReadBytes(1, 2, 3, 4),
            fill=OWNED,
        )
        part = decision_messages.HeldImage(
            size_bytes=9,
            cached_bytes=2,
            missing_bytes=4,
            fetched=decision_messages.FetchedBytes(5, 6),
            fill=FILLING,
        )
        reported = {"h1": {ids[0]: whole, ids[1]: whole}, "h2": {ids[0]: part, ids[2]: part}}
        store.record_samples({h: (sample(h, images=reported[h]), 0) for h in reported})
        store.record_samples({"h1": (sample("h1", 1001.0), 0)})  # no images in it
        assert [image.image_id for image in store.list_images("", 9, 0)] == ids
        first = store.get_image(ids[0], 0)
        assert first is not None and (first.hosts, first.warm_hosts) == (2, 1)
        assert (first.using_hosts, first.fully_cached_hosts) == (2, 1)
        assert (first.size_bytes, first.cached_bytes) == (9, 8)
        assert first.read == decision_messages.ReadBytes(1, 2, 3, 4)
        assert first.fetched == decision_messages.FetchedBytes(5, 6)
        rows = store.image_hosts(ids[0], 0)
        assert [row.host for row in rows] == ["h1", "h2"]
        assert [image_queries.fill_of(row) for row in rows] == [OWNED, FILLING]
        assert store.list_images(ids[0], 1, 0)[0].image_id == ids[1]
        store.record_samples({"h2": (sample("h2", 1000.5, images={}), 0)})
        assert store.get_image(ids[2], 0) is None
        assert store.get_image(ids[0], 1000.9) == store.get_image(ids[0], 0)
        assert store.list_images("", 9, 1002.0) == []

    def test_hosts_using_an_image_and_hosts_caching_all_of_it_are_distinct(
        self, store: database.Database
    ) -> None:
        image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
        by_host = {
            "h1": OWNED,
            "h2": FILLING,
            "h3": msgspec.structs.replace(OWNED, is_used=False, is_pinned=True),
            "h4": msgspec.structs.replace(FILLING, state=fill_progress.FillState.NO_SPACE),
            "h5": fill_progress.FillStatus(state=fill_progress.FillState.EVICTABLE, is_used=False),
            "h6": None,
        }
        held = {host: decision_messages.HeldImage(fill=whole) for host, whole in by_host.items()}
        reported = {host: (sample(host, images={image_id: held[host]}), 0) for host in held}
        store.record_samples(reported)
        found = store.get_image(image_id, 0)
        assert found is not None and (found.using_hosts, found.fully_cached_hosts) == (4, 1)
        rows = store.image_hosts(image_id, 0)
        assert [image_queries.fill_of(row) for row in rows] == list(by_host.values())
        assert [row.is_used for row in rows] == [True, True, False, True, False, True]

    def test_listeners_expire_when_one_reports_a_day_later(self, store: database.Database) -> None:
        for name, now_s in (("c1", 100.0), ("c2", 200.0), ("c1", 300.0)):
            assert store.record_listener(name, now_s)
        known = [(one.listener, one.reported_s) for one in store.list_listeners()]
        assert known == [("c1", 300.0), ("c2", 200.0)]
        assert store.record_listener("c1", 250.0 + listener_queries.KEPT_S)
        assert [one.listener for one in store.list_listeners()] == ["c1"]

    def test_image_is_needed_if_a_host_uses_it_and_lacks_chunks(
        self, store: database.Database
    ) -> None:
        assert store.needed_images(0, 0, 9) == ([], True, None, None, 0)
        ids = [f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(5)]
        full = msgspec.structs.replace(FILLING, state=fill_progress.FillState.NO_SPACE)
        unused = msgspec.structs.replace(FILLING, is_used=False)
        by_host = {
            "h1": {ids[0]: OWNED, ids[1]: OWNED, ids[2]: FILLING, ids[3]: unused, ids[4]: full},
            "h2": {ids[0]: OWNED, ids[1]: FILLING, ids[2]: FILLING, ids[3]: None},
        }
        for host, sent_s in (("h1", 1000.0), ("h2", 2000.0)):
            held = {
                image_id: decision_messages.HeldImage(fill=whole)
                for image_id, whole in by_host[host].items()
            }
            store.record_samples({host: (sample(host, sent_s, images=held), 0)})
        # The host known longest comes first.  A host may use an image without a fill status.
        in_order = [ids[2], ids[4], ids[1], ids[3]]
        assert store.needed_images(1000, 0, 9) == (in_order, True, 2000.0, 1000.0, 0)
        assert store.needed_images(1000, 0, 4)[:2] == (in_order, True)
        assert store.needed_images(1000, 1500, 2) == (in_order[:2], False, 2000.0, 1000.0, 1)
        assert store.needed_images(1500, 1500, 9)[:2] == ([ids[1], ids[2], ids[3]], True)
        assert store.needed_images(1500, 1500, 9).silent_hosts == 0
        store.record_samples({"h2": (sample("h2", 3000.0, images={}), 0)})
        assert store.needed_images(1500, 0, 9) == ([], True, 3000.0, 1000.0, 0)

    def test_revoked_host_needs_no_image(self, store: database.Database) -> None:
        image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
        held = {image_id: decision_messages.HeldImage(fill=FILLING)}
        store.record_samples({"h1": (sample("h1", 1000.0, images=held), 0)})
        for state, needed in (("enrolled", [image_id]), ("revoked", [])):
            store.change_enrolment("h1", functools.partial(_in_state, state))
            assert store.needed_images(0, 0, 9).image_ids == needed
        assert store.needed_images(0, 0, 9).last_sample_s is None

    def test_image_is_grantable_for_an_hour_or_while_a_host_lacks_chunks(
        self, store: database.Database
    ) -> None:
        named, needed = (f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(2))
        store.change_enrolment("h1", functools.partial(_in_state, "enrolled"))
        for image_id in (named, needed, needed):
            store.record_named_image(image_id, 1000.0)
        assert store.is_grantable(named, 1000.0 + grant_queries.LINGER_S)
        assert not store.is_grantable("7d2c1f9e-5d6b-4a5c-9c61-000000000009", 1000.0)
        late_s = 1001.0 + grant_queries.LINGER_S
        held = {needed: decision_messages.HeldImage(fill=FILLING)}
        store.record_samples({"h1": (sample("h1", late_s, images=held), 0)})
        store.delete_stale(late_s)
        assert not store.is_grantable(named, 1000.0)  # its row is deleted
        assert store.is_grantable(needed, late_s)
        for state, is_grantable in (("revoked", False), ("enrolled", True)):
            store.change_enrolment("h1", functools.partial(_in_state, state))
            assert store.is_grantable(needed, late_s) is is_grantable
        held = {needed: decision_messages.HeldImage(fill=OWNED)}
        store.record_samples({"h1": (sample("h1", late_s, images=held), 0)})
        assert not store.is_grantable(needed, late_s)

    def test_images_of_silent_hosts_are_deleted(self, store: database.Database) -> None:
        image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
        held = {image_id: decision_messages.HeldImage(size_bytes=9)}
        for host, sent_s in (("h1", 1000.0), ("h2", 2000.0)):
            store.record_samples({host: (sample(host, sent_s, images=held), 0)})
        store.delete_stale(1000.0 + image_queries.KEPT_S)
        assert [row.host for row in store.image_hosts(image_id, 0)] == ["h1", "h2"]
        store.delete_stale(1500.0 + image_queries.KEPT_S)
        assert [row.host for row in store.image_hosts(image_id, 0)] == ["h2"]
        assert [host.host for host in store.list_hosts()] == ["h1", "h2"]

    def test_checkpoint_failures_of_silent_hosts_are_deleted(
        self, store: database.Database
    ) -> None:
        failing = (checkpoint_messages.Failing("", "full"),)
        kept_s = checkpoint_failure_queries.KEPT_S
        store.record_checkpoint_failures("h1", failing, 1000.0)
        store.record_checkpoint_failures("h2", failing, 2000.0 + kept_s)
        assert set(store.checkpoint_failures(1000.0)) == {"h1", "h2"}  # one host deletes its own
        store.delete_stale(1000.5 + kept_s)
        assert set(store.checkpoint_failures(1000.0)) == {"h2"}

    def test_last_boot_of_a_server_is_kept_per_host_until_it_expires(
        self, store: database.Database
    ) -> None:
        for host, sent_s, reads in (("h1", 1000.0, 1), ("h2", 2000.0, 2), ("h1", 3000.0, 3)):
            reported = sample(host, sent_s, boots=(boot(SERVER, reads), boot("", 9)))
            store.record_samples({host: (reported, 0)})
        store.record_samples({"h2": (sample("h2", 2500.0), 0)})  # repeats known values
        rows = store.list_boots(SERVER)
        assert [(row.host, row.reported_s) for row in rows] == [("h2", 2000.0), ("h1", 3000.0)]
        assert [boot_queries.timeline_of(row).reads for row in rows] == [2, 3]
        assert [row.host for row in store.newest_boots(9)] == ["h1", "h2"]
        assert [row.host for row in store.newest_boots(1)] == ["h1"]
        store.delete_stale(2000.5 + boot_queries.KEPT_S)
        assert [row.host for row in store.list_boots(SERVER)] == ["h1"]

    def test_boots_per_host_are_bounded(self, store: database.Database) -> None:
        each = decision_messages.MAX_BOOTS
        servers = [
            f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in range(boot_queries.KEPT_OF_HOST + each)
        ]
        store.record_samples({"h2": (sample("h2", 1.0, boots=(boot(servers[0], 1),)), 0)})
        for at in range(0, len(servers), each):
            reported = tuple(boot(server, 1) for server in servers[at : at + each])
            store.record_samples({"h1": (sample("h1", 1000.0 + at, boots=reported), 0)})
        kept = [one for one in servers if "h1" in [row.host for row in store.list_boots(one)]]
        assert kept == servers[each:]
        assert [row.host for row in store.list_boots(servers[0])] == ["h2"], "another host's stay"

    def test_exchanging_hosts_are_listed_busiest_first(self, store: database.Database) -> None:
        most = decision_messages.MAX_NUMBER
        for host, received, sent in (("h1", 1, 2), ("h2", 0, 0), ("h3", 9, 0), ("h4", most, most)):
            chunks = decision_messages.TrafficBytes(received, sent)
            store.record_samples({host: (sample(host, chunks=chunks, total=chunks), 0)})
        store.record_samples({"h5": (sample("h5", 1.0, chunks=chunks, total=chunks), 0)})
        assert [row.host for row in store.list_exchanging(9, 500.0)] == ["h4", "h3", "h1"]
        assert [row.host for row in store.list_exchanging(2, 500.0)] == ["h4", "h3"]
        assert store.list_exchanging(9, 2000.0) == []

    def test_sums_of_forged_huge_images_do_not_overflow(self, store: database.Database) -> None:
        most = decision_messages.MAX_NUMBER
        huge = decision_messages.HeldImage(
            size_bytes=most,
            cached_bytes=most,
            read=decision_messages.ReadBytes(most, most, most, most),
        )
        image_id = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
        hosts = [f"h{n}" for n in range(1, 6)]
        store.record_samples({h: (sample(h, images={image_id: huge}), 0) for h in hosts})
        [found] = store.list_images("", 9, 0)
        assert found.cached_bytes >= 4 * most and found.read.source >= 4 * most

    def test_tasks_are_kept_until_hosts_acknowledge_them(self, store: database.Database) -> None:
        image_id, other_id = (f"7d2c1f9e-5d6b-4a5c-9c61-{n:012}" for n in (1, 2))
        first, second, other = (
            decision_messages.ImageTask(
                request=request, kind=decision_messages.TaskKind.PRE_SEED, image_id=image
            )
            for request, image in ((1, image_id), ((1 << 52) - 1, image_id), (3, other_id))
        )
        assert store.unacknowledged_tasks(0) == []
        store.record_task([], first, 10.0)
        store.record_task(["h1", "h2"], first, 10.0)
        store.record_task(["h2"], second, 20.0)
        store.record_task(["h2"], other, 30.0)
        waiting = [("h1", 10.0, first), ("h2", 20.0, second), ("h2", 30.0, other)]
        assert store.unacknowledged_tasks(10.0) == waiting
        for request, left in ((1, waiting[:2]), (second.request, waiting[:1])):
            reported = decision_messages.TaskProgress(
                request=request, kind=first.kind, state=decision_messages.TaskState.WAITING
            )
            held = {
                image_id: decision_messages.HeldImage(task=reported),
                other_id: decision_messages.HeldImage(
                    task=msgspec.structs.replace(reported, request=3)
                ),
            }
            store.record_samples({"h2": (sample("h2", images=held), 0)})
            assert store.unacknowledged_tasks(10.0) == left
        assert store.unacknowledged_tasks(10.5) == []
        assert store.unacknowledged_tasks(0) == []

    def test_traffic_is_kept_until_it_expires(self, store: database.Database) -> None:
        for second in range(10):
            store.record_samples({h: (sample(h, float(second)), 0) for h in ("h1", "h2")})
        assert len(store.list_traffic(0)) == 20
        assert len(store.list_traffic(5, ["h2"])) == 5
        store.delete_traffic(8)
        assert [(row.collected_s, row.host) for row in store.list_traffic(0)] == [
            (8.0, "h1"),
            (8.0, "h2"),
            (9.0, "h1"),
            (9.0, "h2"),
        ]

    def test_records_of_two_leaders_are_stored_once(self, store: database.Database) -> None:
        for epoch in (7, 8):
            both = {h: (sample(h, 5.0, ring_epoch=epoch), 0) for h in ("h1", "h2")}
            store.record_samples(both)
        assert len(store.list_traffic(0)) == 2
        assert {host.ring_epoch for host in store.list_hosts()} == {8}

    def test_concurrent_writers_lose_no_row(self, store: database.Database) -> None:
        """Take rows in various orders, which MariaDB answers with deadlocks."""
        hosts = [f"h{n}" for n in range(1, 13)]
        store.record_samples({h: (sample(h), 0) for h in hosts})
        failures: list[Exception] = []

        def collect() -> None:
            try:
                for second in range(15):
                    store.record_samples({h: (sample(h, 2000.0 + second), 0) for h in hosts})
            except Exception as e:
                failures.append(e)

        def drain(order: list[str]) -> None:
            try:
                for host in order:
                    assert store.set_drained(host, True)
            except Exception as e:
                failures.append(e)

        workers = [
            threading.Thread(target=collect),
            threading.Thread(target=collect),
            threading.Thread(target=drain, args=(hosts,)),
            threading.Thread(target=drain, args=(hosts[::-1],)),
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert failures == []
        assert store.list_drained() == set(hosts)
        assert {host.seen_s for host in store.list_hosts()} == {2014.0}

    def test_one_of_many_concurrent_instances_creates_the_key(
        self, store: database.Database
    ) -> None:
        found: list[tuple[int, str]] = []
        together = threading.Barrier(6)

        def start(number: int) -> None:
            together.wait(30)
            made = store.authority_keys("ca", lambda: key(f"of {number}"))
            found.extend((row.number, row.secret_key) for row in made)

        run(start, 6)
        assert len(found) == 6 and len(set(found)) == 1
        later = store.add_authority_key("ca", lambda: key("later"), 77.0)
        assert later.number == 2
        kept = [(row.number, row.trusted_until_s) for row in store.authority_keys("ca")]
        assert kept == [(2, None), (1, 77.0)]
        store.add_authority_key("ca", lambda: key("last"), 99.0)
        assert [row.trusted_until_s for row in store.authority_keys("ca")] == [None, 99.0, 77.0]
        assert store.authority_keys("signer") == []

    def test_one_of_many_concurrent_enrolments_of_a_host_succeeds(
        self, store: database.Database
    ) -> None:
        taken: list[str] = []
        together = threading.Barrier(6)

        def enrol(number: int) -> None:
            def work(row: models.Enrolment | None) -> models.Enrolment:
                if row is not None and row.state == "enrolled":
                    raise KeyError(row.user_id)
                return models.Enrolment(host="h1", state="enrolled", user_id=str(number))

            together.wait(30)
            with contextlib.suppress(KeyError):
                taken.append(store.change_enrolment("h1", work).user_id)

        run(enrol, 6)
        assert len(taken) == 1 and store.get_enrolment("h1").user_id == taken[0]  # type: ignore[union-attr]
        assert len(store.list_enrolments()) == 1

    def test_refused_enrolments_are_counted_across_instances(
        self, store: database.Database
    ) -> None:
        run(lambda number: store.count_refused("wait" if number else "no_room"), 6)
        assert store.refused_enrolments() == {"wait": 5, "no_room": 1}

    def test_forgotten_host_loses_all_its_rows(self, store: database.Database) -> None:
        store.change_enrolment("h1", lambda _: models.Enrolment(host="h1", state="waiting"))
        store.record_samples({"h1": (sample("h1"), 0)})
        assert store.forget_host("h1", lambda _: False)
        assert (store.get_host("h1"), store.get_enrolment("h1")) == (None, None)
        assert not store.forget_host("h1", lambda _: False)

    def test_failed_transaction_leaves_an_enrolment_unchanged(
        self, store: database.Database
    ) -> None:
        def fail(row: models.Enrolment | None) -> models.Enrolment:
            if row is not None:
                row.state = "revoked"
                raise KeyError("no")
            return models.Enrolment(host="h1", state="enrolled")

        store.change_enrolment("h1", fail)
        with pytest.raises(KeyError):
            store.change_enrolment("h1", fail)
        [row] = store.list_enrolments()
        assert (row.state, row.public_key, row.revoked_before_s) == ("enrolled", "", 0)


def key(secret: str) -> models.AuthorityKey:
    return models.AuthorityKey(secret_key=secret, certificate="", made_s=1.0, signs_from_s=1.0)


def run(work: Callable[[int], None], times: int) -> None:
    """Call ``work`` in ``times`` concurrent threads."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
