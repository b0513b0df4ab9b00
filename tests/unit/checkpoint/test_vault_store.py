# SPDX-License-Identifier: Apache-2.0
"""The vault's files: consistency after failures, quotas, scrubbing and the request API."""

import errno
import http
import os
import pathlib
import random
import threading
import time
import tracemalloc
import types
import uuid
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from acstor_checkpoint.vault import group_sync
from acstor_checkpoint.vault import lookup_rate
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import scrubber
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault import vault_files
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.formats import checkpoint_encryption
from acstor_common.model import ids
from tests.fakes import manual_clock
from tests.fakes import packed_names
from tests.lab import runs

H1, H2 = ids.HostId("h1"), ids.HostId("h2")
DISK = object_names.VaultDisk(H1, ids.parse_image_id("0b9d4a5e-3c1f-4f0e-8d57-5d1f0c2a7e21"))
LIMITS = quota.VaultLimits(1 << 20, 1 << 20, 200)
CHUNKS = [
    object_names.SealedChunk(random.Random(n).randbytes(32), bytes([n]) * 100) for n in range(20)
]
NAMES = [chunk.name for chunk in CHUNKS]
PATH = f"/v1/h1/{DISK.disk}"


@pytest.fixture
def vault(tmp_path: pathlib.Path) -> Iterator[vault_store.VaultStore]:
    made = open_in(tmp_path)
    yield made
    made.close()


def open_in(folder: pathlib.Path, limits: quota.VaultLimits = LIMITS) -> vault_store.VaultStore:
    return vault_store.VaultStore(folder, limits, H2)


def put(
    vault: vault_store.VaultStore,
    *chunks: object_names.SealedChunk,
    disk: object_names.VaultDisk = DISK,
) -> None:
    with vault.open_batch(disk) as batch:
        for name, data in chunks:
            batch.add(object_names.ObjectKind.CHUNK, name, len(data), [data])


def here(vault: vault_store.VaultStore) -> set[bytes]:
    return set(NAMES) - set(vault.missing_chunks(DISK, NAMES))


def got(
    vault: vault_store.VaultStore,
    name: bytes,
    kind: object_names.ObjectKind = object_names.ObjectKind.CHUNK,
) -> bytes:
    with vault.open_object(DISK, kind, name) as kept:
        return b"".join(kept.iter_bytes())


def files_of(vault: vault_store.VaultStore) -> int:
    return sum(path.is_file() for path in vault.folder.rglob("*"))


def walked(vault: vault_store.VaultStore) -> dict[ids.HostId, quota.Usage]:
    """Return the disk usage of hosts, given that no file is longer than a block."""
    counts = {
        ids.HostId(owner.name): 1 + sum(1 for _ in owner.rglob("*"))
        for owner in vault.folder.iterdir()
        if owner.is_dir()
    }
    return {owner: quota.Usage(4096 * count, count) for owner, count in counts.items()}


def asked(
    vault: vault_store.VaultStore,
    method: str,
    target: str,
    data: bytes = b"",
    host: ids.HostId = H1,
) -> tuple[int, bytes]:
    body = vault_api.RequestBody(len(data), iter([data[:7], data[7:]]))
    with vault_api.VaultApi(vault).answer_request(host, method, target, body) as answer:
        return answer.status, b"".join(answer.pieces)


def test_deletion_stops_when_a_later_connection_begins(
    vault: vault_store.VaultStore,
) -> None:
    put(vault, *CHUNKS)
    stay = object_names.NameList(packed_names.pack_names(NAMES[:1]))
    begun = threading.Event()
    looked: list[bytes] = []

    class Slow(object_names.NameList):
        """Names during whose use a later connection begins."""

        def names_with_first_byte(self, first: int) -> set[bytes]:
            found = super().names_with_first_byte(first)
            looked.append(bytes([first]))
            if len(looked) == 4:
                vault.begin_connection(DISK, 2)
                begun.set()
            return found

    with pytest.raises(errors.VaultRefused, match="later connection"):
        vault.retain_only(DISK, Slow(packed_names.pack_names(NAMES[:1])), 1)
    assert begun.is_set() and len(here(vault)) == len(NAMES) - 3 + (NAMES[0][:1] in looked[:3])
    with pytest.raises(errors.VaultRefused):
        vault.delete_disk(DISK, 1)
    assert vault.retain_only(DISK, stay, 2) and here(vault) == {NAMES[0]}
    vault.delete_disk(DISK, 2)
    put(vault, CHUNKS[1])
    assert vault.retain_only(DISK, stay, 1) == 1  # of a disk created again


