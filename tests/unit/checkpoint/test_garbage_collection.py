# SPDX-License-Identifier: Apache-2.0
"""Garbage collection in vaults deletes only chunks that no checkpoint needs."""

import contextlib
import errno
import threading

import pytest

from acstor_checkpoint.capture import disk_states
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.schedule import garbage_collection as collection
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import manual_clock
from tests.fakes import packed_names
from tests.fakes import vault_checkpoints

HOST, CHUNK = ids.HostId("h1"), geometry.DEFAULT_CHUNK_BYTES
IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
HERE = ids.parse_image_id("5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e21")
GONE = ids.parse_image_id("5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e22")


class Client:
    """A client of a vault in this process."""

    def __init__(self, holder, kept, is_away):
        self.holder, self._kept, self._is_away = holder, kept, is_away

    def list_disks(self, owner):
        if self._is_away:
            raise errors.SourceUnreachable("/", self.holder, "it is away")
        return self._kept.list_disks(owner)

    def retain_only(self, disk, stay):
        named = object_names.NameList(packed_names.pack_names(stay.names))
        return self._kept.retain_only(disk, named, within=stay.within)

    def delete_disk(self, disk):
        return self._kept.delete_disk(disk)

    def abort(self):
        pass


class World:
    """Two holders, a decision service, and this host's disk states."""

    def __init__(self, folder):
        for name in ("h2", "h3"):
            (folder / name).mkdir()
        limits = quota.VaultLimits(1 << 30, 1 << 30, 1000)
        self.vaults = {
            name: vault_store.VaultStore(folder / name, limits, ids.HostId(name))
            for name in ("h2", "h3")
        }
        self.states = disk_states.DiskStates(folder / "state")
        self.stays, self.why, self.now_s, self.asked, self.away = {}, "", 1000.0, [], set()
        self.busy, self.present = set(), {HERE}
        self.collector = self.started()

    def started(self, limits=collection.LIMITS):
        return collection.GarbageCollection(
            HOST,
            self.states,
            self,
            self.kept,
            self,
            threading.Event(),
            manual_clock.FunctionClock(lambda: self.now_s),
            limits,
        )

    def kept(self):
        if self.why:
            raise errors.DecisionUnreachable("the bus", self.why)
        return self.stays

    def other_hosts(self):
        return [checkpoint_record.VaultHolder(ids.HostId(name), "") for name in self.vaults]

    @contextlib.contextmanager
    def client_of(self, holder):
        self.asked.append(holder.host)
        yield Client(holder.host, self.vaults[holder.host], holder.host in self.away)

    def take(self, instance, *chunks):
        """Store a checkpoint at both holders; return its disk and the manifest's name."""
        state = self.states.load(instance) or disk_states.new_state(IMAGE, CHUNK)
        state.number, state.holders = state.number + 1, list(self.vaults)
        self.states.save(instance, state)
        seal = checkpoint_encryption.Seal(bytes.fromhex(state.key))
        plain = {number: bytes([byte]) * CHUNK for number, byte in enumerate(chunks)}
        entries = [checkpoint_manifest.Entry(n, seal.chunk_name(data)) for n, data in plain.items()]
        cut, disk = geometry.Geometry(1 << 20, CHUNK), ids.ImageId(state.disk)
        subject = vault_checkpoints.subject(disk, instance, IMAGE, cut, state.number)
        sealed = seal.close_manifest(checkpoint_manifest.build(subject, entries))
        manifest = self.states.save_manifest(instance, sealed)
        disk = object_names.VaultDisk(HOST, ids.ImageId(state.disk))
        things = [(object_names.ObjectKind.MANIFEST, bytes.fromhex(manifest), sealed)]
        things += [
            (object_names.ObjectKind.CHUNK, name, seal.close(name, plain[n])) for n, name in entries
        ]
        for one in self.vaults.values():
            with one.open_batch(disk) as batch:
                for kind, thing, data in things:
                    batch.add(kind, thing, len(data), [data])
        return state.disk, manifest

    def take_part(self, instance):
        _, name = self.take(instance, 1, 2)
        state = self.states.load(instance)
        state.manifest, state.is_partial = name, True
        self.states.save(instance, state)

    def files(self):
        return [len(list(one.iter_all())) for one in self.vaults.values()]

    def list_servers(self):
        return self.present

    @contextlib.contextmanager
    def hold_server(self, instance, _end_block=None):
        yield instance not in self.busy

    def collect(self):
        return self.collector.collect()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for one in made.vaults.values():
        one.close()


