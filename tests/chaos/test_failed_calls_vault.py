# SPDX-License-Identifier: Apache-2.0
"""Each file system call of a vault fails: what it acknowledged stays, and its quota is exact."""

import contextlib
import ctypes
import os
import pathlib
import random
from collections.abc import Callable

import blake3
import pytest

from acstor_checkpoint.vault import group_sync
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import ids
from tests.fakes import failing_calls
from tests.fakes import packed_names

pytestmark = failing_calls.marks

H1, H2 = ids.HostId("h1"), ids.HostId("h2")
DISK = object_names.VaultDisk(H1, ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"))
OTHER = object_names.VaultDisk(H1, ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e22"))
LIMITS = quota.VaultLimits(1 << 20, 1 << 20, 200)
CHUNK, MANIFEST = object_names.ObjectKind.CHUNK, object_names.ObjectKind.MANIFEST
DATA = [bytes([n]) * 500 for n in range(6)]
CHUNKS = [random.Random(n).randbytes(32) for n in range(6)]
NAMES = [blake3.blake3(data).digest() for data in DATA]  # of manifests

Object = tuple[object_names.VaultDisk, object_names.ObjectKind, bytes, bytes]
FIRST = [(DISK, CHUNK, CHUNKS[n], DATA[n]) for n in range(3)]
SECOND = [(DISK, CHUNK, CHUNKS[n], DATA[n]) for n in range(2, 5)]
MANIFESTS = [(DISK, MANIFEST, NAMES[n], DATA[n]) for n in range(2)]
OTHERS = [(OTHER, CHUNK, CHUNKS[5], DATA[5])]


class CountedSync:
    """``libc``, whose ``syncfs`` is a call of ``os``, so that it can fail."""

    def syncfs(self, descriptor: int) -> int:
        try:
            os.fsync(descriptor)
        except OSError as e:
            ctypes.set_errno(e.errno)
            return -1
        return 0


@pytest.fixture(autouse=True)
def counted_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sync, "_libc", CountedSync())


Told = tuple[str, list[Object], list[Object]]
"""An operation that begins or ended, the objects that it stored, and those that it deleted."""
Tell = Callable[[Told], None]
Step = Callable[[vault_store.VaultStore, Tell], object]


def storing(objects: list[Object]) -> Step:
    return lambda vault, tell: put(vault, objects, tell)


def open_in(folder: pathlib.Path) -> vault_store.VaultStore:
    return vault_store.VaultStore(folder, LIMITS, H2)


def put(vault: vault_store.VaultStore, objects: list[Object], tell: Tell) -> None:
    with vault.open_batch(objects[0][0]) as batch:
        for _, kind, name, data in objects:
            batch.add(kind, name, len(data), [data[:100], data[100:]])
    tell(("end", objects, []))


def retain(vault: vault_store.VaultStore, tell: Tell) -> None:
    gone = [FIRST[0], MANIFESTS[0]]
    tell(("begin", [], gone))
    vault.retain_only(DISK, object_names.NameList(packed_names.pack_names([*CHUNKS[1:], NAMES[1]])))
    tell(("end", [], gone))


def delete(vault: vault_store.VaultStore, tell: Tell) -> None:
    tell(("begin", [], OTHERS))
    vault.delete_disk(OTHER)
    tell(("end", [], OTHERS))


def read_all(vault: vault_store.VaultStore) -> dict[Object, bool]:
    """Return which objects the vault has; compare their bytes."""
    return {one: has(vault, one) for one in (*FIRST, *SECOND, *MANIFESTS, *OTHERS)}


def has(vault: vault_store.VaultStore, one: Object) -> bool:
    disk, kind, name, data = one
    try:
        with vault.open_object(disk, kind, name) as found:
            assert b"".join(found.iter_bytes()) == data
    except errors.ChunkMissing:
        return False
    return True


STEPS: list[Step] = [
    *map(storing, (FIRST, MANIFESTS, OTHERS, SECOND)),
    lambda vault, _: read_all(vault),
    lambda vault, _: vault.missing_chunks(DISK, CHUNKS),
    retain,
    delete,
]


def apply(reported: list[Told]) -> tuple[set[Object], set[Object]]:
    """Return the objects that must be there, and those that must not."""
    kept: set[Object] = set()
    gone: set[Object] = set()
    for what, stored, deleted in reported:
        kept = (kept | set(stored)) - set(deleted)
        gone -= set(stored)
        if what == "end":
            gone |= set(deleted)
    return kept, gone


def check(folder: pathlib.Path, reported: list[Told], *, is_complete: bool) -> None:
    """Reopen the vault, and compare it with the reports."""
    vault = open_in(folder)
    try:
        check_open(vault, reported)
        assert not list(folder.rglob(".incoming-*"))
        if is_complete:
            kept, gone = apply(reported)
            assert kept == {*FIRST[1:], *SECOND, MANIFESTS[1]}
            assert gone == {FIRST[0], MANIFESTS[0], *OTHERS}
        for objects in (FIRST, OTHERS):
            put(vault, objects, lambda _: None)
        check_open(vault, [*reported, ("end", [*FIRST, *OTHERS], [])])
    finally:
        vault.close()


def check_open(
    vault: vault_store.VaultStore, reported: list[Told], *, is_exact: bool = True
) -> None:
    """Compare an open vault with the reports; its quota counts too much if it is not exact."""
    found = read_all(vault)
    kept, gone = apply(reported)
    assert [one for one in kept if not found[one]] == []
    assert [one for one in gone if found[one]] == []
    listed = {name for disk in (DISK, OTHER) for name in vault.list_manifests(disk)}
    assert listed == {one[2] for one, is_here in found.items() if is_here and one[1] is MANIFEST}
    assert vault.corrupt_files == 0
    files = sum(1 for _ in (vault.folder / H1).rglob("*")) + (vault.folder / H1).is_dir()
    used = vault.quota.usage_by_host().get(H1, quota.Usage())
    assert used >= (4096 * files, files)
    assert used == (4096 * files, files) or not is_exact


def test_vault_with_a_failed_call_keeps_what_it_acknowledged(tmp_path: pathlib.Path) -> None:
    for calls in failing_calls.each_call(tmp_path, least=100):
        reported: list[Told] = []
        with contextlib.ExitStack() as opened:
            with calls:
                try:
                    vault = open_in(calls.folder)
                except OSError:
                    continue
                opened.callback(vault.close)
                for step in STEPS:
                    try:
                        step(vault, reported.append)
                    except OSError:
                        assert calls.hit
            check_open(vault, reported, is_exact=not calls.fault.is_lasting)
        check(calls.folder, reported, is_complete=not calls.hit)


def test_vault_killed_at_a_call_keeps_what_it_acknowledged(tmp_path: pathlib.Path) -> None:
    def work(folder: pathlib.Path, tell: Tell) -> None:
        vault = open_in(folder)
        for step in STEPS:
            step(vault, tell)
        vault.close()

    for folder, reported, is_killed in failing_calls.each_kill(tmp_path, 60, work):
        check(folder, reported, is_complete=not is_killed)