def test_deletion_request_of_an_earlier_connection_is_refused(
    vault: vault_store.VaultStore,
) -> None:
    put(vault, *CHUNKS)

    def asked_by(connection: int, method: str, target: str, data: bytes = b"") -> int:
        body = vault_api.RequestBody(len(data), iter([data]), connection)
        with vault_api.VaultApi(vault).answer_request(H1, method, target, body) as answer:
            return answer.status

    assert (
        asked_by(2, "POST", f"{PATH}/missing", packed_names.pack_names(NAMES)) == http.HTTPStatus.OK
    )
    assert asked_by(1, "POST", f"{PATH}/keep/00-ff", NAMES[0]) == http.HTTPStatus.CONFLICT
    assert asked_by(1, "DELETE", PATH) == http.HTTPStatus.CONFLICT
    assert here(vault) == set(NAMES)
    assert asked_by(2, "POST", f"{PATH}/keep/00-ff", NAMES[0]) == http.HTTPStatus.OK
    assert here(vault) == {NAMES[0]}
    assert asked_by(3, "DELETE", PATH) == http.HTTPStatus.OK
    chunk = object_names.CHUNK_HEADER.pack(NAMES[1], 100) + CHUNKS[1].data
    assert asked_by(3, "PUT", f"{PATH}/chunks", chunk) == http.HTTPStatus.NO_CONTENT
    assert asked_by(2, "DELETE", PATH) == http.HTTPStatus.CONFLICT


def test_retain_list_has_a_limit(vault: vault_store.VaultStore) -> None:
    put(vault, *CHUNKS[:3])
    target = f"{PATH}/keep/00-ff"
    names = [number.to_bytes(32) for number in range(1, object_names.MAX_NAMES + 2)]
    for count, status in (len(names), 413), (object_names.MAX_NAMES, 200):
        assert asked(vault, "POST", target, b"".join(names[:count]))[0] == status


@pytest.mark.parametrize("most", [3, 100])
def test_retain_list_is_sent_in_parts(vault: vault_store.VaultStore, most: int) -> None:
    put(vault, *CHUNKS)
    manifest = b"a manifest"
    name = checkpoint_encryption.manifest_name(manifest)
    asked(vault, "PUT", f"{PATH}/manifests/{name.hex()}", manifest)
    stay, covered = [*NAMES[:7], name], list[int]()
    retained = object_names.RetainedNames(object_names.ALL_FIRST_BYTES, stay)
    for within, some in object_names.split(retained, most):
        covered += within
        target = f"{PATH}/keep/{within[0]:02x}-{within[-1]:02x}"
        assert asked(vault, "POST", target, b"".join(some))[0] == http.HTTPStatus.OK
    assert covered == list(object_names.ALL_FIRST_BYTES)
    assert here(vault) == set(NAMES[:7]) and vault.list_manifests(DISK) == [name]
    assert vault.quota.usage_by_host() == walked(vault)


@pytest.mark.parametrize("within", ["", "00", "0-f", "00-fg", "00-ff/", "-1-ff", "0a-09"])
def test_retain_request_with_an_invalid_range_drops_nothing(
    vault: vault_store.VaultStore, within: str
) -> None:
    put(vault, *CHUNKS)
    status = asked(vault, "POST", f"{PATH}/keep/{within}", bytes(32))[0]
    assert status in (200, 400, 404) and here(vault) == set(NAMES)


def test_stored_chunks_are_there_after_a_restart(vault: vault_store.VaultStore) -> None:
    put(vault, *CHUNKS[:5])
    again = open_in(vault.folder)
    assert here(again) == set(NAMES[:5])
    assert got(again, NAMES[3]) == CHUNKS[3].data
    assert again.quota.usage_by_host() == vault.quota.usage_by_host() == walked(vault)
    again.close()


