# SPDX-License-Identifier: Apache-2.0
"""Deletion of vault data whose owner departed, confirmed by the decision service."""

import threading

import pytest

from acstor_checkpoint.vault import owner_deletion
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids

HERE, H1, H2 = map(ids.HostId, ("h0", "h1", "h2"))
IDS = [ids.parse_image_id(f"0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e2{n}") for n in range(3)]


class World:
    """A vault and a decision service."""

    def __init__(self, folder):
        self.vault = vault_store.VaultStore(folder, quota.VaultLimits(1 << 20, 1 << 20, 200), HERE)
        self.gone, self.asked, self.why = {H1}, [], ""
        self.meanwhile, self.ended = (lambda: None), threading.Event()
        self.deletion = owner_deletion.OwnerDeletion(self.vault, self.says, self.ended)

    def says(self, owners):
        self.asked.append(list(owners))
        self.meanwhile()
        if self.why:
            raise errors.DecisionUnreachable("the bus", self.why)
        return self.gone

    def put(self, owner, disk, connection=0, name=1):
        with self.vault.open_batch(object_names.VaultDisk(owner, disk), connection) as batch:
            batch.add(object_names.ObjectKind.CHUNK, bytes([name]) * 32, 3, [b"abc"])

    def kept(self):
        return sorted((place.owner, place.disk) for place, _, _ in self.vault.iter_all())


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    for number, (owner, disk) in enumerate([(H1, 0), (H1, 1), (H2, 2)]):
        made.put(owner, IDS[disk], connection=number)
    yield made
    made.vault.close()


def test_data_of_departed_hosts_is_deleted(world):
    world.deletion.delete_departed()
    assert world.asked == [[H1, H2]] and world.kept() == [(H2, IDS[2])]
    assert not (world.vault.folder / H1).exists()
    world.deletion.delete_departed()
    assert world.asked[-1] == [H2]


def test_service_is_not_asked_about_an_empty_vault(world):
    world.gone = {H1, H2, ids.HostId("h9")}
    world.deletion.delete_departed()
    world.deletion.delete_departed()
    assert len(world.asked) == 1 and world.kept() == []


def test_nothing_is_deleted_without_a_response(world):
    world.why = "it is away"
    with pytest.raises(errors.DecisionUnreachable):
        world.deletion.delete_departed()
    assert len(world.kept()) == 3


def test_disk_with_a_new_connection_is_not_deleted(world):
    world.meanwhile = lambda: world.put(H1, IDS[1], connection=7, name=2)
    world.deletion.delete_departed()
    assert {(H1, IDS[1]), (H2, IDS[2])} <= set(world.kept())


def test_owners_are_queried_in_parts(world):
    world.deletion.delete_departed(owners_per_request=1)
    assert world.asked == [[H1], [H2]] and world.kept() == [(H2, IDS[2])]


@pytest.mark.expect_log("orphaned data")
def test_deletion_continues_after_a_failure(world):
    world.why = "it is away"

    def later():
        if len(world.asked) == 3:
            world.why = ""
        if len(world.asked) == 5:
            world.ended.set()

    world.meanwhile = later
    world.deletion.run(first_s=0.0, every_s=0.0)
    assert world.kept() == [(H2, IDS[2])]


def test_deletion_thread_ends_with_its_block(world):
    with owner_deletion.run_deletion(world.vault, world.says):
        assert "owner deletion" in {thread.name for thread in threading.enumerate()}
    assert "owner deletion" not in {thread.name for thread in threading.enumerate()}
    assert world.asked == []
