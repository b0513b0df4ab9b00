# SPDX-License-Identifier: Apache-2.0
"""State of captured disks: private files; damaged state is logged and ignored."""

import stat

import msgspec
import pytest

from acstor_checkpoint.capture import disk_states
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import vault_checkpoints

INSTANCE = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
BASE = ids.ImageId("8d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")


@pytest.fixture
def known(tmp_path):
    return disk_states.DiskStates(tmp_path / "state")


def sealed_of(state, number, entries=()):
    cut = geometry.Geometry(1 << 20, 65536)
    subject = vault_checkpoints.subject(ids.ImageId(state.disk), INSTANCE, BASE, cut, number)
    seal = checkpoint_encryption.Seal(bytes.fromhex(state.key))
    return seal.close_manifest(checkpoint_manifest.build(subject, entries))


def test_state_round_trips_in_private_files(known, tmp_path):
    state = disk_states.new_state(BASE, 65536)
    state.bitmap, state.obsolete_bitmaps, state.number = "acstor-1", ["acstor-2"], 9
    assert known.load(INSTANCE) is None
    known.save(INSTANCE, state)
    assert known.load(INSTANCE) == state and known.list_instances() == [INSTANCE]
    for path in [tmp_path / "state", *(tmp_path / "state").rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert disk_states.new_state(BASE, 65536).key != state.key
    known.delete_state(INSTANCE)
    assert known.load(INSTANCE) is None and known.list_instances() == []


@pytest.mark.expect_log("is a full one")
@pytest.mark.parametrize(
    "change",
    [{"key": "00"}, {"disk": "x"}, {"other": 1}, {"number": "1"}, {"begun": ["a"] * 2000}],
)
def test_damaged_state_is_ignored(known, tmp_path, change):
    known.save(INSTANCE, disk_states.new_state(BASE, 65536))
    path = tmp_path / "state" / INSTANCE / "state.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **change}))
    assert known.load(INSTANCE) is None


@pytest.mark.expect_log("is a full one")
def test_unreadable_state_is_an_error_for_read_and_ignored_by_load(known, tmp_path):
    (tmp_path / "state" / INSTANCE / "state.json").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        known.read(INSTANCE)
    assert known.load(INSTANCE) is None


def test_state_of_another_version_is_ignored(known):
    state = disk_states.new_state(BASE, 65536)
    state.version += 1
    known.save(INSTANCE, state)
    assert known.load(INSTANCE) is None


@pytest.mark.expect_log("is rejected")
@pytest.mark.expect_log("No such file")
def test_manifests_are_kept_while_named_and_need_the_disks_key(known, tmp_path):
    state = disk_states.new_state(BASE, 65536)
    known.save(INSTANCE, state)
    names = [known.save_manifest(INSTANCE, sealed_of(state, number)) for number in (1, 2, 3)]
    assert [known.read_manifest(INSTANCE, state, name).subject.number for name in names] == [
        1,
        2,
        3,
    ]
    known.retain_only(INSTANCE, {names[2], names[1], "0" * 64})
    assert known.read_manifest(INSTANCE, state, names[0]) is None
    other = disk_states.new_state(BASE, 65536)
    assert known.read_manifest(INSTANCE, other, names[1]) is None


@pytest.mark.parametrize("at_once", [1 << 19, 4])
def test_needed_names_are_listed_in_parts_that_cover_everything(known, at_once):
    state = disk_states.new_state(BASE, 65536)
    known.save(INSTANCE, state)
    cids = [ids.Cid(bytes([17 * n]) + bytes([n]) * 30 + b"\1") for n in range(15)]
    of_one, of_other = (
        [checkpoint_manifest.Entry(n, cid) for n, cid in enumerate([ids.ZERO_CID, *some])]
        for some in (cids[:10], cids[5:])
    )
    stay = {
        known.save_manifest(INSTANCE, sealed_of(state, number, entries))
        for number, entries in enumerate((of_one, of_other), 1)
    }
    parts = list(known.iter_needed(INSTANCE, state, stay, at_once))
    assert [first for part in parts for first in part.within] == list(range(256))
    assert len(parts) == (1 if at_once > 100 else 8)
    assert all(name[0] in part.within for part in parts for name in part.names)
    assert set().union(*(part.names for part in parts)) == {*cids, *map(bytes.fromhex, stay)}
    with pytest.raises(errors.Unusable, match="No such file"):
        list(known.iter_needed(INSTANCE, state, {*stay, "0" * 64}))


def test_unwritable_state_directory_is_named(known, tmp_path):
    state = disk_states.new_state(BASE, 65536)
    (tmp_path / "state" / INSTANCE).write_text("not a folder")
    with pytest.raises(errors.Unusable, match=INSTANCE):
        known.save(INSTANCE, state)
    with pytest.raises(errors.Unusable, match=INSTANCE):
        known.save_manifest(INSTANCE, b"sealed")