def test_chunks_of_deleted_checkpoints_are_deleted_and_shared_ones_kept(world):
    disk, first = world.take(HERE, 1, 2, 3)
    _, second = world.take(HERE, 1, 2, 4)
    world.stays = {disk: {first, second}}
    world.collect()
    assert world.files() == [6, 6]
    world.stays = {disk: {second}}
    world.collect()
    assert world.files() == [4, 4]
    world.stays = {}
    world.collect()
    assert world.files() == [0, 0] and world.states.list_instances() == [HERE]


def test_partial_checkpoint_is_kept_while_its_server_is_here(world):
    for instance in (HERE, GONE):
        world.take_part(instance)
    world.collect()
    assert world.files() == [3, 3] and world.states.list_instances() == [HERE]


def test_holders_may_lack_chunks_after_a_deletion(world):
    """The next capture checks which chunks the holders lack."""
    disk, name = world.take(HERE, 1, 2)
    state = world.states.load(HERE)
    state.manifest = name
    world.states.save(HERE, state)
    world.stays = {disk: {name}}
    world.collect()
    assert not world.states.load(HERE).may_lack_chunks
    world.stays = {}
    world.collect()
    assert world.states.load(HERE).may_lack_chunks and world.files() == [0, 0]


def test_disk_of_a_departed_server_is_forgotten_with_its_last_checkpoint(world):
    disk, name = world.take(GONE, 1)
    world.stays = {disk: {name}}
    world.collect()
    assert world.states.list_instances() == [GONE] and world.files() == [2, 2]
    world.stays = {}
    world.collect()
    assert world.states.list_instances() == [] and world.files() == [0, 0]


def test_unknown_disk_is_deleted_when_no_checkpoint_is_kept(world):
    disk, name = world.take(GONE, 1)
    world.take(GONE, 2)
    world.states.delete_state(GONE)
    world.stays = {disk: {name}}
    world.collect()
    assert world.files() == [4, 4]
    world.stays = {}
    world.collector = world.started()
    world.collect()
    assert world.files() == [0, 0]


@pytest.mark.expect_log("obsolete checkpoints are not deleted yet")
def test_nothing_is_deleted_without_a_response_of_the_service(world):
    world.take(GONE, 1)
    world.why = "no answer"
    assert not world.collect()
    assert world.files() == [2, 2] and world.states.list_instances() == [GONE]
    world.why = ""
    world.collect()
    assert world.files() == [0, 0]


def test_unreachable_holder_does_not_delay_others(world):
    world.take(GONE, 1)
    world.take(HERE, 2)
    world.away = {"h3"}
    world.collect()
    assert world.files() == [0, 4] and world.asked == ["h3", "h2"]
    world.away = set()
    world.collect()
    assert world.files() == [0, 0]


def test_only_current_holders_are_contacted_between_hourly_passes(world):
    world.collect()
    assert sorted(world.asked) == ["h2", "h3"]
    world.collect()
    assert len(world.asked) == 2
    world.now_s += collection.ALL_EVERY_S
    world.collect()
    assert sorted(world.asked) == ["h2", "h2", "h3", "h3"]


def test_state_of_a_disk_is_read_twice_per_holder(world, monkeypatch):
    for number in range(3):
        disk, manifest = world.take(ids.ImageId(f"{HERE[:-1]}{number}"), number)
        world.stays[disk] = {manifest}
    world.collect()
    read, seen = world.states.read, []
    monkeypatch.setattr(world.states, "read", lambda one: seen.append(one) or read(one))
    world.collector._collect_at(world.other_hosts()[0])
    assert len(seen) == 6


def test_disk_under_capture_is_skipped(world):
    world.take(HERE, 1, 2)
    world.busy = {HERE}
    world.collect()
    assert world.files() == [3, 3]
    world.busy = set()
    world.collect()
    assert world.files() == [0, 0]