@hypothesis.settings(
    max_examples=30, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    strategies.lists(
        strategies.tuples(
            strategies.sampled_from(["put", "keep", "drop", "again"]),
            strategies.sets(strategies.integers(0, 19)),
        ),
        max_size=8,
    )
)
def test_puts_sweeps_and_restarts_keep_the_model(
    tmp_path: pathlib.Path, steps: list[tuple]
) -> None:
    vault, model = open_in(tmp_path), set[int]()
    vault.delete_disk(DISK)
    for what, numbers in steps:
        if what == "put":
            put(vault, *(CHUNKS[n] for n in sorted(numbers)))
            model |= numbers
        elif what == "keep":
            vault.retain_only(
                DISK, object_names.NameList(packed_names.pack_names(NAMES[n] for n in numbers))
            )
            model &= numbers
        elif what == "drop":
            assert vault.delete_disk(DISK) == len(model)
            model = set()
        else:
            vault.close()
            vault = open_in(tmp_path)
        assert here(vault) == {NAMES[n] for n in model}
        assert vault.quota.usage_by_host() == walked(vault) and files_of(vault) == len(model)
    vault.close()


def test_failed_batch_stores_nothing(vault: vault_store.VaultStore) -> None:
    put(vault, CHUNKS[0])

    def broken() -> Iterator[bytes]:
        yield b"x"
        raise OSError(5, "the disk is broken")

    with pytest.raises(OSError, match="broken"), vault.open_batch(DISK) as batch:
        batch.add(object_names.ObjectKind.CHUNK, NAMES[1], 100, [CHUNKS[1].data])
        batch.add(object_names.ObjectKind.CHUNK, NAMES[2], 100, broken())
    for pieces in ([b"x" * 99], [b"x" * 101], [b"x" * 60] * 2, []):
        with pytest.raises(ValueError, match="announced"), vault.open_batch(DISK) as batch:
            batch.add(object_names.ObjectKind.CHUNK, NAMES[3], 100, pieces)
    assert here(vault) == {NAMES[0]} and files_of(vault) == 1
    assert vault.quota.usage_by_host() == walked(vault)


@pytest.mark.parametrize(("nth", "kept"), [(1, 1), (2, 4)])
def test_files_get_their_names_only_after_a_sync(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch, nth: int, kept: int
) -> None:
    put(vault, CHUNKS[0])
    calls = iter(range(1, 9))

    def fault(_descriptor: int) -> OSError | None:
        return OSError(5, "Input/output error") if next(calls) >= nth else None

    monkeypatch.setattr(group_sync, "_fault", fault)
    with pytest.raises(OSError, match="Input"):
        put(vault, *CHUNKS[1:4])
    assert here(vault) == set(NAMES[:kept]) and files_of(vault) == kept
    monkeypatch.undo()
    for chunk in CHUNKS:  # the kernel reports the error once
        with pytest.raises(OSError, match="Input"):
            put(vault, chunk)
    assert vault.quota.usage_by_host() == walked(vault)


