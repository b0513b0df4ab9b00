# SPDX-License-Identifier: Apache-2.0
"""What no checkpoint needs goes from vaults, and nothing else, whatever is away."""

import pathlib

import pytest

from acstor_checkpoint import names
from acstor_checkpoint import record
from acstor_checkpoint import room
from acstor_checkpoint import states
from acstor_checkpoint import sweeping
from acstor_checkpoint import vault as vault_
from acstor_common import errors
from acstor_common import ids

H1, H2, H3 = (ids.HostId(name) for name in ("h1", "h2", "h3"))
INSTANCES = [ids.ImageId(f"7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a1{n}") for n in range(3)]
NAME = bytes(range(32))


class Vaults:
    """Vaults without a network between."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.away: set[ids.HostId] = set()
        limits = room.Limits(1 << 20, 1 << 20, 100)
        self.of = {host: vault_.Vault(folder / host, limits, host) for host in (H2, H3)}

    def every(self):
        return [record.Holder(host, "10.0.0.1:1") for host in self.of]

    def client(self, holder):
        return Client(self.of[holder.host], holder.host in self.away)

    def put(self, disk):
        for vault in self.of.values():
            with vault.batch(names.Disk(H1, ids.ImageId(disk))) as batch:
                batch.add(names.Kind.CHUNK, NAME, 5, [b"bytes"])

    def disks(self):
        return [set(vault.disks(H1)) for vault in self.of.values()]


class Client:
    def __init__(self, vault, is_away):
        self._vault, self._is_away = vault, is_away

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def disks(self, owner):
        if self._is_away:
            raise errors.SourceUnreachable("disks", "h2", "away")
        return self._vault.disks(owner)

    def drop(self, disk):
        return self._vault.drop(disk)


class Lab:
    """A host with two servers here, one that has gone, and a disk that began anew."""

    def __init__(self, folder):
        for host in (H2, H3):
            (folder / host).mkdir()
        self.vaults, self.states = Vaults(folder), states.States(folder / "state")
        self.kept, self.disks = set(), []
        for instance in INSTANCES:
            state = states.new(INSTANCES[0], 65536)
            self.states.save(instance, state)
            self.disks.append(state.disk)
        self.former = states.new(INSTANCES[0], 65536).disk
        for disk in (*self.disks, self.former):
            self.vaults.put(disk)
        self.sweeping = sweeping.Sweeping(H1, self.states, self._told, self.vaults)

    def _told(self):
        if self.kept is None:
            raise errors.DecisionUnreachable("the message bus", "away")
        return self.kept


@pytest.fixture
def lab(tmp_path):
    made = Lab(tmp_path)
    yield made
    for vault in made.vaults.of.values():
        vault.close()


def test_disk_that_began_anew_goes_and_what_is_here_stays(lab):
    assert lab.sweeping.once(INSTANCES) == 2
    assert lab.vaults.disks() == [set(lab.disks)] * 2
    assert lab.sweeping.once(INSTANCES) == 0


def test_what_the_service_knows_stays_though_its_server_is_gone(lab):
    lab.kept = {lab.disks[2], lab.former}
    for _ in range(3):
        assert lab.sweeping.once(INSTANCES[:2]) == 0
    assert lab.states.load(INSTANCES[2]) is not None
    lab.kept = set()
    lab.sweeping.once(INSTANCES[:2])
    assert lab.vaults.disks() == [set(lab.disks[:2])] * 2


def test_server_that_is_away_for_a_while_keeps_what_it_has(lab):
    for here in (INSTANCES[:2], INSTANCES, INSTANCES[:2], INSTANCES):
        lab.sweeping.once(here)
        assert lab.vaults.disks() == [set(lab.disks)] * 2


def test_nothing_goes_while_the_service_does_not_say_what_stays(lab):
    lab.kept = None
    for _ in range(3):
        with pytest.raises(errors.DecisionUnreachable):
            lab.sweeping.once([])
    assert lab.vaults.disks() == [{*lab.disks, lab.former}] * 2
    assert lab.states.load(INSTANCES[0]) is not None


def test_vault_that_is_away_is_looked_at_another_time(lab):
    lab.vaults.away.add(H2)
    assert lab.sweeping.once(INSTANCES) == 1
    lab.vaults.away.clear()
    assert lab.sweeping.once(INSTANCES) == 1
    assert lab.vaults.disks() == [set(lab.disks)] * 2