def test_checkpoint_begun_during_the_query_is_kept(world):
    world.take(HERE, 1)

    def kept():
        world.take(HERE, 2)
        return {}

    world.collector._list_retained = kept
    world.collect()
    assert all(count >= 2 for count in world.files())


def test_pass_that_runs_out_of_time_continues_in_the_next_one(world, monkeypatch):
    world.take(GONE, 1)
    ask = world.collector._collect_at

    def slow(holder):
        ask(holder)
        world.now_s += collection.PASS_S + 1

    monkeypatch.setattr(world.collector, "_collect_at", slow)
    world.collect()
    assert world.files() == [2, 0] and world.states.list_instances() == [GONE]
    world.collect()
    assert world.files() == [0, 0] and world.states.list_instances() == []


def test_nothing_is_deleted_while_the_servers_are_unknown(world):
    world.take(GONE, 1)
    world.present = None
    assert not world.collect() and world.files() == [2, 2]


@pytest.mark.parametrize("present", [{HERE, GONE}, None])
def test_partial_checkpoint_of_an_arriving_server_is_kept(world, present):
    world.take_part(GONE)

    def kept():
        world.present = present
        return {}

    world.collector._list_retained = kept
    assert world.collect()
    assert world.files() == [3, 3] and world.states.list_instances() == [GONE]


@pytest.mark.parametrize("present", [{HERE, GONE}, None])
def test_disk_of_an_arriving_server_is_not_forgotten(world, present):
    world.take(GONE, 1)
    answers = []

    def kept():
        answers.append({})
        if len(answers) == 3:  # after both holders
            world.present = present
        return {}

    world.collector._list_retained = kept
    assert world.collect()
    assert len(answers) == 3 and world.states.list_instances() == [GONE]


def test_garbage_disks_are_all_deleted_over_several_passes(world):
    """A pass handles a few disks; further passes reach all the others."""
    world.collector = world.started(collection.CollectionLimits(holder_disks=3))
    for number in range(10):
        world.take(ids.ImageId(f"{GONE[:-1]}{number}"), number)
    counts = [world.files()]
    for _ in range(4):
        world.now_s += collection.ALL_EVERY_S
        world.collect()
        counts.append(world.files())
    assert counts == [[20, 20], [14, 14], [8, 8], [2, 2], [0, 0]]


def test_kept_disks_do_not_delay_deletion_of_others(world):
    world.collector = world.started(collection.CollectionLimits(holder_disks=2))
    for number in range(8):
        disk, name = world.take(ids.ImageId(f"{GONE[:-1]}{number}"), number + 1)
        world.stays |= {disk: {name}} if number != 5 else {}
    for _ in range(4):
        world.now_s += collection.ALL_EVERY_S
        world.collect()
    assert world.files() == [14, 14]


@pytest.mark.expect_log("cannot be read")
@pytest.mark.parametrize("instance", [HERE, GONE])
def test_unreadable_state_is_set_aside_without_stopping_a_pass(world, tmp_path, instance):
    """Garbage of other disks is deleted at once, that of the unreadable state in a later pass."""
    world.take(ids.ImageId(f"{GONE[:-1]}9"), 1)
    world.take_part(instance)
    path = tmp_path / "state" / instance / "state.json"
    path.unlink()
    path.mkdir()
    assert world.collect()
    assert world.files() == [0, 5 - 2] and instance not in world.states.list_instances()
    assert (tmp_path / "state" / f"{instance}.unreadable").is_dir()
    world.now_s += collection.ALL_EVERY_S
    assert world.collect()
    assert world.files() == [0, 0]


@pytest.mark.expect_log("cannot be read")
@pytest.mark.parametrize("reads", range(9))
def test_pass_continues_after_a_failed_read_of_a_state(world, monkeypatch, reads):
    """Any read of a pass may fail; chunks of a partial checkpoint are never deleted."""
    world.take_part(HERE)
    world.take_part(GONE)
    read, left = world.states.read, [reads]

    def reading(instance):
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EMFILE, "too many open files")
        return read(instance)

    monkeypatch.setattr(world.states, "read", reading)
    assert world.collect()
    assert all(count >= 3 for count in world.files()) and HERE in world.states.list_instances()
    world.now_s += collection.ALL_EVERY_S
    assert world.collect()
    assert world.files() == [3, 3] and world.states.list_instances() == [HERE]