@pytest.mark.expect_log("No space left")
@pytest.mark.parametrize("step", ["link", "mkdir"])
def test_failed_step_leaves_no_files(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put(vault, CHUNKS[0])

    def full(*_arguments: object, **_words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="space"):
        put(vault, *CHUNKS[1:4])
    assert asked(vault, "PUT", f"{PATH}/chunks", _frames(CHUNKS[1:4])) == (
        507,
        b"No space left on device",
    )
    monkeypatch.undo()
    assert here(vault) == {NAMES[0]} and files_of(vault) == 1
    put(vault, *CHUNKS[1:4])
    assert here(vault) == set(NAMES[:4])


def _frames(chunks: list[object_names.SealedChunk]) -> bytes:
    return b"".join(object_names.CHUNK_HEADER.pack(name, len(data)) + data for name, data in chunks)


def test_concurrent_puts_of_a_chunk_count_once(vault: vault_store.VaultStore) -> None:
    threads = [threading.Thread(target=put, args=(vault, *CHUNKS)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert here(vault) == set(NAMES)
    assert vault.quota.usage_by_host() == walked(vault) and files_of(vault) == 20


def test_leftovers_of_a_killed_process_are_removed(vault: vault_store.VaultStore) -> None:
    put(vault, CHUNKS[0])
    left = vault.folder / H1 / DISK.disk / ".incoming-7"
    left.write_bytes(b"half")
    open_in(vault.folder).close()
    assert not left.exists() and here(vault) == {NAMES[0]}


@pytest.mark.expect_log("not a file of a vault; ignored")
def test_foreign_files_are_not_touched(vault: vault_store.VaultStore) -> None:
    put(vault, CHUNKS[0])
    others = [vault.folder / "lost+found/x", vault.folder / H1 / "no-disk/x"]
    others.append(vault.folder / H1 / DISK.disk / NAMES[0].hex()[:2] / "notes")
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"somebody's")
    again = open_in(vault.folder)
    assert again.delete_disk(DISK) == 1
    assert all(path.exists() for path in others)
    again.close()


@pytest.mark.expect_log("h1 has used up its quota of this vault")
def test_inode_quota_of_a_host_leaves_inodes_to_others(
    tmp_path: pathlib.Path,
) -> None:
    vault = open_in(tmp_path, quota.VaultLimits(800 * 4096, 400 * 4096, 20))
    put(vault, *CHUNKS[:4])  # plus the directories of the chunks, the disk and the host
    assert vault.quota.usage_by_host() == {H1: quota.Usage(10 * 4096, 10)} == walked(vault)
    with pytest.raises(errors.VaultFull, match="10 inodes of one host"):
        put(vault, *CHUNKS[4:5])
    put(vault, *CHUNKS[:4], disk=object_names.VaultDisk(H2, DISK.disk))
    vault.close()


@pytest.mark.expect_log("h1 has used up its quota of this vault")
def test_limits_per_host_and_in_total_are_enforced(tmp_path: pathlib.Path) -> None:
    vault = open_in(tmp_path, quota.VaultLimits(30 * 4096, 15 * 4096, 20))
    put(vault, *CHUNKS[:4])
    for disk, chunks, why in (
        (DISK, CHUNKS[4:5], "one host"),
        (object_names.VaultDisk(H2, DISK.disk), CHUNKS[:5], "20 inodes is reached"),
    ):
        with pytest.raises(errors.VaultFull, match=why):
            put(vault, *chunks, disk=disk)
        assert vault.quota.usage_by_host() == walked(vault)
    assert vault.quota.usage_by_host()[H1].inodes == 10
    assert asked(vault, "PUT", f"{PATH}/chunks", _frames(CHUNKS[4:5]))[0] == 507
    vault.close()


@pytest.mark.expect_log(r"h1 has used up its quota of this vault \(host_inodes\)")
def test_host_is_full_until_it_deletes_something(tmp_path: pathlib.Path) -> None:
    vault = open_in(tmp_path, quota.VaultLimits(2 << 20, 1 << 20, 120))
    shard = [object_names.SealedChunk(bytes([7, n]) * 16, b"x" * 100) for n in range(100)]
    put(vault, *shard[:55])
    assert vault.quota.usage_by_host()[H1].inodes == 58 and vault.quota.full_hosts() == 0
    for _ in range(2):
        with pytest.raises(errors.VaultFull, match="60 inodes of one host"):
            put(vault, *shard[55:])  # and releases what it reserved
        assert vault.quota.full_hosts() == 1
    vault.retain_only(
        DISK, object_names.NameList(packed_names.pack_names(one.name for one in shard[:50]))
    )
    assert vault.quota.full_hosts() == 0
    vault.close()


def test_new_disks_and_manifests_are_charged_as_listings(
    vault: vault_store.VaultStore,
) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    vault.quota.limits = quota.VaultLimits(1 << 30, 1 << 30, 10_000)
    vault.lookup_rate = lookup_rate.LookupRate(manual_clock.FunctionClock(lambda: now_s), sleep)
    for number in range(100):
        put(
            vault,
            CHUNKS[0],
            disk=object_names.VaultDisk(H1, ids.parse_image_id(str(uuid.UUID(int=number)))),
        )
    asked_of = 100 * (quota.MAX_DISKS + lookup_rate.OF_REQUEST) - lookup_rate.OF_HOST.burst
    assert now_s == pytest.approx(asked_of / lookup_rate.OF_HOST.per_s, rel=0.02)
    for number in range(100):
        data = b"manifest %d" % number
        name = checkpoint_encryption.manifest_name(data)
        target = f"/v1/h1/{uuid.UUID(int=1)}/manifests/{name.hex()}"
        assert asked(vault, "PUT", target, data)[0] == http.HTTPStatus.NO_CONTENT
    asked_of += 100 * (quota.MAX_MANIFESTS + 2 * lookup_rate.OF_REQUEST)
    assert now_s == pytest.approx(asked_of / lookup_rate.OF_HOST.per_s, rel=0.02)


def test_hanging_disk_is_an_error_at_the_deadline(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "group_sync", group_sync.GroupSync(vault.folder, timeout_s=0.2))
    may_end, begun = threading.Event(), threading.Event()

    def hang(_descriptor: int) -> None:
        begun.set()
        may_end.wait(10)

    monkeypatch.setattr(group_sync, "_fault", hang)
    threads = [threading.Thread(target=vault.group_sync.wait_synced) for _ in range(2)]
    threads[0].start()
    assert begun.wait(5)
    threads[1].start()  # starts the next pass
    time.sleep(0.1)
    with pytest.raises(OSError, match="does not answer"):
        put(vault, CHUNKS[0])
    may_end.set()
    for thread in threads:
        thread.join(5)
    put(vault, CHUNKS[0])


def test_number_of_disks_and_manifests_per_host_is_limited(vault: vault_store.VaultStore) -> None:
    vault.quota.limits = vault.quota.limits._replace(disks=1, manifests=1)
    put(vault, CHUNKS[0])
    with pytest.raises(errors.VaultFull, match="disks"):
        put(vault, CHUNKS[0], disk=object_names.VaultDisk(H1, ids.ImageId(DISK.disk[::-1])))
    for number, status in (1, 204), (2, 400), (1, 204):
        data = b"manifest %d" % number
        name = checkpoint_encryption.manifest_name(data)
        assert asked(vault, "PUT", f"{PATH}/manifests/{name.hex()}", data)[0] == status


def test_manifest_must_match_its_name(vault: vault_store.VaultStore) -> None:
    name = checkpoint_encryption.manifest_name(b"a manifest")
    target = f"{PATH}/manifests/{name.hex()}"
    assert asked(vault, "PUT", target, b"another one")[0] == 400
    assert asked(vault, "PUT", target, b"a manifest") == (204, b"")
    assert asked(vault, "GET", target, host=H2) == (200, b"a manifest")
    assert asked(vault, "GET", f"{PATH}/manifests", host=H2) == (200, name)
    assert asked(vault, "GET", "/v1/h1", host=H2) == (200, DISK.disk.encode())


@pytest.mark.expect_log("corrupt")
@pytest.mark.parametrize("at", [0, 50, 99, 100, 131])
def test_altered_file_is_removed(vault: vault_store.VaultStore, at: int) -> None:
    put(vault, *CHUNKS[:2])
    path = vault_files.path_of(
        vault.folder / H1 / DISK.disk, object_names.ObjectKind.CHUNK, NAMES[0]
    )
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    target = f"{PATH}/chunks/{NAMES[0].hex()}"
    assert [asked(vault, "GET", target)[0] for _ in range(2)] == [410, 404]
    assert here(vault) == {NAMES[1]} and vault.quota.usage_by_host() == walked(vault)


def fast_scrubber(vault: vault_store.VaultStore) -> scrubber.Scrubber:
    return scrubber.Scrubber(vault, threading.Event(), bytes_per_s=1 << 40)


@pytest.mark.expect_log("corrupt")
def test_scrubbing_removes_altered_files(vault: vault_store.VaultStore) -> None:
    put(vault, *CHUNKS)
    name = checkpoint_encryption.manifest_name(b"a manifest")
    asked(vault, "PUT", f"{PATH}/manifests/{name.hex()}", b"a manifest")
    work = fast_scrubber(vault)
    assert work.scrub_all() == 0
    for altered in (NAMES[3], NAMES[9], name):
        (path,) = vault.folder.rglob(altered.hex())
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert work.scrub_all() == 3
    assert here(vault) == set(NAMES) - {NAMES[3], NAMES[9]} and not vault.list_manifests(DISK)
    assert work.scrub_all() == 0


def unreadable(
    vault: vault_store.VaultStore, name: bytes, target: str = "/proc/self/mem"
) -> pathlib.Path:
    """Make reads of a file fail, by default with EIO."""
    (path,) = vault.folder.rglob(name.hex())
    path.unlink()
    path.symlink_to(target)
    return path


@pytest.mark.expect_log("cannot be read")
def test_scrubbing_removes_unreadable_files_and_continues(
    vault: vault_store.VaultStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(vault, *CHUNKS)
    lost = {unreadable(vault, name).name for name in (NAMES[0], NAMES[5])}
    kept = unreadable(vault, NAMES[7], "/")  # an error without lost data
    assert fast_scrubber(vault).scrub_all() == 2
    assert here(vault) == set(NAMES) - {NAMES[0], NAMES[5]} and vault.corrupt_files == 2
    assert kept.is_symlink() and all(name in caplog.text for name in (*lost, kept.name))


@pytest.mark.expect_log("cannot be read")
def test_scrubbing_stops_after_many_unreadable_files(
    vault: vault_store.VaultStore,
) -> None:
    put(vault, *CHUNKS)
    for name in NAMES:
        unreadable(vault, name)
    scrubbing = scrubber.Scrubber(vault, threading.Event(), bytes_per_s=1 << 40, max_unreadable=3)
    with pytest.raises(OSError, match="Input/output error"):
        scrubbing.scrub_all()
    assert len(here(vault)) == len(NAMES) - 3


@pytest.mark.expect_log("cannot be removed")
@pytest.mark.expect_log("cannot be read")
def test_unremovable_file_does_not_end_scrubbing(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(vault, *CHUNKS)
    unreadable(vault, NAMES[0])

    def refuse(*_of: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(vault, "remove", refuse)
    assert fast_scrubber(vault).scrub_all() == 0


@pytest.mark.expect_log("corrupt")
@pytest.mark.expect_log("Input/output error")
def test_unlistable_directory_does_not_end_scrubbing(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(vault, *CHUNKS)
    (spoilt,) = vault.folder.rglob(NAMES[9].hex())
    spoilt.write_bytes(b"something else")
    (first,) = vault.folder.rglob(NAMES[0].hex())
    scan = os.scandir

    def scandir(folder: pathlib.Path) -> Any:
        if folder == first.parent:
            raise OSError(errno.EIO, "Input/output error")
        return scan(folder)

    monkeypatch.setattr(vault_files.os, "scandir", scandir)
    assert fast_scrubber(vault).scrub_all() == 1


def test_scrubbing_schedule_survives_a_restart(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, now_s = threading.Event(), (ended_s := time.time())
    work = scrubber.Scrubber(vault, ended, manual_clock.FunctionClock(lambda: now_s))
    assert work.first_pause_s() == scrubber.FIRST_S
    pauses: list[float] = []
    monkeypatch.setattr(ended, "wait", lambda pause_s: pauses.append(pause_s) or len(pauses) > 2)
    work.run()
    assert pauses == [scrubber.FIRST_S, scrubber.EVERY_S, scrubber.EVERY_S]
    for later_s, pause_s in ((0, 86400), (80_000, 6400), (86_000, 3600), (-(10**9), 86400)):
        now_s = ended_s + later_s
        assert work.first_pause_s() == pytest.approx(pause_s, abs=60)


def test_scrubbing_stops_at_once_on_request(vault: vault_store.VaultStore) -> None:
    put(vault, *CHUNKS)
    ended = threading.Event()
    ended.set()
    scrubber.Scrubber(vault, ended).run()
    assert scrubber.Scrubber(vault, ended).scrub_all() == 0


@pytest.mark.expect_log("corrupt")
@pytest.mark.parametrize("length", [0, 1, 31, 32, 131])
def test_truncated_file_is_removed(vault: vault_store.VaultStore, length: int) -> None:
    put(vault, CHUNKS[0])
    path = vault_files.path_of(
        vault.folder / H1 / DISK.disk, object_names.ObjectKind.CHUNK, NAMES[0]
    )
    os.truncate(path, length)
    with pytest.raises(errors.ChunkInvalid):
        got(vault, NAMES[0])
    assert here(vault) == set()


def test_long_sweep_is_done_in_steps(vault: vault_store.VaultStore) -> None:
    put(vault, *CHUNKS)
    stay = object_names.NameList(packed_names.pack_names(NAMES[:1]))
    assert [vault.retain_only(DISK, stay, limit=8) for _ in range(3)] == [8, 8, 3]


def test_vault_directory_is_private_and_exclusive(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "vault"
    with vault_files.locked(folder):
        with pytest.raises(errors.Unusable, match="another process"):
            with vault_files.locked(folder):
                pass
    folder.chmod(0o755)
    with pytest.raises(errors.Unusable, match="other users"):
        with vault_files.locked(folder):
            pass


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
@pytest.mark.parametrize(
    "end", ["", "/chunks", "/missing", "/keep/00-ff", f"/manifests/{'0' * 64}"]
)
def test_host_may_not_change_data_of_another(
    vault: vault_store.VaultStore, method: str, end: str
) -> None:
    put(vault, CHUNKS[0])
    assert asked(vault, method, f"{PATH}{end}", bytes(32), host=H2)[0] in (403, 404)
    assert here(vault) == {NAMES[0]}


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    strategies.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH"]),
    strategies.one_of(
        strategies.text(max_size=60),
        strategies.lists(
            strategies.sampled_from(
                ["v1", "h1", DISK.disk, "chunks", "manifests", "missing", "..", "", "0" * 64]
            ),
            max_size=7,
        ).map("/".join),
    ),
    strategies.binary(max_size=120),
)
def test_random_requests_do_no_damage(
    tmp_path: pathlib.Path, method: str, target: str, data: bytes
) -> None:
    vault = open_in(tmp_path / "vault") if (tmp_path / "vault").exists() else _new(tmp_path)
    put(vault, CHUNKS[0], disk=object_names.VaultDisk(H2, DISK.disk))
    status, _ = asked(vault, method, target, data)
    assert status in (200, 204, 400, 403, 404)
    assert not vault.missing_chunks(object_names.VaultDisk(H2, DISK.disk), NAMES[:1])
    assert {path.name for path in tmp_path.iterdir()} == {"vault"}
    vault.close()


def _new(tmp_path: pathlib.Path) -> vault_store.VaultStore:
    (tmp_path / "vault").mkdir()
    return open_in(tmp_path / "vault")


def test_request_bodies_need_a_length_within_the_limit(vault: vault_store.VaultStore) -> None:
    for length, status in (None, 411), (1 << 40, 413):
        body = vault_api.RequestBody(length, iter([]))
        for method, end in ("PUT", "chunks"), ("POST", "keep/00-ff"), ("POST", "missing"):
            with vault_api.VaultApi(vault).answer_request(
                H1, method, f"{PATH}/{end}", body
            ) as answer:
                assert answer.status == status
    assert asked(vault, "POST", f"{PATH}/keep/00-ff")[0] == 400  # an empty list is a DELETE


def test_retain_list_may_be_empty_for_a_part_and_not_for_all(
    vault: vault_store.VaultStore,
) -> None:
    """All chunks of a large disk may be equal, so most first bytes may have no name."""
    put(vault, *CHUNKS)
    assert asked(vault, "POST", f"{PATH}/keep/00-ff")[0] == http.HTTPStatus.BAD_REQUEST
    assert asked(vault, "POST", f"{PATH}/keep/00-7f")[0] == http.HTTPStatus.OK
    assert here(vault) == {name for name in NAMES if name[0] > 0x7F} != set()


def test_reads_are_charged_to_the_reader(
    vault: vault_store.VaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is charged as a request, even if it fails, and by its bytes."""
    data = bytes(10 * lookup_rate.BYTES)
    put(vault, object_names.SealedChunk(NAMES[0], data))
    spent = list[tuple[str, int]]()
    monkeypatch.setattr(vault.lookup_rate, "spend_lookups", lambda *words: spent.append(words))
    h3 = ids.HostId("h3")
    assert asked(vault, "GET", f"{PATH}/chunks/{NAMES[0].hex()}", host=h3) == (
        http.HTTPStatus.OK,
        data,
    )
    assert spent == [(h3, lookup_rate.OF_REQUEST), (h3, 10)]
    spent.clear()
    assert (
        asked(vault, "GET", f"{PATH}/chunks/{NAMES[1].hex()}", host=h3)[0]
        == http.HTTPStatus.NOT_FOUND
    )
    assert spent == [(h3, lookup_rate.OF_REQUEST)]


def test_directory_entries_are_iterated_in_bounded_memory(vault: vault_store.VaultStore) -> None:
    """An owner chooses the names: all of its chunks may be in one directory."""
    put(vault, object_names.SealedChunk(bytes(32), bytes(100)))
    part = vault.folder / H1 / DISK.disk / "00"
    for number in range(1, 20_000):
        os.link(part / bytes(32).hex(), part / f"{number:064x}")
    most_bytes = list[int]()
    tracemalloc.start()
    assert sum(1 for _ in vault.iter_all()) == 20_000
    most_bytes.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.reset_peak()
    assert vault.retain_only(DISK, object_names.NameList(bytes(32))) == vault_store.MAX_REMOVED
    most_bytes.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert max(most_bytes) < 1 << 20, most_bytes


def test_unsynced_data_of_a_host_is_bounded(
    vault: vault_store.VaultStore,
) -> None:
    """A host cannot prolong a sync without bound; other hosts do not wait for it."""
    size_bytes, begun, go_on = group_sync.UNSYNCED_BYTES // 4, list[str](), threading.Event()

    def begin(owner: str, size_bytes: int) -> None:
        with vault.open_batch(object_names.VaultDisk(ids.HostId(owner), DISK.disk), 0, size_bytes):
            begun.append(owner)
            assert go_on.wait(30.0)

    threads = [threading.Thread(target=begin, args=("h1", size_bytes)) for _ in range(16)]
    threads += [threading.Thread(target=begin, args=("h3", 4 * group_sync.UNSYNCED_BYTES))]
    for thread in threads:
        thread.start()
    runs.wait_for(lambda: len(begun) == 5, 10.0, "the batches", str)
    time.sleep(0.2)
    assert sorted(begun) == ["h1"] * 4 + ["h3"]
    go_on.set()
    for thread in threads:
        thread.join(30.0)
    assert len(begun) == 17 and not vault.unsynced._held and not vault.unsynced._waiting


def test_unsynced_data_limit_times_out(
    vault: vault_store.VaultStore,
) -> None:
    vault.unsynced = group_sync.UnsyncedLimit(timeout_s=0.2)
    with vault.open_batch(DISK, 0, group_sync.UNSYNCED_BYTES):
        with pytest.raises(OSError, match="not synced yet"), vault.open_batch(DISK, 0, 1):
            pass
    with vault.open_batch(DISK, 0, 1):
        pass


def test_small_pieces_are_charged_and_large_ones_free() -> None:
    spent = list[int]()
    lookups: Any = types.SimpleNamespace(spend_lookups=lambda _host, count: spent.append(count))
    rate = lookup_rate.PieceRate(lookups, ids.HostId("h1"))
    for _ in range(1000):
        rate.note_piece(16 << 10)
    assert not spent
    rate.begin_request()
    for _ in range(lookup_rate.FREE_PIECES):
        rate.note_piece(1)
    assert not spent
    for _ in range(100):
        rate.note_piece(1)
    assert spent == [lookup_rate.OF_PIECE] * 100
